"""Small numpy models with gradients derived by hand.

Weights and gradients are dicts name -> array (of at least one axis), a batch is
a dict name -> array whose leading axis counts the rows. All arithmetic is done
in the dtype of the weights. A model is a namespace of two functions:

  loss_and_gradient(weights, batch) -> (mean loss over the rows, gradient)
  num_correct(weights, batch) -> number of correct predictions (classifiers)
"""

from collections.abc import Callable, Sequence

import numpy as np

Weights = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]
LossAndGradient = Callable[[Weights, Batch], tuple[float, Weights]]
NumCorrect = Callable[[Weights, Batch], int]


class LinearRegression:
  """f(W, b) = mean over the rows of 0.5 * ||x W + b - y||^2.

  kernel W: [d, o], bias b: [o], x: [B, d], y: [B, o]. The square is summed over
  the o outputs, and the factor is one half.
  """

  @staticmethod
  def loss_and_gradient(weights: Weights, batch: Batch) -> tuple[float, Weights]:
    dtype = weights['kernel'].dtype
    x, y = batch['x'].astype(dtype), batch['y'].astype(dtype)
    error = x @ weights['kernel'] + weights['bias'] - y
    loss = 0.5 * np.sum(error**2) / len(x)
    gradient = {
      'kernel': x.T @ error / len(x),
      'bias': np.sum(error, axis=0) / len(x),
    }
    return float(loss), gradient


class LogisticRegression:
  """Softmax cross-entropy of the logits x W + b, mean over the rows.

  kernel W: [d, C], bias b: [C], x: [B, d], y: [B] integer labels.
  """

  @staticmethod
  def _logits(weights: Weights, batch: Batch) -> np.ndarray:
    x = batch['x'].astype(weights['kernel'].dtype)
    return x @ weights['kernel'] + weights['bias']

  @staticmethod
  def loss_and_gradient(weights: Weights, batch: Batch) -> tuple[float, Weights]:
    x = batch['x'].astype(weights['kernel'].dtype)
    logits = LogisticRegression._logits(weights, batch)
    loss, d_logits = _cross_entropy(logits, batch['y'])
    return loss, {'kernel': x.T @ d_logits, 'bias': np.sum(d_logits, axis=0)}

  @staticmethod
  def num_correct(weights: Weights, batch: Batch) -> int:
    logits = LogisticRegression._logits(weights, batch)
    return int(np.sum(np.argmax(logits, axis=1) == batch['y']))


class Mlp:
  """Softmax cross-entropy of tanh(x W1 + b1) W2 + b2, mean over the rows.

  kernel_1: [d, h], bias_1: [h], kernel_2: [h, C], bias_2: [C], x: [B, d],
  y: [B] integer labels.
  """

  @staticmethod
  def _forward(weights: Weights, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    x = batch['x'].astype(weights['kernel_1'].dtype)
    hidden = np.tanh(x @ weights['kernel_1'] + weights['bias_1'])
    return hidden, hidden @ weights['kernel_2'] + weights['bias_2']

  @staticmethod
  def loss_and_gradient(weights: Weights, batch: Batch) -> tuple[float, Weights]:
    x = batch['x'].astype(weights['kernel_1'].dtype)
    hidden, logits = Mlp._forward(weights, batch)
    loss, d_logits = _cross_entropy(logits, batch['y'])
    # tanh' = 1 - tanh^2.
    d_hidden = (d_logits @ weights['kernel_2'].T) * (1 - hidden**2)
    gradient = {
      'kernel_1': x.T @ d_hidden,
      'bias_1': np.sum(d_hidden, axis=0),
      'kernel_2': hidden.T @ d_logits,
      'bias_2': np.sum(d_logits, axis=0),
    }
    return loss, gradient

  @staticmethod
  def num_correct(weights: Weights, batch: Batch) -> int:
    _, logits = Mlp._forward(weights, batch)
    return int(np.sum(np.argmax(logits, axis=1) == batch['y']))


class Quadratic:
  """f(w) = mean over the rows (A, b) of 0.5 * (w - b)^T A (w - b).

  w: [d], a: [B, d, d] (symmetric or not), b: [B, d].
  """

  @staticmethod
  def loss_and_gradient(weights: Weights, batch: Batch) -> tuple[float, Weights]:
    w = weights['w']
    loss, gradient = 0.0, np.zeros_like(w)
    a_rows, b_rows = batch['a'].astype(w.dtype), batch['b'].astype(w.dtype)
    for a, b in zip(a_rows, b_rows, strict=True):
      loss += 0.5 * (w - b) @ a @ (w - b)
      gradient += 0.5 * (a + a.T) @ (w - b)
    rows = len(batch['b'])
    return float(loss / rows), {'w': gradient / rows}


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
  """Mean softmax cross-entropy, and its gradient (p - onehot) / B."""
  rows = np.arange(len(labels))
  # The shift by the maximum changes nothing but keeps exp from overflowing.
  shifted = logits - np.max(logits, axis=1, keepdims=True)
  log_p = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
  loss = -np.sum(log_p[rows, labels]) / len(labels)
  d_logits = np.exp(log_p)
  d_logits[rows, labels] -= 1
  return float(loss), d_logits / len(labels)


# What the oracles need of vectors that are kept as dicts.


def map_weights(fn: Callable[..., np.ndarray], *trees: Weights) -> Weights:
  """Applies fn to the arrays of the same name."""
  return {name: fn(*(tree[name] for tree in trees)) for name in trees[0]}


def weighted_mean(trees: Sequence[Weights], weights: Sequence[float]) -> Weights:
  """sum_i p_i tree_i / sum_i p_i."""
  total = float(sum(weights))
  mean = map_weights(np.zeros_like, trees[0])
  for tree, weight in zip(trees, weights, strict=True):
    mean = map_weights(lambda m, t, p=weight: m + p * t, mean, tree)
  return map_weights(lambda m: m / total, mean)


def norm(tree: Weights) -> float:
  """Euclidean norm of all arrays as one vector, in float64."""
  squares = sum(np.sum(a.astype(np.float64) ** 2) for a in tree.values())
  return float(np.sqrt(squares))


def all_finite(tree) -> bool:
  """Whether no number in a dict (of dicts) of arrays is a NaN or Inf."""
  if isinstance(tree, dict):
    return all(all_finite(value) for value in tree.values())
  return bool(np.all(np.isfinite(tree)))


def num_rows(data: Batch) -> int:
  return len(next(iter(data.values())))
