"""What an algorithm keeps at the server."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algorithms.models import ModelWeights


class ServerState(NamedTuple):
  """What an algorithm keeps at the server from round to round.

  Attributes:
    round_num: How many rounds there have been, an int32 scalar.
    weights: The model weights x.
    optimizer: The state of the server's optimizer.
    terms: The states of the augmenting gradients, in their order.
    hparams: An OrderedDict of scalars that `set_hparams` can change.
    central: Within a phase, () -> the server's own rows in this round; `()` in between,
      and where it has none.
  """

  round_num: tf.Tensor
  weights: ModelWeights
  optimizer: Any
  terms: tuple
  hparams: collections.OrderedDict
  central: Any = ()
