"""A program that listens on a Unix socket of ours, wherever it means to listen.

TFF's worker listens on all networks of its machine, without asking who is there, and no
flag of it says otherwise. Started by `start`, no `bind` of it is carried out: Linux
asks us each time (seccomp's user notification, Linux 5.9), and we put a socket of our
own in the place of the one that was to be bound. Ours is a file, for its owner alone:
there is no port that another machine, or another user of this one, could reach. It
takes no privileges, no rules of a firewall, and nothing to be compiled.

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

from training_loops import processes
from training_loops.failures import RuntimeFailure

# Run as `python -c _SHIM descriptor command...`. Has Linux ask about each bind (system
# call 49 of x86-64) whoever has the descriptor that is sent through ours, then becomes
# the command. Programs of another architecture, with numbers of their own, are killed.
_SHIM = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(what, result):
  if result < 0:
    sys.exit(f'{what}: {os.strerror(ctypes.get_errno())}')
  return result
program = b''.join(struct.pack('HBBI', *instruction) for instruction in (
  (0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E), (0x06, 0, 0, 0x80000000),
  (0x20, 0, 0, 0), (0x15, 0, 1, 49), (0x06, 0, 0, 0x7FC00000), (0x06, 0, 0, 0x7FFF0000),
))
code = ctypes.create_string_buffer(program)
header = struct.pack('HxxxxxxQ', len(program) // 8, ctypes.addressof(code))
checked('PR_SET_NO_NEW_PRIVS', libc.prctl(38, 1, 0, 0, 0))
asked = checked('SECCOMP_FILTER_FLAG_NEW_LISTENER', libc.syscall(317, 1, 8, header))
with socket.socket(fileno=int(sys.argv[1])) as parent:
  socket.send_fds(parent, [b'.'], [asked])
os.close(asked)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Linux's seccomp_notif: id, pid, flags; then seccomp_data: the number of the system
# call, the architecture, an address, six arguments.
_QUESTION = struct.Struct('QII iIQ6Q')
_FIRST_ARGUMENT = 6
_REPLACEMENT = struct.Struct('QIIII')  # id, flags, our descriptor, theirs, its flags.
_ANSWER = struct.Struct('QqiI')  # id, result, error, flags.
_RECEIVE, _REPLACE, _SEND = 0xC0502100, 0x40182103, 0xC0182101
_AT_THEIR_NUMBER = 1


def start(
  command: Sequence[str], listening: socket.socket, **options: Any
) -> subprocess.Popen:
  """Starts a program that ends with this process. Call from the main thread.

  Args:
    command: The path of a binary, and its arguments.
    listening: What each of its sockets becomes that is to be bound. It is closed when
      the program has ended.
    **options: As for `subprocess.Popen`.

  Raises:
    RuntimeFailure: If Linux does not let us.
  """
  ours, theirs = socket.socketpair()
  with ours, theirs:
    shim = [sys.executable, '-I', '-S', '-c', _SHIM, str(theirs.fileno())]
    process = subprocess.Popen(
      processes.ending_with_parent([*shim, *command]),
      pass_fds=[theirs.fileno()],
      **options,
    )
    theirs.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
  if not descriptors:
    process.wait()
    raise RuntimeFailure(
      f'{command[0]} cannot be kept from listening on all networks: this takes Linux '
      '5.9 on x86-64, and a container that allows seccomp.'
    )
  answering = threading.Thread(
    target=_answer, args=(descriptors[0], listening), daemon=True
  )
  answering.start()
  return process


def _answer(asked: int, listening: socket.socket) -> None:
  """Puts our socket in the place of each to be bound, until the program ends."""
  poll = select.poll()
  poll.register(asked, select.POLLIN)
  with listening:
    while any(event & select.POLLIN for _, event in poll.poll()):
      with contextlib.suppress(FileNotFoundError):  # It was killed meanwhile.
        question = bytearray(_QUESTION.size)
        fcntl.ioctl(asked, _RECEIVE, question)
        fields = _QUESTION.unpack(question)
        number, theirs = fields[0], fields[_FIRST_ARGUMENT]
        replacement = _REPLACEMENT.pack(
          number, _AT_THEIR_NUMBER, listening.fileno(), theirs, os.O_CLOEXEC
        )
        fcntl.ioctl(asked, _REPLACE, replacement)
        fcntl.ioctl(asked, _SEND, bytearray(_ANSWER.pack(number, 0, 0, 0)))
  os.close(asked)
