"""The states of a run's clients on disk, in step with its checkpoints.

An SQLite file and, beside it, one of slots for the states themselves, of which SQLite
would make several copies. A client's state is a row, with its slot and the version that
it was written for; a client that has none has never taken part. All that is written
between two checkpoints is one transaction, which SQLite takes back if the process is
killed. `commit` ends it, just before a checkpoint is written, and keeps the rows of the
two last commits: if the process is killed between the two, or the last checkpoint turns
out damaged, `restore` goes back to the commit of the checkpoint before.

Each state has a CRC-32, over the client's id too, and a checkpoint has a hash over all
of these: all are checked when a run is continued, and a state again when it is read.
The hash is a sum, so that a commit follows it without a look at clients whose states
have not changed.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import hashlib
import json
import pathlib
import sqlite3
from typing import Any, NamedTuple, NoReturn
import zlib

import tree

from tff_algorithms import client_state_files
from tff_algorithms.client_states import ClientStates
from training_loops import slot_file
from training_loops.options import UserError

_FORMAT = 1
_REMEDY = 'Put back a copy of the whole directory, or begin anew in another one.'
# What comes of reading a damaged file as if it were none.
_NONSENSE = (TypeError, ValueError, KeyError)

# How long somebody else may look into the file before a commit gives up.
_PATIENCE_SECONDS = 60

_TABLES = {
  'made_for': 'text TEXT NOT NULL',
  'rounds': (
    'round INTEGER PRIMARY KEY, version INTEGER NOT NULL, '
    'num_clients INTEGER NOT NULL, digest TEXT NOT NULL'
  ),
  'states': (
    'client TEXT NOT NULL, version INTEGER NOT NULL, checksum INTEGER NOT NULL, '
    'slot INTEGER NOT NULL, PRIMARY KEY (client, version)'
  ),
}

# A version is kept if it is a client's newest at one of the commits that are kept. None
# has become anything else of clients without a version after the oldest one before.
_NOT_KEPT = """
  client IN (SELECT client FROM states WHERE version > :oldest) AND version NOT IN (
    SELECT (
      SELECT max(newest.version) FROM states AS newest
      WHERE newest.client = states.client AND newest.version <= rounds.version
    ) AS kept
    FROM (SELECT version FROM rounds ORDER BY round DESC LIMIT 2) AS rounds
    WHERE kept IS NOT NULL
  )
"""
# SQLite takes the other columns from the row with the maximum.
_NEWEST = 'SELECT client, checksum, max(version) FROM states GROUP BY client'
_CHANGED = """
  SELECT client, checksum, (
    SELECT old.checksum FROM states AS old
    WHERE old.client = states.client AND old.version < states.version
    ORDER BY old.version DESC LIMIT 1
  ) FROM states WHERE version = ?
