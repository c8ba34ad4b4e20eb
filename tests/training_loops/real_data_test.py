"""Every algorithm learns real handwriting, as the binary would train it."""

import pytest

from training_loops import algorithms, run, train_flags

_FLAGS = {
  'fed_avg': {'client_learning_rate': 0.1},
  'fed_prox': {'client_learning_rate': 0.1},
  'server_only': {'server_learning_rate': 1.0},
}


_IS_MIXED = {
  name: algorithms.is_mixed({'algorithm': name}) for name in algorithms.branches()
}
# Those that need weights to maximise over.
_OF_SADDLE_POINTS = (
  'fed_avg_s',
  'extra_step_local_sgd',
  'scaffold_s',
  'scaffold_catalyst_s',
  'minibatch_mirror_descent',
  'minibatch_mirror_prox',
)


@pytest.mark.long
@pytest.mark.parametrize(
  'algorithm',
  [
    name
    for name, is_mixed in _IS_MIXED.items()
    if not is_mixed and name not in _OF_SADDLE_POINTS
  ],
)
def test_learns_handwriting_by_writer(algorithm, runtime, data_dir, tmp_path):
  flags = train_flags.configure(
    task='emnist_logistic',
    data_dir=data_dir,
    algorithm=algorithm,
    rounds=40,
    clients_per_round=20,
    rounds_per_eval=20,
    output_dir=tmp_path / 'run',
    **_FLAGS.get(algorithm, {}),
  )
  result = run.train(flags, runtime=runtime)
  middle, last = result.rows
  assert last['eval/accuracy'] > 0.2  # Chance is 0.016.
  assert last['eval/loss'] < middle['eval/loss']
  assert last['train/num_clients_left_out'] == 0


# What the digits of the clients, or of the server, alone would allow.
_OF_ONE_PART = 0.6
_MIXED_FLAGS = {
  'only_central': {'central_learning_rate': 0.5},
  'centralized_oracle': {'central_learning_rate': 0.5},
  'transfer_learning': {'central_learning_rate': 0.5, 'transfer_round': 20},
  'example_transfer': {'client_learning_rate': 0.5},
}


@pytest.mark.long
@pytest.mark.parametrize(
  'algorithm', [name for name, is_mixed in _IS_MIXED.items() if is_mixed]
)
def test_mixed_algorithms_learn_the_digits_of_clients_and_server(
  algorithm, runtime, tmp_path
):
  flags = train_flags.configure(
    task='digits_mixed',
    algorithm=algorithm,
    rounds=40,
    clients_per_round=20,
    rounds_per_eval=20,
    output_dir=tmp_path / 'run',
    **_MIXED_FLAGS.get(algorithm, {'client_learning_rate': 0.5}),
  )
  *_, last = run.train(flags, runtime=runtime).rows
  if algorithm == 'only_central':
    assert last['eval/server_accuracy'] > 0.8
    assert last['eval/clients_accuracy'] < 0.1
  elif algorithm == 'transfer_learning':
    assert last['eval/clients_accuracy'] > 0.8
  else:
    assert last['eval/accuracy'] > _OF_ONE_PART
  assert last['eval/accuracy'] > 0.2


@pytest.mark.long
@pytest.mark.parametrize(
  'algorithm',
  # Others' local steps go to each client's own saddle point, with these clients.
  [name for name in _OF_SADDLE_POINTS if 'local' not in name and 'avg' not in name],
)
def test_comes_nearer_to_the_saddle_point_of_robust_regression(
  algorithm, runtime, data_dir, tmp_path
):
  of_whom = 'server' if 'mirror' in algorithm else 'client'
  flags = train_flags.configure(
    task='concrete_robust',
    data_dir=data_dir,
    algorithm=algorithm,
    rounds=40,
    rounds_per_eval=20,
    output_dir=tmp_path / 'run',
    **{f'{of_whom}_learning_rate': 0.05},
  )
  middle, last = run.train(flags, runtime=runtime).rows
  assert last['eval/duality_gap'] < middle['eval/duality_gap']
  assert last['eval/distance_to_optimum'] < middle['eval/distance_to_optimum']
  assert last['train/num_clients_left_out'] == 0
