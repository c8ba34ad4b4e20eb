"""What a driver and a worker say to each other besides what TFF's own runtime says.

Importing this module does not import TensorFlow.
"""

import json
from typing import Any

from training_loops import versions

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

# Computations are TensorFlow graphs, put together by TFF: both have to be the same.
_SAME = ('tensorflow', 'tensorflow-federated', 'tff-algorithms')

# Driver and front make sure of each other from time to time: whoever is cut off, or
# stopped, is found out.
_PING_SECONDS = 10
PING_OPTIONS = (
  ('grpc.keepalive_time_ms', _PING_SECONDS * 1000),
  ('grpc.keepalive_timeout_ms', _PING_SECONDS * 1000),
  ('grpc.keepalive_permit_without_calls', 1),
  ('grpc.http2.max_pings_without_data', 0),
  ('grpc.http2.min_ping_interval_without_data_ms', _PING_SECONDS * 500),
)


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
    ValueError: If its versions are not those of this process; says which.
  """
  said: dict[str, Any] = json.loads(content)
  found, own = said['versions'], own_versions()
  apart = [
    f'{name} {found.get(name, "none")} where {version} is needed'
    for name, version in own.items()
    if found.get(name) != version
  ]
  if apart:
    raise ValueError(f'it is of another version: {", ".join(apart)}')
  return said['session'], said['num_threads']
