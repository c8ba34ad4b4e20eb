"""Selection: a client is sent the rows of large tables that it needs, and no others.

Federated select, Charles et al. 2022. A model with an embedding table of N rows, of
which a client uses n, trains on the client as one with a table of n rows.
"""

from collections.abc import Callable
import dataclasses

import tensorflow as tf

from tff_algorithms.structures import Structure


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which rows of a model's tables a client needs.

  Attributes:
    table_shape: (N, ...), the shape of a table. Every tensor of this shape among the
      weights, in what is sent and in what is uploaded is one.
    max_keys: n, how many rows a client is sent; fixed, as all clients are of one type.
    keys: A TensorFlow function, a client's rows -> the keys of the table's rows that
      it needs: int32 `[max_keys]`, different ones, then -1 for each that it does not
      need.
    localize: A TensorFlow function, (rows, keys) -> the rows with every key replaced by
      its position among the keys.
  """

  table_shape: tuple[int, ...]
  max_keys: int
  keys: Callable[[Structure], tf.Tensor]
  localize: Callable[[Structure, tf.Tensor], Structure]
