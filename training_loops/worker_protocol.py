"""What a driver and a worker say to each other besides what TFF's own runtime says.

Importing this module does not import TensorFlow.
"""

import json
import re
from typing import Any

from training_loops import versions
from training_loops.options import UserError

# TFF's own service, passed on as it is.
EXECUTORS = '/tensorflow_federated.v0.ExecutorGroup/'
# The worker answers with who it is. What it makes for the driver from then on lasts as
# long as the driver stays for the rest of the answer, which never comes.
ATTEND = '/tff_algorithms.Worker/Attend'
# The metadata that says which of those who attend is calling.
SESSION = 'session'
# https://github.com/grpc/grpc/blob/master/doc/health-checking.md
HEALTH = '/grpc.health.v1.Health/Check'
SERVING, NOT_SERVING = b'\x08\x01', b'\x08\x02'

# More than any machine has cores for. Clients are dealt out by the number that a worker
# says of itself, and for each that it computes at once a driver has threads.
MAX_THREADS = 1024
_SESSION_ID = re.compile('[0-9a-f]{32}')  # What `uuid.uuid4().hex` gives.

# A name or an address, that of IPv6 in brackets.
_ADDRESS = re.compile(r'([^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})')
MAX_PORT = 65535

# Computations are TensorFlow graphs, put together by TFF: both have to be the same.
_SAME = ('tensorflow', 'tensorflow-federated', 'tff-algorithms')

# Driver and front make sure of each other from time to time: whoever is cut off, or
# stopped, is found out.
_PING_SECONDS = 10
PING_OPTIONS = (
  ('grpc.keepalive_time_ms', _PING_SECONDS * 1000),
  ('grpc.keepalive_timeout_ms', _PING_SECONDS * 1000),
  ('grpc.http2.ping_timeout_ms', _PING_SECONDS * 1000),  # Otherwise a minute, at times.
  ('grpc.keepalive_permit_without_calls', 1),
  ('grpc.http2.max_pings_without_data', 0),
  ('grpc.http2.min_ping_interval_without_data_ms', _PING_SECONDS * 500),
)


def addresses(workers: str) -> list[str]:
  """Where workers are, each as host:port, from a value of `--workers`.

  Raises:
    UserError: If that is not what it says.
  """
  found = workers.split(',')
  for address in found:
    match = _ADDRESS.fullmatch(address)
    if not match or not 1 <= int(match[2]) <= MAX_PORT:
      raise UserError(
        f'--workers={workers}: expected host:port,host:port with ports from 1 to '
        f'{MAX_PORT}, found {address!r}.'
      )
  return found


def own_versions() -> dict[str, str]:
  """The versions that have to be the same on both sides."""
  found = versions.versions()
  if 'tensorflow-cpu' in found:
    found.setdefault('tensorflow', found['tensorflow-cpu'])
  return {name: found.get(name, 'none') for name in _SAME}


def greeting(session: str, num_threads: int) -> bytes:
  """How a worker answers to `ATTEND`."""
  content = {
    'session': session,
    'versions': own_versions(),
    'num_threads': num_threads,
  }
  return json.dumps(content).encode()


def read_greeting(content: bytes) -> tuple[str, int]:
  """The session and the number of threads in a worker's greeting.

  Raises:
    ValueError: If its versions are not those of this process, says which; or if it is
      another greeting than theirs.
  """
  said = _read(content)
  found, own = said.get('versions'), own_versions()
  if not isinstance(found, dict):
    raise ValueError('it is of another version: its greeting cannot be read')
  apart = [
    f'{name} {found.get(name, "none")} where {version} is needed'
    for name, version in own.items()
    if found.get(name) != version
  ]
  if apart:
    raise ValueError(f'it is of another version: {", ".join(apart)}')
  session, num_threads = said.get('session'), said.get('num_threads')
  if not (isinstance(session, str) and _SESSION_ID.fullmatch(session)):
    raise ValueError(f'it is no worker of this version: its session is {session!r}')
  if type(num_threads) is not int or not 1 <= num_threads <= MAX_THREADS:
    raise ValueError(
      f'it is no worker of this version: it computes {num_threads!r} clients at once, '
      f'where 1 to {MAX_THREADS} can be'
    )
  return session, num_threads


def _read(content: bytes) -> dict[str, Any]:
  """What a greeting says; nothing if it is none."""
  try:
    said = json.loads(content)
  except (ValueError, RecursionError):
    return {}
  return said if isinstance(said, dict) else {}
