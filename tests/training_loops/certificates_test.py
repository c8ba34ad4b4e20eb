"""Tests of certificates for a trial."""

import pathlib
import subprocess
import sys

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
import pytest

from training_loops import certificates
from training_loops.options import UserError

_ROOT = pathlib.Path(__file__).parents[2]


def _certificate(directory):
  return x509.load_pem_x509_certificate((directory / 'cert.pem').read_bytes())


def _extension(certificate, kind):
  return certificate.extensions.get_extension_for_class(kind).value


def test_one_command_makes_those_of_drivers_and_of_workers(tmp_path):
  command = [sys.executable, '-m', 'training_loops.make_certificates']
  done = subprocess.run(
    [
      *command,
      f'--output_dir={tmp_path / "c"}',
      '--hosts=worker-1,10.0.0.3',
      '--days=7',
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr
  worker, driver = (_certificate(tmp_path / 'c' / who) for who in ('worker', 'driver'))
  names = _extension(worker, x509.SubjectAlternativeName)
  assert names.get_values_for_type(x509.DNSName) == ['worker-1']
  assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ['10.0.0.3']
  usages = [[*_extension(own, x509.ExtendedKeyUsage)] for own in (worker, driver)]
  assert usages == [
    [ExtendedKeyUsageOID.SERVER_AUTH],
    [ExtendedKeyUsageOID.CLIENT_AUTH],
  ]
  authority = x509.load_pem_x509_certificate(
    (tmp_path / 'c' / 'authority' / 'ca.pem').read_bytes()
  )
  for own in (worker, driver):
    own.verify_directly_issued_by(authority)
    assert (own.not_valid_after_utc - own.not_valid_before_utc).days == 7
    assert not _extension(own, x509.BasicConstraints).ca
  assert _extension(authority, x509.BasicConstraints).ca


def test_keys_are_for_their_owner_alone(tmp_path):
  certificates.make(tmp_path, ['localhost'], days=1)
  keys = [*tmp_path.rglob('key.pem')]
  assert len(keys) == 3
  assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


def test_those_that_are_there_are_left_alone(tmp_path):
  certificates.make(tmp_path, ['localhost'], days=1)
  before = (tmp_path / 'worker' / 'cert.pem').read_bytes()
  with pytest.raises(UserError, match='not empty'):
    certificates.make(tmp_path, ['localhost'], days=1)
  assert (tmp_path / 'worker' / 'cert.pem').read_bytes() == before


@pytest.mark.parametrize(
  ('hosts', 'days', 'message'),
  [
    (['wörker'], 1, "'wörker' is no address"),
    (['worker-1', ' worker-2'], 1, "' worker-2' is no address"),
    ([''], 1, "'' is no address"),
    (['localhost'], 3_000_000, '--days=3000000: expected at most'),
  ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
  hosts, days, message, tmp_path
):
  with pytest.raises(UserError, match=message):
    certificates.make(tmp_path / 'c', hosts, days)
  assert not (tmp_path / 'c').exists()


@pytest.mark.parametrize(
  ('name', 'other', 'message'),
  [
    ('ca.pem', None, 'ca.pem is no certificate'),
    ('cert.pem', None, 'cert.pem is no certificate, or '),
    ('key.pem', None, r'key\.pem is not its key'),
    ('key.pem', 'worker', r'key\.pem is not its key'),
    ('cert.pem', 'worker', r'key\.pem is not its key'),
  ],
)
def test_what_is_no_certificate_or_of_another_key_is_refused(
  name, other, message, tmp_path
):
  certificates.make(tmp_path, ['localhost'], days=1)
  words = (tmp_path / other / name).read_bytes() if other else b'other words'
  (tmp_path / 'driver' / name).write_bytes(words)
  with pytest.raises(UserError, match=message):
    certificates.read(str(tmp_path / 'driver'))


def test_a_key_that_everybody_may_read_is_refused(tmp_path):
  certificates.make(tmp_path, ['localhost'], days=1)
  own = certificates.read(str(tmp_path / 'driver'))
  assert 'PRIVATE KEY' not in repr(own)
  (tmp_path / 'driver' / 'key.pem').chmod(0o644)
  with pytest.raises(UserError, match=r'everybody may read .*key\.pem.*chmod 600'):
    certificates.read(str(tmp_path / 'driver'))