"""


class ClientStateStore(ClientStates):
  """The states of all clients of a run, and those of the checkpoint before.

  It is to be used by one process at a time; the run's directory is locked.
  """

  def __init__(self, path: pathlib.Path, first: Any, made_for: Mapping[str, Any]):
    """Initializes the store; `restore` opens it.

    Args:
      path: The SQLite file; that of the slots has the suffix `.data` instead.
      first: What a client starts with.
      made_for: JSON-like data that say whose states these are; with others the file is
        refused.
    """
    super().__init__(first)
    self._path = path
    self._data_path = path.with_suffix('.data')
    leaves = tree.flatten_with_path(self._first)
    types = [['/'.join(map(str, p)), a.dtype.name, list(a.shape)] for p, a in leaves]
    self._made_for = {'format': _FORMAT, **made_for, 'state': types}
    self._connection: Any = _Closed()
    self._slots: Any = _Closed()
    # In use until the next commit, and by nobody afterwards.
    self._dropped: set[int] = set()
    # The last version that the transaction has seen, also if it has taken it back.
    self._begun_after = -1

  def restore(self, round_num: int, record: Mapping[str, Any] | None) -> None:
    """Opens the files as they were at a checkpoint; what came after is taken back.

    Args:
      round_num: The checkpoint's round; 0 to begin with.
      record: What `commit` returned for it, None for round 0.

    Raises:
      UserError: If a file is not there, damaged, another run's or of another round.
        They are left as they are.
    """
    try:
      self._restore(round_num, record)
    except _NONSENSE as error:
      self.close()
      raise UserError(f'{self._path} is damaged: {error}. {_REMEDY}') from error
    except BaseException:
      self.close()
      raise

  def _restore(self, round_num: int, record: Mapping[str, Any] | None) -> None:
    for path in (self._path, self._data_path):
      if round_num and not path.exists():
        raise UserError(
          f'{path} is missing: the checkpoint of round {round_num} is nothing without '
          'the states of its clients. Put the file back, or begin anew in another '
          'directory.'
        )
    with self._errors():
      self._connection = sqlite3.connect(
        self._path, timeout=_PATIENCE_SECONDS, isolation_level=None
      )
      self._open(can_create=round_num == 0)
      self._check_made_for()
      versions = dict(
        self._connection.execute('SELECT round, version FROM rounds ORDER BY round')
      )
      if round_num not in versions:
        has = ' and '.join(map(str, versions))
        raise UserError(
          f'{self._path} has the states of the clients after round {has}, but the run '
          f'would continue after round {round_num}: files of different times were put '
          f'together, or newer checkpoints were damaged or removed. {_REMEDY}'
        )
      self._open_slots(can_create=round_num == 0)
      self._begun_after = -1
      self._begin()
      execute = self._connection.execute
      newer = (versions[round_num],)
      self._dropped = set(self._slots_where('version > ?', newer))
      execute('DELETE FROM states WHERE version > ?', newer)
      execute('DELETE FROM rounds WHERE round > ?', (round_num,))
      found = self._checked()
      if round_num and found._asdict() != record:
        raise UserError(
          f'{self._path} does not have the states that the checkpoint of round '
          f'{round_num} was saved with. {_REMEDY}'
        )
      if found != self._last():
        raise UserError(
          f'{self._path} is damaged: it does not have the states that it says. '
          f'{_REMEDY}'
        )

  def commit(self, round_num: int) -> dict[str, Any]:
    """Makes the states so far those of a round, for good.

    To be called just before the round's checkpoint is written, as often as need be.

    Returns:
      A record for the checkpoint, to give to `restore`.
    """
    with self._errors():
      version = self._begin()
      execute = self._connection.execute
      ((oldest,),) = execute('SELECT min(version) FROM rounds')
      contents = self._last()
      for client_id, checksum, old_checksum in execute(_CHANGED, (version,)):
        contents = contents.changed(client_id, old_checksum, checksum)
      execute(
        'INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)',
        (round_num, version, *contents),
      )
      # In this order: interrupted and done once more, it finds the same ones, or knows
      # of fewer that are free; never of one that somebody has.
      dropped = self._slots_where(_NOT_KEPT, {'oldest': oldest})
      execute(f'DELETE FROM states WHERE {_NOT_KEPT}', {'oldest': oldest})
      self._dropped.update(dropped)
      execute(
        'DELETE FROM rounds WHERE round NOT IN '
        '(SELECT round FROM rounds ORDER BY round DESC LIMIT 2)'
      )
      self._slots.sync()
      execute('COMMIT')
      free, self._dropped = self._dropped, set()
      self._slots.free(free)
      return contents._asdict()

  def close(self) -> None:
    """Closes the files; what was not committed is taken back."""
    self._connection.close()
    self._slots.close()
    self._connection = self._slots = _Closed()

  def _open(self, can_create: bool) -> None:
    execute = self._connection.execute
    execute('PRAGMA synchronous = EXTRA')
    # The first look at the file takes back what a killed process left half done.
    names = {name for (name,) in execute('SELECT tbl_name FROM sqlite_master')}
    if not names and can_create:
      self._create()
    elif names != set(_TABLES):
      raise UserError(f'{self._path} has no states of clients in it. {_REMEDY}')
    self._check_pages()

  def _check_pages(self) -> None:
    """Finds a file that was cut, and damage to its structure."""
    execute = self._connection.execute
    ((num_pages,),) = execute('PRAGMA page_count')
    ((page_bytes,),) = execute('PRAGMA page_size')
    if self._path.stat().st_size != num_pages * page_bytes:
      raise UserError(f'{self._path} is damaged: its size is wrong. {_REMEDY}')
    for (finding,) in execute('PRAGMA integrity_check'):
      if finding != 'ok':
        raise UserError(f'{self._path} is damaged: {finding}. {_REMEDY}')

  def _open_slots(self, can_create: bool) -> None:
    # Those that are about to be dropped, too: it may yet turn out that they are not.
    used = self._slots_where('true')
    try:
      self._slots = slot_file.SlotFile(
        self._data_path, len(self.first), used, can_create
      )
    except ValueError as error:
      raise UserError(f'{self._data_path} is damaged: {error}. {_REMEDY}') from error

  def _slots_where(self, condition: str, values: Any = ()) -> list[int]:
    """The slots of some states."""
    rows = self._connection.execute(
      f'SELECT slot FROM states WHERE {condition}', values
    )
    return [slot for (slot,) in rows]

  def _checked(self) -> '_Contents':
    """What there is, after a look at the state of every client, one at a time."""
    contents = _Contents()
    for client_id, checksum, _ in self._connection.execute(_NEWEST):
      self.get(client_id)
      contents = contents.changed(client_id, None, checksum)
    return contents

  def _last(self) -> '_Contents':
    """What there was at the last commit, as it says."""
    (row,) = self._connection.execute(
      'SELECT num_clients, digest FROM rounds ORDER BY version DESC LIMIT 1'
    )
    return _Contents(*row)

  def _create(self) -> None:
    execute = self._connection.execute
    execute('BEGIN IMMEDIATE')
    for table, columns in _TABLES.items():
      execute(f'CREATE TABLE {table} ({columns})')
    execute('CREATE INDEX states_by_version ON states (version)')
    execute('INSERT INTO made_for VALUES (?)', (json.dumps(self._made_for),))
    execute('INSERT INTO rounds VALUES (0, 0, ?, ?)', _Contents())
    execute('COMMIT')

  def _check_made_for(self) -> None:
    ((text,),) = self._connection.execute('SELECT text FROM made_for')
    found = json.loads(text)
    for name, wanted in self._made_for.items():
      if found.get(name) != wanted:
        raise UserError(
          f'{self._path} was made for another run: its {name} is {found.get(name)}, '
          f"this run's is {wanted}."
        )

  def _begin(self) -> int:
    """The version that is being written, in a transaction that is open or is opened.

    Raises:
      OSError: If SQLite has taken back the one before, as it may after an error of the
        disk: what came after it would stand on states that are gone.
    """
    if not self._connection.in_transaction:
      if self._last_version() <= self._begun_after:  # A commit makes a new one.
        raise OSError(f'{self._path}: what was written since the last commit is gone.')
      self._connection.execute('BEGIN IMMEDIATE')
    self._begun_after = max(self._begun_after, self._last_version())
    return self._begun_after + 1

  def _last_version(self) -> int:
    ((last,),) = self._connection.execute('SELECT max(version) FROM rounds')
    return last

  @property
  def first(self) -> bytes:
    """What a client starts with."""
    return client_state_files.to_bytes(self._first)

  def get(self, client_id: str) -> bytes | None:
    """The state of a client; None if it has never taken part.

    Raises:
      UserError: If it is not what was written.
    """
    with self._errors():
      row = self._connection.execute(
        'SELECT checksum, slot FROM states WHERE client = ? '
        'ORDER BY version DESC LIMIT 1',
        (client_id,),
      ).fetchone()
      if row is None:
        return None
      checksum, slot = row
      content = self._slots.read(slot)
      if checksum != _checksum(client_id, content):
        raise UserError(
          f'{self._data_path} is damaged: the state of client {client_id} is not what '
          f'was written. {_REMEDY}'
        )
      return content

  def put(self, client_id: str, content: bytes) -> None:
    """Keeps a client's state in the place of the one before."""
    with self._errors():
      version = self._begin()
      execute = self._connection.execute
      key = (client_id, version)
      old = self._slots_where('client = ? AND version = ?', key)
      # In this order an interrupt leaves at most a slot behind that nobody has, until
      # `restore` finds it.
      slot = self._slots.write(content)
      checksum = _checksum(client_id, content)
      execute(
        'INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)', (*key, checksum, slot)
      )
      self._slots.free(old)

  def _get(self, client_ids: Sequence[str]) -> Mapping[str, Any]:
    found = {client_id: self.get(client_id) for client_id in client_ids}
    return {
      client_id: client_state_files.from_bytes(value, self._first)
      for client_id, value in found.items()
      if value is not None
    }

  def _put(self, states: Mapping[str, Any]) -> None:
    for client_id, state in states.items():
      self.put(client_id, client_state_files.to_bytes(state))

  @contextlib.contextmanager
  def _errors(self) -> Iterator[None]:
    """Names the file, and tells a damaged one from a full disk."""
    try:
      yield
    except sqlite3.OperationalError as error:
      raise OSError(f'{self._path}: {error}.') from error
    except sqlite3.DatabaseError as error:
      if type(error) is not sqlite3.DatabaseError:
        raise  # It was not used as it should be.
      raise UserError(f'{self._path} is damaged: {error}. {_REMEDY}') from error


class _Contents(NamedTuple):
  """What a store has at a commit.

  Attributes:
    num_clients: How many clients have a state.
    digest: The sum of hashes of each client's id and checksum, in hexadecimals.
  """

  num_clients: int = 0
  digest: str = f'{0:064x}'

  def changed(self, client_id: str, old: int | None, new: int) -> '_Contents':
    """With another checksum of a client, which had none if the old one is None."""
    total = int(self.digest, 16) + _hash(client_id, new)
    if old is None:
      return _Contents(self.num_clients + 1, f'{total % 2**256:064x}')
    total -= _hash(client_id, old)
    return _Contents(self.num_clients, f'{total % 2**256:064x}')


def _hash(client_id: str, checksum: int) -> int:
  text = json.dumps([client_id, checksum])
  return int(hashlib.sha256(text.encode()).hexdigest(), 16)


class _Closed:
  """What stands for a file that is not open."""

  def close(self) -> None:
    """Closes nothing."""

  def __getattr__(self, name: str) -> NoReturn:
    raise RuntimeError('The store is not open: call restore first.')


def _checksum(client_id: str, content: bytes) -> int:
  return zlib.crc32(client_id.encode(), zlib.crc32(content))
