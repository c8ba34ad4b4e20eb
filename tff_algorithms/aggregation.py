"""The aggregators of a phase: a factory for each upload, and a sum of measurements."""

import collections
from collections.abc import Mapping
import inspect
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_algorithms import structures
from tff_algorithms.phases import Phase
from tff_algorithms.transports import Everything

_MEASUREMENTS = 'measurements'
_SUMS = (tff.aggregators.SumFactory, tff.aggregators.SecureSumFactory)


class Aggregates(NamedTuple):
  """What the aggregators returned: new states, results, what they measured."""

  states: collections.OrderedDict
  results: collections.OrderedDict
  measurements: collections.OrderedDict


class Aggregation:
  """The aggregation processes of a phase's uploads, by the aggregators' names."""

  def __init__(
    self,
    phase: Phase,
    way: Everything,
    uploads_type: Any,
    counted_type: tff.Type,
    metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None,
  ):
    """Creates the processes.

    Args:
      phase: The phase.
      way: How its message is sent, which may make other aggregators of its own.
      uploads_type: What a client uploads.
      counted_type: What a client measures and counts, as one vector.
      metrics_aggregator: Sums that, in the clear if None.
    """
    self._shared = phase.shared
    self._uploads_type = uploads_type
    self._upload_names = tff.structure.name_list(uploads_type)
    self._processes = collections.OrderedDict(
      (name, self._create(name, factory, way))
      for name, factory in phase.aggregators.items()
    )
    self._check_all_are_aggregated()
    factory = metrics_aggregator or tff.aggregators.SumFactory()
    # The guards count clients with it: noise or a clipped norm would mislead them.
    if not isinstance(factory, _SUMS):
      raise ValueError(
        'metrics_aggregator must be a tff.aggregators.SumFactory or SecureSumFactory, '
        f'found {type(factory).__name__}.'
      )
    self._sum = factory.create(counted_type)

  def _source_of(self, name: str) -> str:
    """The upload whose value an aggregator takes."""
    return self._shared.get(name, name)

  def _create(self, name: str, factory: Any, way: Everything) -> Any:
    source = self._source_of(name)
    if source not in self._upload_names:
      raise ValueError(
        f'The aggregator {name!r} has no upload among {self._upload_names}.'
      )
    value_type = self._uploads_type[source].value
    factory = way.factory(name, factory, value_type)
    if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
      return factory.create(value_type)
    return factory.create(value_type, self._uploads_type[source].weight)

  def _check_all_are_aggregated(self) -> None:
    taken = {*self._processes, *map(self._source_of, self._processes)}
    for name in self._upload_names:
      if name not in taken:
        raise ValueError(
          f'The upload {name!r} has no aggregator among {list(self._processes)}.'
        )

  def _is_weighted(self, upload: str) -> bool:
    """Whether the weight of an upload is used."""
    return any(
      process.is_weighted
      for name, process in self._processes.items()
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
      for name in self._processes
      if self._source_of(name) in by_upload
    }

  def initialize(self) -> Any:
    """The first states, @SERVER."""
    states = collections.OrderedDict(
      (name, process.initialize()) for name, process in self._processes.items()
    )
    states[_MEASUREMENTS] = self._sum.initialize()
    return tff.federated_zip(states)

  def run(self, states: Any, uploads: Any, counted: Any) -> tuple[Aggregates, Any]:
    """Aggregates what clients uploaded, and what they counted.

    Args:
      states: The states @SERVER.
      uploads: By name, @CLIENTS.
      counted: What they measured and counted, @CLIENTS.
    """
    outputs = collections.OrderedDict()
    for name, process in self._processes.items():
      value = uploads[self._source_of(name)].value
      # One that shares another's value may have weights of its own.
      weighing = name if name in self._upload_names else self._source_of(name)
      weight = (uploads[weighing].weight,) if process.is_weighted else ()
      outputs[name] = process.next(states[name], value, *weight)
    summed = self._sum.next(states[_MEASUREMENTS], counted)
    aggregates = Aggregates(
      states=collections.OrderedDict(
        [(name, output.state) for name, output in outputs.items()]
        + [(_MEASUREMENTS, summed.state)]
      ),
      results=collections.OrderedDict(
        (name, output.result) for name, output in outputs.items()
      ),
      measurements=collections.OrderedDict(
        (name, output.measurements) for name, output in outputs.items()
      ),
    )
    return aggregates, summed.result


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
