"""Tests of what is given for running workers on a cluster."""

import configparser
import pathlib
import shlex

import pytest
import yaml

from training_loops import command_line, train_flags, worker

_DEPLOY = pathlib.Path(__file__).parents[1] / 'deploy'
_KUBERNETES = [*yaml.safe_load_all((_DEPLOY / 'kubernetes.yaml').read_text())]
_KINDS = [manifest['kind'] for manifest in _KUBERNETES]


@pytest.mark.parametrize('manifest', _KUBERNETES, ids=_KINDS)
@pytest.mark.parametrize('version', ['1.27', '1.34'])
def test_kubernetes_accepts_each_manifest(manifest, version):
  kubernetes_validate = pytest.importorskip('kubernetes_validate')
  kubernetes_validate.validate(manifest, version, strict=True)


def test_what_kubernetes_does_not_know_is_refused():
  kubernetes_validate = pytest.importorskip('kubernetes_validate')
  manifest = {**_KUBERNETES[0], 'replicas': 3}
  with pytest.raises(kubernetes_validate.ValidationError):
    kubernetes_validate.validate(manifest, '1.34', strict=True)


def _containers():
  for manifest in _KUBERNETES:
    template = manifest['spec'].get('template')
    if template:
      yield template, template['spec']['containers'][0]


def _parsed(module, *arguments):
  program = {
    'training_loops.worker': worker.PROGRAM,
    'training_loops.train': train_flags.PROGRAM,
  }[module]
  return command_line.parse(program, arguments)


def test_the_programs_take_the_flags_of_the_containers():
  commands = [_parsed(*container['args']) for _, container in _containers()]
  of_worker, of_run = commands
  (stateful_set,) = (m for m in _KUBERNETES if m['kind'] == 'StatefulSet')
  (service,) = (m for m in _KUBERNETES if m['kind'] == 'Service')
  (policy,) = (m for m in _KUBERNETES if m['kind'] == 'NetworkPolicy')
  name = stateful_set['metadata']['name']
  domain, port = service['metadata']['name'], of_worker['port']
  replicas = range(stateful_set['spec']['replicas'])
  expected = [f'{name}-{i}.{domain}:{port}' for i in replicas]
  assert of_run['workers'].split(',') == expected
  assert [p['port'] for p in service['spec']['ports']] == [port]
  (ingress,) = policy['spec']['ingress']
  assert [p['port'] for p in ingress['ports']] == [port]
  (container,) = stateful_set['spec']['template']['spec']['containers']
  for probe in ('readinessProbe', 'livenessProbe'):
    assert container[probe]['grpc']['port'] == of_worker['health_port']


def test_directories_in_flags_are_there_in_the_containers():
  for template, container in _containers():
    mounted = {mount['mountPath'] for mount in container['volumeMounts']}
    names = {mount['name'] for mount in container['volumeMounts']}
    assert names == {volume['name'] for volume in template['spec']['volumes']}
    values = (argument.partition('=')[2] for argument in container['args'])
    for path in (value for value in values if value.startswith('/')):
      assert any(pathlib.Path(path).is_relative_to(m) for m in mounted), path


def test_keys_are_not_for_everybody():
  for template, _ in _containers():
    secrets = [v['secret'] for v in template['spec']['volumes'] if 'secret' in v]
    assert secrets
    assert all(secret['defaultMode'] & 0o007 == 0 for secret in secrets)


def test_the_worker_takes_the_flags_of_the_service():
  unit = configparser.ConfigParser(strict=False, interpolation=None)
  unit.optionxform = str
  unit.read(_DEPLOY / 'tff-worker.service')
  assert {'Unit', 'Service', 'Install'} == set(unit.sections())
  service = unit['Service']
  python, *words = shlex.split(service['ExecStart'])
  assert pathlib.Path(python).is_relative_to(service['WorkingDirectory'])
  assert words[0] == '-m'
  _parsed(*words[1:])
  assert service['Restart'] == 'always'
