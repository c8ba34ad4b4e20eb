"""Certificates of a driver and its workers: reading them, and making some for a trial.

A directory of certificates has three files: `ca.pem`, the authority whose signature
makes somebody one of ours; `cert.pem`, who one is oneself; `key.pem`, its private key.

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import dataclasses
import datetime
import ipaddress
import os
import pathlib
import re
import ssl
from typing import Any

from training_loops.options import UserError

_CA, _CERTIFICATE, _KEY = 'ca.pem', 'cert.pem', 'key.pem'
_BACKDATED = datetime.timedelta(hours=1)  # Clocks differ.
_MAX_DAYS = 36500  # Far more has no date.
_NAME = re.compile(r'[A-Za-z0-9*._-]+')


@dataclasses.dataclass(frozen=True)
class Certificates:
  """The contents of a directory of certificates."""

  ca: bytes
  certificate: bytes
  key: bytes = dataclasses.field(repr=False)


def read(directory: str) -> Certificates:
  """Reads a directory of certificates.

  Raises:
    UserError: If a file is not there, or not what its name says, or others can read the
      key.
  """
  path = pathlib.Path(directory)
  contents = []
  for name in (_CA, _CERTIFICATE, _KEY):
    try:
      contents.append((path / name).read_bytes())
    except OSError as error:
      raise UserError(
        f'--certificates={directory} needs the files {_CA}, {_CERTIFICATE} and '
        f'{_KEY}: {name}: {error.strerror}. For a trial, '
        'training_loops.make_certificates makes some.'
      ) from None
  if (path / _KEY).stat().st_mode & 0o007:
    raise UserError(
      f'everybody may read {path / _KEY}, which would let them in: chmod 600 it.'
    )
  _check(path)
  return Certificates(*contents)


def _check(path: pathlib.Path) -> None:
  """Refuses what gRPC would, which says it as if a port could not be had."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  try:
    context.load_verify_locations(path / _CA)
  except ssl.SSLError:
    raise UserError(f'{path / _CA} is no certificate.') from None
  try:
    # A key with a password would be asked for on the terminal.
    context.load_cert_chain(path / _CERTIFICATE, path / _KEY, password=lambda: '')
  except ssl.SSLError:
    raise UserError(
      f'{path / _CERTIFICATE} is no certificate, or {path / _KEY} is not its key, '
      'without a password.'
    ) from None


def make(directory: pathlib.Path, hosts: Sequence[str], days: int) -> None:
  """Makes an authority, and certificates of a driver and of workers that it has signed.

  They are in `driver` and `worker`; the authority's own key stays beside these, to sign
  more. A worker's certificate is none for a driver: whoever takes over a worker's
  machine cannot have others compute.

  Args:
    directory: Where they go; not yet there, or empty.
    hosts: The names and addresses that drivers know the workers by.
    days: How long they are valid.

  Raises:
    UserError: If there is something in the directory, or a host or the days cannot be.
  """
  from cryptography import x509
  from cryptography.x509.oid import ExtendedKeyUsageOID

  if directory.exists() and any(directory.iterdir()):
    raise UserError(f'{directory} is not empty: name a new directory.')
  if days > _MAX_DAYS:
    raise UserError(f'--days={days}: expected at most {_MAX_DAYS}.')
  names = [_alternative_name(host) for host in hosts]
  authority = _Signed('Authority of a trial', days, None)
  own = directory / 'authority'
  _write(own, authority, None)
  for who, usage, alternatives in (
    ('driver', ExtendedKeyUsageOID.CLIENT_AUTH, []),
    ('worker', ExtendedKeyUsageOID.SERVER_AUTH, names),
  ):
    extensions: list[Any] = [x509.ExtendedKeyUsage([usage])]
    if alternatives:
      extensions.append(x509.SubjectAlternativeName(alternatives))
    _write(directory / who, _Signed(who, days, authority, extensions), authority)


class _Signed:
  """A key of its own, and a certificate for it."""

  def __init__(
    self,
    name: str,
    days: int,
    authority: '_Signed | None',
    extensions: Sequence[Any] = (),
  ):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    self.key = ec.generate_private_key(ec.SECP256R1())
    self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = authority or self
    now = datetime.datetime.now(datetime.UTC)
    is_authority = authority is None
    usage = dict.fromkeys(
      (
        'content_commitment',
        'key_encipherment',
        'data_encipherment',
        'key_agreement',
        'encipher_only',
        'decipher_only',
      ),
      False,
    )
    builder = (
      x509.CertificateBuilder()
      .subject_name(self.name)
      .issuer_name(signer.name)
      .public_key(self.key.public_key())
      .serial_number(x509.random_serial_number())
      .not_valid_before(now - _BACKDATED)
      .not_valid_after(now + datetime.timedelta(days=days))
      .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
      .add_extension(
        x509.KeyUsage(
          digital_signature=not is_authority,
          key_cert_sign=is_authority,
          crl_sign=is_authority,
          **usage,
        ),
        critical=True,
      )
    )
    for extension in extensions:
      builder = builder.add_extension(extension, critical=False)
    self.certificate = builder.sign(signer.key, hashes.SHA256())


def _alternative_name(host: str) -> Any:
  from cryptography import x509

  try:
    return x509.IPAddress(ipaddress.ip_address(host))
  except ValueError:
    if not _NAME.fullmatch(host):
      raise UserError(
        f'--hosts: {host!r} is no address, and no name as it is looked up: letters of '
        'other alphabets are written as xn--...'
      ) from None
    return x509.DNSName(host)


def _write(directory: pathlib.Path, own: _Signed, authority: _Signed | None) -> None:
  from cryptography.hazmat.primitives import serialization

  def pem(signed: _Signed) -> bytes:
    return signed.certificate.public_bytes(serialization.Encoding.PEM)

  directory.mkdir(parents=True, mode=0o700)
  (directory / _CA).write_bytes(pem(authority or own))
  if authority:
    (directory / _CERTIFICATE).write_bytes(pem(own))
  key = own.key.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
  )
  with open(os.open(directory / _KEY, os.O_WRONLY | os.O_CREAT, 0o600), 'wb') as file:
    file.write(key)
