"""Transfer learning: central rounds, then federated ones, or the reverse.

A baseline of Augenstein et al. 2022 (mixed FL, appendix B.4.5). Which computation is
run depends on the round, so that it is two processes, the second of which starts from
the weights of the first; here they look like one.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_algorithms import checks
from tff_algorithms.process_types import State
from tff_algorithms.server_state import ServerState

ORDERS = ('central_first', 'federated_first')


class TransferState(NamedTuple):
  """The states of both processes, in the order of their stages."""

  first: State
  second: State

  @property
  def server(self) -> ServerState:
    """The algorithm's state of the stage that has been reached."""
    return (self.second if self.second.server.round_num > 0 else self.first).server


@dataclasses.dataclass(frozen=True)
class TransferLearning:
  """Two processes one after the other; they train the same model.

  Attributes:
    central: `next` takes (state, the server's rows), as of `only_central`.
    federated: `next` takes (state, clients).
    order: 'central_first' or 'federated_first'.
    switch_round: How many rounds the first stage has.
  """

  central: tff.templates.IterativeProcess
  federated: tff.templates.IterativeProcess
  order: str
  switch_round: int

  def __post_init__(self):
    checks.one_of(self.order, ORDERS, 'order')
    checks.count(self.switch_round, 'switch_round')

  @property
  def _stages(self) -> tuple[Any, Any]:
    stages = (self.central, self.federated)
    return stages if self.order == 'central_first' else stages[::-1]

  def initialize(self) -> TransferState:
    """The state before the first round."""
    return TransferState(*(stage.initialize() for stage in self._stages))

  def next(self, state: TransferState, clients: Any, central: Any) -> Any:
    """A round of the stage that its turn is.

    Args:
      state: The state.
      clients: The clients' arguments.
      central: The server's argument.

    Returns:
      A `LearningProcessOutput`.
    """
    is_first = state.first.server.round_num < self.switch_round
    stage = self._stages[0 if is_first else 1]
    own = state.first if is_first else self._started(state)
    output = stage.next(own, central if stage is self.central else clients)
    new = {'first' if is_first else 'second': output.state}
    return tff.learning.templates.LearningProcessOutput(
      state._replace(**new), output.metrics
    )

  def _started(self, state: TransferState) -> State:
    """The state of the second stage, at first with the weights of the first."""
    second = state.second
    if second.server.round_num > 0:
      return second
    server = second.server._replace(weights=state.first.server.weights)
    return second._replace(server=server)
