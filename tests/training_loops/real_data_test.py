"""Every algorithm learns real handwriting by writer, as the binary would train it."""

import pytest

from training_loops import algorithms, run, train_flags

_FLAGS = {
  'fed_avg': {'client_learning_rate': 0.1},
  'fed_prox': {'client_learning_rate': 0.1},
  'server_only': {'server_learning_rate': 1.0},
}


@pytest.mark.long
@pytest.mark.parametrize('algorithm', list(algorithms.branches()))
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
