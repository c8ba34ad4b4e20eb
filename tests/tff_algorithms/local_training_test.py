"""The phase of local training: what is sent and what comes back."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import local_training, mean


@pytest.mark.parametrize(('weighting', 'weight'), [('examples', 7), ('uniform', 1)])
def test_a_clients_weight_is_its_examples_or_one(weighting, weight):
  n = tf.constant(7.0)
  assert local_training.client_weight(weighting, n) == weight


def test_the_mean_is_the_default_aggregator():
  default = local_training.mean_aggregator(None, 'examples')
  assert isinstance(default, mean.MeanFactory)


def test_an_aggregator_without_weights_serves_uniform_clients():
  unweighted = tff.aggregators.UnweightedMeanFactory()
  assert local_training.mean_aggregator(unweighted, 'uniform') is unweighted
  with pytest.raises(ValueError, match=r'UnweightedMeanFactory.*uniform'):
    local_training.mean_aggregator(unweighted, 'examples')
