"""Peers as processes: started, told what to do, measured and ended."""

from collections.abc import Iterator, Sequence
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from typing import Any
import uuid

import numpy as np

from benchmarks import memory
from benchmarks.peers import peer
from training_loops import processes

_ROOT = pathlib.Path(__file__).parents[1]
# By which all that a peer starts is found, also what is no child of it any more.
_MARK = 'BENCHMARK_PEER'


class PeerFailure(RuntimeError):
  """A peer ended, or did not answer as it should."""


class PeerProcess:
  """A peer (see `peers.peer`) at work."""

  def __init__(
    self,
    python: pathlib.Path,
    module: str,
    directory: pathlib.Path,
    arguments: Sequence[str] = (),
  ):
    """Starts the peer. Call from the main thread.

    Args:
      python: The interpreter of its environment.
      module: Its module, from the root of this repository.
      directory: Where the work is.
      arguments: More arguments of its program.
    """
    self._module = module
    self._directory = directory
    self._mark = uuid.uuid4().hex
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
    command = [str(python), '-m', module, str(directory)]
    self._started = time.perf_counter()
    self._process = subprocess.Popen(
      processes.ending_with_parent([*command, *arguments]),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._log,
      text=True,
      cwd=_ROOT,
      # Its own packages only, and no words of TensorFlow's.
      env={**os.environ, _MARK: self._mark, 'TF_CPP_MIN_LOG_LEVEL': '2'},
      start_new_session=True,
    )

  def start(self, exact: bool) -> None:
    """Has it begin again from the initial weights: see `Peer.start`."""
    self._ask({'start': exact})

  def round(self, cohort: Sequence[int]) -> float:
    """Has it do a round, and returns the seconds that this took."""
    begin = time.perf_counter()
    self._ask({'round': [int(i) for i in cohort]})
    return time.perf_counter() - begin

  def weights(self) -> list[np.ndarray]:
    """Its server's weights."""
    path = self._directory / f'{self._mark}.npz'
    self._ask({'weights': str(path)})
    return peer.load_weights(path)

  @property
  def age(self) -> float:
    """Seconds since its start."""
    return time.perf_counter() - self._started

  def peak_megabytes(self) -> float:
    """The most memory each of its processes has had resident, added up."""
    return sum(memory.peak_megabytes(pid) for pid in self._pids())

  def close(self) -> None:
    """Ends it with all that it has started."""
    with contextlib.suppress(OSError):
      self._process.stdin.close()  # type: ignore[union-attr]
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout=10)  # It may have an end of its own to make.
    for pid in self._pids():
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    self._process.wait()
    self._log.close()

  def _ask(self, command: dict[str, Any]) -> None:
    assert self._process.stdin is not None and self._process.stdout is not None
    try:
      self._process.stdin.write(json.dumps(command) + '\n')
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    except OSError:
      answer = ''
    if not answer:
      words = processes.last_words(self._log.fileno())
      raise PeerFailure(f'{self._module} failed at {command}. Its last words:\n{words}')

  def _pids(self) -> Iterator[int]:
    mark = f'{_MARK}={self._mark}'.encode()
    for path in pathlib.Path('/proc').glob('[0-9]*/environ'):
      with contextlib.suppress(OSError):
        if mark in path.read_bytes().split(b'\0'):
          yield int(path.parent.name)
