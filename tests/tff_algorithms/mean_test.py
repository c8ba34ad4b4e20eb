"""The mean as an aggregator."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algorithms import mean

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_is_the_mean_of_tffs_factory(dtype):
  rng = np.random.default_rng(0)
  values = [
    collections.OrderedDict(
      w=rng.normal(size=(3, 2)).astype(dtype), b=rng.normal(size=2).astype(dtype)
    )
    for _ in range(4)
  ]
  weights = [dtype(weight) for weight in (3.0, 0.0, 1.0, 20.0)]
  value_type = tff.types.to_type(
    collections.OrderedDict(w=(dtype, [3, 2]), b=(dtype, [2]))
  )
  results = []
  for factory in (mean.MeanFactory(), tff.aggregators.MeanFactory()):
    process = factory.create(value_type, tff.TensorType(dtype))
    assert process.is_weighted
    results.append(process.next(process.initialize(), values, weights).result)
  for name in ('w', 'b'):
    assert results[0][name].dtype == dtype
    np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-6)
