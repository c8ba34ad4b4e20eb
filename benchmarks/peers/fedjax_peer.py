"""FedJAX as a peer: its own algorithms, optimizers and EMNIST models."""

from collections.abc import Iterable, Mapping, Sequence
import os
from typing import Any

import fedjax
import jax
import numpy as np

from benchmarks.peers.peer import Client, Peer, Work, serve

_MODELS = {
  'logistic': fedjax.models.emnist.create_logistic_model,
  'cnn': fedjax.models.emnist.create_conv_model,
}
# What goes over the clients, each the fastest on its model with two cores. 'jit', the
# default, takes one client after the other and leaves it to XLA to share out a step.
# 'pmap' takes a client per device, which cores can be: faster by a fifth or more on the
# CNN, but three times slower on steps as small as the logistic model's.
_BACKENDS = {'logistic': 'jit', 'cnn': 'pmap'}

# As FedJAX has them: {layer: {'w': kernel, 'b': bias}}.
_Params = Mapping[str, Mapping[str, Any]]


class FedjaxPeer(Peer):
  """An algorithm on datasets in memory."""

  def __init__(self, work: Work):
    backend = _BACKENDS[work.model]
    fedjax.set_for_each_client_backend(backend)
    if backend == 'pmap':
      _make_devices_of_cores()
    self._work = work
    model = _MODELS[work.model]()
    self._layers = sorted(model.init(jax.random.PRNGKey(0)))
    # Made once, because with an algorithm goes what has been compiled for it.
    self._algorithms = [_algorithm(work, model, exact) for exact in (False, True)]
    generator = np.random.default_rng(work.seed)
    self._clients = [_Dataset(client, generator) for client in work.clients]

  def start(self, exact: bool) -> None:
    self._algorithm = self._algorithms[exact]
    self._key = jax.random.PRNGKey(self._work.seed)
    self._state = self._algorithm.init(self._params(self._work.weights))

  def round(self, cohort: Sequence[int]) -> None:
    self._key, key = jax.random.split(self._key)
    keys = jax.random.split(key, len(cohort))
    clients = [(i, self._clients[i], k) for i, k in zip(cohort, keys, strict=True)]
    output = self._algorithm.apply(self._state, clients)
    self._state, _ = jax.block_until_ready(output)

  def weights(self) -> Sequence[np.ndarray]:
    params: _Params = self._state.params
    return [np.asarray(params[layer][name]) for layer in self._layers for name in 'wb']

  def _params(self, weights: Sequence[np.ndarray]) -> _Params:
    arrays = iter(jax.device_put(list(weights)))
    # FedJAX's kernels are laid out as the work's, and flattened images as well.
    return {layer: {name: next(arrays) for name in 'wb'} for layer in self._layers}


class _Dataset(fedjax.ClientDataset):
  """A client whose last batch in training has the rows that are left and no others.

  FedJAX fills that batch up with rows of the client that it has already had. Here it
  is padded and masked, as FedJAX has it in taking the gradient of a whole client: its
  gradient is the mean over the rows it has, the step costs the same, and there is one
  shape of batch to compile for.
  """

  def __init__(self, client: Client, generator: np.random.Generator):
    x = client.x.reshape([-1, 28, 28, 1]).astype(np.float32) / np.float32(255)
    super().__init__({'x': x, 'y': client.y})
    self._generator = generator

  def shuffle_repeat_batch(
    self, hparams: fedjax.ShuffleRepeatBatchHParams
  ) -> Iterable[Mapping[str, np.ndarray]]:
    rows = self.raw_examples
    if not hparams.skip_shuffle:
      order = self._generator.permutation(len(self))
      rows = {name: values[order] for name, values in rows.items()}
    return fedjax.ClientDataset(rows).padded_batch(batch_size=hparams.batch_size)


def _make_devices_of_cores() -> None:
  """To be called before JAX asks for its devices."""
  flag = f'--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'


def _algorithm(
  work: Work, model: fedjax.Model, exact: bool
) -> fedjax.FederatedAlgorithm:
  def per_example_loss(params: _Params, batch: Any, key: Any) -> Any:
    if exact:  # Without dropout.
      return model.train_loss(batch, model.apply_for_eval(params, batch))
    return model.train_loss(batch, model.apply_for_train(params, batch, key))

  client_batches = fedjax.ShuffleRepeatBatchHParams(
    batch_size=work.batch_size, skip_shuffle=exact
  )
  if work.algorithm == 'fed_avg':
    return fedjax.algorithms.fed_avg.federated_averaging(
      fedjax.grad(per_example_loss),
      client_optimizer=fedjax.optimizers.sgd(work.learning_rate),
      server_optimizer=fedjax.optimizers.sgd(1.0),
      client_batch_hparams=client_batches,
    )
  build = {
    'mime': fedjax.algorithms.mime.mime,
    'mime_lite': fedjax.algorithms.mime_lite.mime_lite,
  }[work.algorithm]
  return build(
    per_example_loss,
    fedjax.optimizers.sgd(work.learning_rate, momentum=work.momentum),
    client_batch_hparams=client_batches,
    grads_batch_hparams=fedjax.PaddedBatchHParams(batch_size=work.batch_size),
    server_learning_rate=1.0,
  )


if __name__ == '__main__':
  serve(FedjaxPeer)
