"""FedAvg-S: Hou et al. 2021, "Federated Saddle Point Optimization", Algorithm 4.

On client i, from z_i = z~, tau times:  z_i <- z_i - gamma_l G_i(z_i; batch)
At the server:                          z~ <- z~ - gamma_g mean of sum of G_i(z_i)

With gamma_g = gamma_l it is FedAvg on the gradient mapping.
"""

from typing import Any

import tensorflow_federated as tff

from tff_algorithms import models, oracles, saddle_framework


def build_fed_avg_s(
  objective: models.Model | oracles.Oracle,
  *,
  client_learning_rate: float,
  batch_size: int,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg-S.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    client_learning_rate: gamma_l.
    batch_size: The rows of a local step.
    **arguments: More arguments of `saddle_framework.build`: `local_steps`,
      `sync_probability`, `server_learning_rate`, `schedule`, `average_mu`, ...
  """
  return saddle_framework.build(
    objective,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    **arguments,
  )
