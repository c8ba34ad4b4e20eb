"""SCAFFOLD-S: Hou et al. 2021, "Federated Saddle Point Optimization", Algorithm 2.

At the server:                          G(z~) = mean of G_i(z~)
On client i, from z_i = z~, tau times:  g_i = G_i(z_i; b) - G_i(z~; b) + G(z~)
                                        z_i <- z_i - gamma_l g_i
At the server:                          z~ <- z~ - gamma_g mean of sum of g_i

Clients keep nothing, unlike those of SCAFFOLD: this is Mime, with this round's c and
SGD, on the gradient mapping. The code is Mime's term.
"""

from typing import Any

import tensorflow_federated as tff

from tff_algorithms import mime, models, oracles, saddle_framework


def build_scaffold_s(
  objective: models.Model | oracles.Oracle,
  *,
  client_learning_rate: float,
  batch_size: int,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD-S, in two phases a round.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    client_learning_rate: gamma_l.
    batch_size: The rows of a local step.
    **arguments: More arguments of `saddle_framework.build`: `local_steps`,
      `sync_probability`, `server_learning_rate`, ...
  """
  return saddle_framework.build(
    objective,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    control_variate=mime.CurrentControlVariate,
    **arguments,
  )
