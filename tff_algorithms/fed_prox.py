"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks".

Each client minimises f_i(y) + (rho / 2) ||y - x||^2 (their equation 2, where rho is
called mu), so the local step is FedAvg's with rho (y - x) added to the gradient.
"""

import dataclasses
from typing import Any

import tensorflow_federated as tff

from tff_algorithms import checks, fed_avg, models, oracles, structures
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Step, Term


@dataclasses.dataclass(frozen=True)
class Proximal(Term):
  """a = rho (y - x)."""

  rho: float

  @property
  def name(self) -> str:
    return 'proximal'

  def anchor(self, step: Step, message: Any) -> Structure:
    """What y is pulled towards."""
    del message
    return step.x

  def value(self, step: Step, message: Any, prepared: Any) -> Structure:
    away = structures.subtract(step.y, self.anchor(step, message))
    return structures.scale(self.rho, away)


def build_fed_prox(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  rho: float,
  **fed_avg_arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds FedProx: `fed_avg.build_fed_avg` with a proximal term; rho = 0 is FedAvg.

  Args:
    model: What is trained: a model, or any gradient oracle.
    rho: The strength of the pull towards x, 0 or above.
    **fed_avg_arguments: The arguments of `build_fed_avg`; `terms` are added to.
  """
  terms = [Proximal(checks.not_negative(rho, 'rho'))]
  terms.extend(fed_avg_arguments.pop('terms', ()))
  return fed_avg.build_fed_avg(model, terms=terms, **fed_avg_arguments)
