"""The aggregators of a phase: a factory for each upload, and a sum of measurements."""

import collections
from collections.abc import Mapping
import inspect
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import mean, structures
from tff_algorithms.mean import MeanFactory
from tff_algorithms.phases import Phase, Upload
from tff_algorithms.transports import Everything

_COUNTED = 'counted'
_SUMS = (tff.aggregators.SumFactory, tff.aggregators.SecureSumFactory)


class Parts(NamedTuple):
  """What a client sends, by the way it takes.

  Attributes:
    summed: What is summed in the clear, all of it in one sum: the parts of the default
      means, plain sums, and what the client counted.
    uploads: What other aggregators take, by name, each an `Upload`.
    counted: What the client counted, where its sum is secure.
  """

  summed: collections.OrderedDict
  uploads: collections.OrderedDict
  counted: Any


class Aggregates(NamedTuple):
  """What became of `Parts`: the sums; the others' states, results, measurements."""

  summed: Any
  states: collections.OrderedDict
  results: collections.OrderedDict
  measurements: collections.OrderedDict


class Aggregation:
  """The aggregation of a phase's uploads, by the aggregators' names.

  First `parts` is traced and `create` called, then the rest is there to be used.
  """

  def __init__(
    self,
    phase: Phase,
    way: Everything,
    metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None,
  ):
    """Takes the factories.

    Args:
      phase: The phase.
      way: How its message is sent, which may make other aggregators of its own.
      metrics_aggregator: Sums what clients measure and count, in the clear if None.
    """
    # The guards count clients with it: noise or a clipped norm would mislead them.
    if metrics_aggregator and not isinstance(metrics_aggregator, _SUMS):
      raise ValueError(
        'metrics_aggregator must be a tff.aggregators.SumFactory or SecureSumFactory, '
        f'found {type(metrics_aggregator).__name__}.'
      )
    self._factories = phase.aggregators
    self._shared = phase.shared
    self._way = way
    self._counts_factory = metrics_aggregator
    self._processes: dict[str, Any] = {}  # Those of `Parts.uploads`, and of the counts.
    self._uploads_type: Any = None

  def _source_of(self, name: str) -> str:
    """The upload whose value an aggregator takes."""
    return self._shared.get(name, name)

  def parts(self, uploads: Mapping[str, Upload], counted: tf.Tensor) -> Parts:
    """What a client sends of its uploads and of what it counted."""
    self._check_names(uploads)
    self._uploads_type = tff.types.tensorflow_to_type(structures.tensor_specs(uploads))
    summed: collections.OrderedDict = collections.OrderedDict()
    others: collections.OrderedDict = collections.OrderedDict()
    for name, factory in self._factories.items():
      source = self._source_of(name)
      value = uploads[source].value
      # One that shares another's value may have weights of its own.
      weighing = name if name in uploads else source
      is_whole = self._way.is_whole(value)
      if is_whole and isinstance(factory, MeanFactory):
        summed[name] = mean.weigh(value, uploads[weighing].weight)
      elif is_whole and isinstance(factory, tff.aggregators.SumFactory):
        summed[name] = value
      else:
        others.update({taken: uploads[taken] for taken in (source, weighing)})
    if self._counts_factory:
      return Parts(summed, others, counted)
    summed[_COUNTED] = counted
    return Parts(summed, others, ())

  def _check_names(self, uploads: Mapping[str, Upload]) -> None:
    for name in self._factories:
      if self._source_of(name) not in uploads:
        raise ValueError(f'The aggregator {name!r} has no upload among {[*uploads]}.')
    for name in uploads:
      if name not in {*self._factories, *self._shared.values()}:
        raise ValueError(
          f'The upload {name!r} has no aggregator among {[*self._factories]}.'
        )

  def create(self, parts_type: Any) -> None:
    """Creates the processes of what is not in the one sum, for parts of this type."""
    names = tff.structure.name_list(parts_type.summed)
    for name, factory in self._factories.items():
      if name in names:
        continue
      upload_type = self._uploads_type[self._source_of(name)]
      factory = self._way.factory(name, factory, upload_type.value)
      is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
      types = upload_type if is_weighted else (upload_type.value,)
      self._processes[name] = factory.create(*types)
    if self._counts_factory:
      self._processes[_COUNTED] = self._counts_factory.create(parts_type.counted)

  def _is_weighted(self, upload: str) -> bool:
    """Whether the weight of an upload is used."""
    return any(
      isinstance(factory, tff.aggregators.WeightedAggregationFactory)
      for name, factory in self._factories.items()
      if upload in (name, self._source_of(name))
    )

  @property
  def bytes_up(self) -> int:
    """What a client uploads; what is aggregated twice is sent once."""
    return sum(
      structures.size_in_bytes(upload.value)
      + (structures.size_in_bytes(upload.weight) if self._is_weighted(name) else 0)
      for name, upload in tff.structure.iter_elements(self._uploads_type)
    )

  def by_aggregator(self, by_upload: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to an upload, for each aggregator that takes it."""
    return {
      name: by_upload[self._source_of(name)]
      for name in self._factories
      if self._source_of(name) in by_upload
    }

  def initialize(self) -> Any:
    """The first states of the processes by name, @SERVER."""
    states = collections.OrderedDict(
      (name, process.initialize()) for name, process in self._processes.items()
    )
    if not states:
      return tff.federated_value(states, tff.SERVER)
    return tff.federated_zip(states)

  def run(self, states: Any, parts: Any) -> Aggregates:
    """Aggregates what clients sent.

    Args:
      states: The states @SERVER.
      parts: The `Parts` @CLIENTS.
    """
    uploaded = tff.structure.name_list(parts.type_signature.member.uploads)
    outputs = collections.OrderedDict()
    for name, process in self._processes.items():
      if name == _COUNTED:
        outputs[name] = process.next(states[name], parts.counted)
        continue
      source = self._source_of(name)
      weighing = name if name in uploaded else source
      weight = (parts.uploads[weighing].weight,) if process.is_weighted else ()
      outputs[name] = process.next(states[name], parts.uploads[source].value, *weight)

    def by_name(field):
      return collections.OrderedDict((n, getattr(o, field)) for n, o in outputs.items())

    has_sums = len(parts.type_signature.member.summed) > 0
    return Aggregates(
      summed=tff.federated_sum(parts.summed) if has_sums else (),
      states=by_name('state'),
      results=by_name('result'),
      measurements=by_name('measurements'),
    )

  def results(self, aggregates: Aggregates) -> tuple[dict[str, Any], tf.Tensor]:
    """What the aggregators gave, by name, and what all clients counted."""
    given = dict(aggregates.results)
    for name, sums in dict(aggregates.summed).items():
      is_mean = isinstance(self._factories.get(name), MeanFactory)
      given[name] = mean.divide(sums) if is_mean else sums
    counted = given.pop(_COUNTED)
    return given, counted


def sum_aggregator(
  aggregator: Any, name: str
) -> tff.aggregators.UnweightedAggregationFactory:
  """The aggregator for a sum over clients; checks that it is no mean.

  Raises:
    ValueError: If it is one.
  """
  if aggregator is not None and _takes_mean(aggregator):
    raise ValueError(
      f'{name} must sum over clients, as tff.aggregators.SumFactory and '
      f'SecureSumFactory do; {type(aggregator).__name__} takes a mean.'
    )
  return aggregator or tff.aggregators.SumFactory()


def _takes_mean(factory: tff.aggregators.AggregationFactory) -> bool:
  """Whether a factory, or one that it is wrapped around, takes a mean."""
  means = (
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedMeanFactory,
  )
  # TFF's wrappers have what they wrap as an attribute, or as a variable around.
  around = inspect.getclosurevars(type(factory).create).nonlocals
  parts = [*getattr(factory, '__dict__', {}).values(), *around.values()]
  return (
    isinstance(factory, means)
    # Of differential privacy: a query that divides by the number of clients.
    or any('Normalized' in type(part).__name__ for part in parts)
    or any(
      _takes_mean(part)
      for part in parts
      if isinstance(part, tff.aggregators.AggregationFactory)
    )
  )
