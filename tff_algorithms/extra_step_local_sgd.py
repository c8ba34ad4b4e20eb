"""Extra-step local SGD: Beznosikov et al. 2020; Hou et al. 2021, appendix A.

On client i, from z_i = z~, tau times:  z_i <- z_i - gamma_l G_i(z_i - gamma_l G_i(z_i))
At the server:                          z~ <- z~ - gamma_g mean of the sums of these

FedAvg-S with mirror-prox for its local steps: another oracle, and nothing else.
"""

from typing import Any

import tensorflow_federated as tff

from tff_algorithms import checks, models, oracles, saddle_framework, saddle_point


def build_extra_step_local_sgd(
  objective: models.Model | oracles.Oracle,
  *,
  client_learning_rate: float,
  batch_size: int,
  extrapolation_rate: float | None = None,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds extra-step local SGD.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    client_learning_rate: gamma_l.
    batch_size: The rows of a local step; both its gradients are on the same batch.
    extrapolation_rate: The rate of the extra step, gamma_l if None. It is no
      hyperparameter of the process.
    **arguments: More arguments of `saddle_framework.build`: `local_steps`,
      `sync_probability`, `server_learning_rate`, ...
  """
  rate = client_learning_rate if extrapolation_rate is None else extrapolation_rate
  checks.not_negative(rate, 'extrapolation_rate')
  oracle = saddle_point.as_gradient_mapping(objective)
  oracles.check_repeatable(oracle)
  return saddle_framework.build(
    oracles.Extrapolated(rate, oracle),
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    **arguments,
  )
