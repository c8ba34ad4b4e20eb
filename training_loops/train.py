"""Trains a model with a federated algorithm; `--helpshort` shows the flags."""

from typing import Any

from training_loops import command_line, progress, run, train_flags


def main(flags: dict[str, Any]) -> None:
  """Trains and says where the results are."""
  progress.show_on_console()
  result = run.train(flags)
  print(f'Metrics, model and curves are in {result.path}.')


if __name__ == '__main__':
  command_line.run(train_flags.PROGRAM, main)
