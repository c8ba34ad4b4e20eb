"""Tests of laying out clients at once, and of runs that find them laid out."""

import pytest

from tasks.federated_data import FederatedData
from training_loops import lay_out, run, show_task, train_flags
from training_loops.options import UserError


def _flags(tff_cache, **more):
  return train_flags.configure(
    task='emnist_logistic', data_dir=str(tff_cache), algorithm='fed_avg', **more
  )


@pytest.mark.slow
def test_runs_read_what_was_laid_out_and_give_the_same_numbers(
  tff_cache, tmp_path, monkeypatch, runtime
):
  read, rows = [], FederatedData.rows

  def spied(self, client_id):
    if self.origin and '_train' in self.origin.steps[0]:
      read.append(client_id)
    return rows(self, client_id)

  monkeypatch.setattr(FederatedData, 'rows', spied)

  def metrics(name, client_data_dir):
    read.clear()
    flags = _flags(
      tff_cache,
      rounds=3,
      clients_per_round=2,
      max_eval_examples=50,
      output_dir=str(tmp_path / name),
      client_data_dir=str(client_data_dir),
    )
    run.train(flags, runtime=runtime)
    return (tmp_path / name / 'metrics.csv').read_bytes()

  first = metrics('first', tmp_path / 'kept')
  assert read
  assert metrics('second', tmp_path / 'kept') == first
  assert not read
  assert metrics('scratch', '/dev/null') == first  # Where nothing can be kept.
  assert read


def test_rows_that_are_in_memory_are_not_laid_out(tmp_path, monkeypatch):
  # The runtime of the tests stays the default.
  monkeypatch.setattr(show_task, 'execute_nothing', lambda: None)
  with pytest.raises(UserError, match='made anew by each run'):
    lay_out.main(
      {
        **train_flags.configure(
          task='digits_logistic', algorithm='fed_avg', output_dir=str(tmp_path)
        ),
        'client_data_dir': None,
      }
    )
