"""SCAFFOLD-Catalyst-S: Hou et al. 2021, Algorithms 3 and 5.

In meta-iteration t clients have
    f_i^theta(x, y) = f_i(x, y) + theta/2 ||x - xbar||^2 - theta/2 ||y - ybar||^2
so that                 G_i^theta(z) = G_i(z) + theta (z - zbar)
and at its end          zbar <- SCAFFOLD-S({f_i^theta}), started at zbar

It is SCAFFOLD-S with one more term, FedProx's, anchored at zbar: the correction of
SCAFFOLD-S is the same for f_i^theta and f_i. When a meta-iteration ends is a rule
of its own, asked as soon as the mean of the G_i(z~) is known.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  mime,
  models,
  oracles,
  saddle_framework,
  structures,
)
from tff_algorithms.catalyst_stopping import (
  MetaIteration,
  Stopping,
  SubProblem,
  SufficientDecrease,
  norm_of,
)
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Step, Term


class CatalystState(NamedTuple):
  """What the server keeps, so that a round that fails has changed nothing.

  Attributes:
    kept: The meta-iteration after the last round.
    proposed: That of the round under way, once G(z~) is known: it is kept if the
      round succeeds.
  """

  kept: MetaIteration
  proposed: MetaIteration

  def started_again(self) -> 'CatalystState':
    """With a meta-iteration that starts where the next round does."""
    first = tf.zeros_like(self.kept.inner_rounds)
    return self._replace(kept=self.kept._replace(inner_rounds=first))


@dataclasses.dataclass(frozen=True)
class Catalyst(Proximal):
  """a = theta (z_i - zbar); the server keeps zbar.

  Attributes:
    stopping: When zbar moves.
  """

  stopping: Stopping

  name = 'catalyst'

  def init(self, weights: ModelWeights) -> CatalystState:
    zbar = tf.nest.map_structure(tf.identity, weights.trainable)
    meta = MetaIteration(
      tf.constant(0), zbar, tf.constant(0), tf.zeros([], structures.weight_dtype(zbar))
    )
    return CatalystState(meta, meta)

  def message(self, state: CatalystState, server: ServerState) -> Structure:
    del server
    return state.proposed.zbar

  def anchor(self, step: Step, message: Structure) -> Structure:
    return message

  def propose(self, state: CatalystState, z: Structure, c: Structure) -> CatalystState:
    """The state for a round at z = z~, c being G(z~)."""
    meta = state.kept
    norm = norm_of(self._gradient(meta, z, c))
    solved = self.stopping.is_solved(SubProblem(meta, z, norm, self.rho))
    is_first = tf.equal(meta.inner_rounds, 0)  # Of all, or since z was set.
    solved &= ~is_first
    t = meta.t + tf.cast(solved, meta.t.dtype)
    start = MetaIteration(t, z, tf.zeros_like(meta.inner_rounds), norm_of(c))
    meta = structures.select(solved | is_first, start, meta)
    proposed = meta._replace(inner_rounds=meta.inner_rounds + 1)
    return state._replace(proposed=proposed)

  def absorb(
    self, state: CatalystState, means: Any, server: ServerState
  ) -> CatalystState:
    del means, server
    return state._replace(kept=state.proposed)

  def _gradient(self, meta: MetaIteration, z: Structure, c: Structure) -> Structure:
    """G^theta(z)."""
    return structures.add(
      c, structures.scale(self.rho, structures.subtract(z, meta.zbar))
    )

  def metrics(self, state: CatalystState, means: Any, server: ServerState) -> Any:
    c, meta = server.terms[0].c, state.proposed
    gradient = self._gradient(meta, server.weights.trainable, c)
    return {
      'meta_iterations': tf.cast(meta.t, tf.float32),
      'inner_rounds': tf.cast(meta.inner_rounds, tf.float32),
      'subproblem_gradient_norm': structures.global_norm(gradient),
    }


def build_scaffold_catalyst_s(
  objective: models.Model | oracles.Oracle,
  *,
  theta: float,
  stopping: Stopping | None = None,
  client_learning_rate: float,
  batch_size: int,
  terms: Sequence[Term] = (),
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD-Catalyst-S, in two phases a round; theta = 0 is SCAFFOLD-S.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    theta: The strength of the regularization, 0 or above.
    stopping: When a sub-problem is solved; once the norm of its gradient mapping is
      half of what it was, by default.
    client_learning_rate: gamma_l.
    batch_size: The rows of a local step.
    terms: Augmenting gradients to add to the local step.
    **arguments: More arguments of `saddle_framework.build`: `local_steps`,
      `sync_probability`, `server_learning_rate`, ...
  """
  catalyst = Catalyst(
    checks.not_negative(theta, 'theta'), stopping or SufficientDecrease()
  )

  def gathered(server: ServerState) -> ServerState:
    c, state, *rest = server.terms
    state = catalyst.propose(state, server.weights.trainable, c.c)
    return server._replace(terms=(c, state, *rest))

  return saddle_framework.build(
    objective,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    control_variate=mime.CurrentControlVariate,
    gathered=gathered,
    terms=[catalyst, *terms],
    **arguments,
  )
