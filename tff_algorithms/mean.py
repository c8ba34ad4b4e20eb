"""The weighted mean as an aggregator, in one sum where TFF's takes two.

In TFF's runtime each sum is a call for every client, so on small models this is a
noticeable part of a round.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import structures


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

    @tff.tensorflow.computation(value_type, weight_type)
    def weigh(value, weight):
      return structures.scale(weight, value), weight

    @tff.tensorflow.computation(weigh.type_signature.result)
    def divide(sums):
      value_sum, weight_sum = sums
      return tf.nest.map_structure(
        lambda t: t / tf.cast(weight_sum, t.dtype), value_sum
      )

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      sums = tff.federated_sum(tff.federated_map(weigh, (value, weight)))
      return tff.templates.MeasuredProcessOutput(
        state=state,
        result=tff.federated_map(divide, sums),
        measurements=tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
