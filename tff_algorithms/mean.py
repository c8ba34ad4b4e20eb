"""The weighted mean as an aggregator, in one sum where TFF's takes two.

In TFF's runtime each sum, and each map before it, is a call for every client, so on
small models this is a noticeable part of a round. `aggregation` does without either:
it weighs in the client's own work, and sums with all else that is summed.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import structures
from tff_algorithms.structures import Structure


class Weighed(NamedTuple):
  """What a client adds to the sums behind a mean: weight * value, and the weight."""

  product: Structure
  weight: tf.Tensor


def weigh(value: Structure, weight: tf.Tensor) -> Weighed:
  """A client's part in a weighted mean."""
  return Weighed(structures.scale(weight, value), weight)


def divide(sums: Weighed) -> Structure:
  """The mean, of the sums over clients."""
  return tf.nest.map_structure(
    lambda t: t / tf.cast(sums.weight, t.dtype), sums.product
  )


class MeanFactory(tff.aggregators.WeightedAggregationFactory):
  """sum of weight * value / sum of weight, as `tff.aggregators.MeanFactory()`.

  Without clients of positive weight the result is not a number.
  """

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process; it has no state and measures nothing."""

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    weigh_fn = tff.tensorflow.computation(weigh, value_type, weight_type)
    divide_fn = tff.tensorflow.computation(divide, weigh_fn.type_signature.result)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      sums = tff.federated_sum(tff.federated_map(weigh_fn, (value, weight)))
      return tff.templates.MeasuredProcessOutput(
        state=state,
        result=tff.federated_map(divide_fn, sums),
        measurements=tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
