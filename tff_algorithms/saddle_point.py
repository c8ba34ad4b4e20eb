"""Saddle-point problems, min over x of max over y, as gradient oracles.

Hou et al. 2021, "Efficient Algorithms for Federated Saddle Point Optimization". With
z = (x, y) what descends to a saddle point of f is the gradient mapping

    G(z) = (df/dx, -df/dy)                                              (equation 3)

in the place of a gradient. An oracle of it goes with every algorithm of this package.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algorithms import models, oracles, structures
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Altered, Evaluation, FunctionLoss, Oracle
from tff_algorithms.structures import Structure


class SaddlePoint(NamedTuple):
  """z: the trainable weights of a saddle function.

  Attributes:
    min: x, those that f is minimised over.
    max: y, those that it is maximised over.
  """

  min: Structure
  max: Structure


class GradientMapping(Altered):
  """G_i, for an f_i known by its plain gradients.

  Attributes:
    prox: (z', theta) -> prox of f/theta at z', a saddle point of
      f(x, y) + theta/2 ||x - x'||^2 - theta/2 ||y - y'||^2, where it can be computed.
    convexity: mu, such that f is mu-strongly convex-concave, where it is known.
  """

  is_gradient_mapping = True

  def __init__(
    self,
    oracle: Oracle,
    *,
    prox: Callable[[SaddlePoint, float], SaddlePoint] | None = None,
    convexity: float | None = None,
  ):
    """Initializes the oracle.

    Args:
      oracle: f_i; its trainable weights are a `SaddlePoint`.
      prox: See the attribute.
      convexity: See the attribute.
    """
    super().__init__(oracle)
    self.prox = prox
    self.convexity = convexity

  def initial_weights(self, seed: Any) -> ModelWeights:
    weights = super().initial_weights(seed)
    z = weights.trainable
    if not isinstance(z, SaddlePoint):
      raise ValueError(
        "A saddle objective's trainable weights are a SaddlePoint(min=..., max=...), "
        f'found {type(z).__name__}.'
      )
    for name, part in zip(z._fields, z, strict=True):
      if not tf.nest.flatten(part):
        raise ValueError(
          f'A saddle objective needs weights to {name}imise over, found no `{name}` '
          'weights: what has one kind only is for FedAvg, Mime or SCAFFOLD.'
        )
    return weights

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    of_f = self._oracle.evaluate(weights, batch, seed)
    x, y = of_f.gradient
    return of_f._replace(gradient=SaddlePoint(x, structures.scale(-1, y)))


def saddle_objective(
  function: Callable[[Structure, Structure, Any, Any], tf.Tensor],
  *,
  initialize: Callable[[Any], SaddlePoint],
  batch_spec: Any,
  **known: Any,
) -> GradientMapping:
  """The gradient mapping of a pure function.

  Args:
    function: (x, y, batch, seed) -> the mean of f_i over the batch. The seed is for
      `tf.random.stateless_*`; None, in inference, asks for the same numbers always.
    initialize: seed -> z to start from.
    batch_spec: The structure of `tf.TensorSpec`s of a batch; the leading axis is None.
    **known: `prox` and `convexity` of `GradientMapping`.
  """
  f = FunctionLoss(
    lambda z, batch, seed: function(z.trainable.min, z.trainable.max, batch, seed),
    lambda seed: ModelWeights(initialize(seed), ()),
    batch_spec,
  )
  return GradientMapping(f, **known)


def as_gradient_mapping(objective: Oracle | models.Model) -> Oracle:
  """The objective itself if it gives a gradient mapping, else that of what it is."""
  oracle = oracles.as_oracle(objective)
  return oracle if oracle.is_gradient_mapping else GradientMapping(oracle)


def duality_gap(
  f: Callable[[SaddlePoint], Any], z: SaddlePoint, z_star: SaddlePoint
) -> Any:
  """Gap*(z) = f(x, y*) - f(x*, y), of definition 5; 0 at z*, and never below."""
  return f(SaddlePoint(z.min, z_star.max)) - f(SaddlePoint(z_star.min, z.max))
