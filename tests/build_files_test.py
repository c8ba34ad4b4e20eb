"""The BUILD files say of every source what it is and what it needs."""

import ast
import functools
from importlib import metadata
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Other projects that a benchmark is run against; they are not in requirements.txt.
PEERS = {'fedjax', 'flwr', 'pfl', 'ray', 'torch'}
providers = functools.cache(metadata.packages_distributions)
RULES = ('py_binary', 'py_library', 'py_test')


def python_files(root: pathlib.Path) -> list[pathlib.Path]:
  skipped = re.compile(r'(^|/)(\.[^/]*|build|dist|runs|__pycache__)/')
  files = (path.relative_to(root) for path in sorted(root.glob('[!.]*/**/*.py')))
  return [file for file in files if not skipped.search(file.as_posix())]


def targets(
  root: pathlib.Path,
) -> dict[str, tuple[str, list[str], list[str], set[str]]]:
  """Returns (rule, files, labels, distributions) by label, from the BUILD files."""
  found: dict[str, tuple[str, list[str], list[str], set[str]]] = {}
  for directory in sorted({file.parent for file in python_files(root)}):
    package = directory.as_posix()
    text = root / directory / 'BUILD'
    for node in ast.parse(text.read_text() if text.exists() else '').body:
      assert isinstance(node, ast.Expr), f'{text}: not a call'
      assert isinstance(node.value, ast.Call), f'{text}: not a call'
      rule = ast.unparse(node.value.func)
      if rule in RULES:
        values = {k.arg: k.value for k in node.value.keywords}
        name = f'//{package}:{ast.literal_eval(values["name"])}'
        assert name not in found, f'{name} is there twice'
        deps = getattr(values.get('deps'), 'elts', [])
        labels = [ast.literal_eval(d) for d in deps if isinstance(d, ast.Constant)]
        labels = [f'//{package}{d}' if d[0] == ':' else d for d in labels]
        labels = [d if ':' in d else f'{d}:{d.split("/")[-1]}' for d in labels]
        needs = {ast.literal_eval(d.args[0]) for d in deps if isinstance(d, ast.Call)}
        files = [
          f if f[:2] == '//' else f'//{package}:{f}'
          for f in ast.literal_eval(values['srcs'])
        ]
        found[name] = rule, files, labels, needs
  return found


def imported(source: str, packages: set[str]) -> set[str]:
  """Returns what a file imports, wherever in it, also by importlib.import_module."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  if 'import_module(' in source:
    quoted = re.findall(r"'([a-z_]+)(\.[a-z_.]+)'", source)
    names |= {top + rest for top, rest in quoted if top in packages}
  return names


def problems(root: pathlib.Path) -> list[str]:
  """Returns what is wrong with the BUILD files of a tree, in words."""
  wrong = []
  known = targets(root)
  pins = set(
    re.findall(r'^([a-z0-9-]+)==', (root / 'requirements.txt').read_text(), re.M)
  )
  home: dict[str, str] = {}  # Labels by the module that they provide.
  for label, (_, files, _, _) in known.items():
    for source_label in files:
      path = source_label[2:].replace(':', '/')
      if not (root / path).exists():
        wrong.append(f'{label} has the file {path}, which is not there')
    home[files[0][2:-3].replace(':', '/').replace('/', '.')] = label
  packages = {file.parts[0] for file in python_files(root) if len(file.parts) > 1}
  for file in python_files(root):
    module = '.'.join(file.with_suffix('').parts)
    if module not in home:
      wrong.append(f'{file} is in no target')
      continue
    label = home[module]
    rule, _, labels, distributions = known[label]
    source = (root / file).read_text()
    kind = 'py_library'
    if re.search(r'^if __name__ == .__main__.:', source, re.M):
      kind = 'py_binary'
    if file.stem.endswith('_test'):
      kind = 'py_test'
    if rule != kind:
      wrong.append(f'{label} is a {rule}, not a {kind}')
    wrong += [
      f'{label} needs {d}, which is not there' for d in labels if d not in known
    ]
    wrong += [f'{label} needs {d}, which is not pinned' for d in distributions - pins]
    for name in imported(source, packages):
      top = name.split('.')[0]
      if top in packages:
        # The module itself, or the one that the last part is a name of.
        owner, parent = name, name.rpartition('.')[0]
        options = [owner, f'{owner}.__init__', parent, f'{parent}.__init__']
        owners = [home[option] for option in options if option in home]
        if not owners:
          wrong.append(f'{label} imports {name}, of which there is no target')
        elif owners[0] not in [*labels, label]:
          wrong.append(f'{label} imports {name} without {owners[0]}')
      elif top not in sys.stdlib_module_names and top not in PEERS:
        names = {re.sub('[-_.]+', '-', d).lower() for d in providers().get(top, [])}
        if not names & distributions:
          wrong.append(f'{label} imports {name} without one of {sorted(names)}')
  return wrong + cycles({label: labels for label, (_, _, labels, _) in known.items()})


def cycles(graph: dict[str, list[str]]) -> list[str]:
  """Returns the targets that need each other in a circle, which Bazel refuses."""
  graph = {label: [d for d in deps if d in graph] for label, deps in graph.items()}
  while leaves := {label for label, deps in graph.items() if not deps}:
    graph = {
      label: [d for d in deps if d not in leaves]
      for label, deps in graph.items()
      if label not in leaves
    }
  return [f'in or behind a circle: {", ".join(sorted(graph))}'] if graph else []


def test_build_files_describe_all_sources():
  assert not problems(ROOT), 'run `make build-files`'


@pytest.fixture(name='tree')
def small_tree(tmp_path: pathlib.Path) -> pathlib.Path:
  """A project of a library, a program, a test, and their BUILD file."""
  files = {
    'requirements.txt': 'numpy==1 \\\npytest==1 \\\n',
    'p/a.py': 'import os\n\ndef f():\n  import numpy as np\n  return os, np\n',
    'p/b.py': "from p import a\nif __name__ == '__main__':\n  a.f()\n",
    'p/a_test.py': 'from p.a import f\nimport pytest\n',
    'p/BUILD': """load("@rules_python//python:defs.bzl", "py_library")
py_library(name = "a", srcs = ["a.py"], deps = [requirement("numpy")])
py_binary(name = "b", srcs = ["b.py"], deps = [":a"])
py_test(name = "a_test", srcs = ["a_test.py"], deps = ["//p:a", requirement("pytest")])
""",
  }
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  return tmp_path


def test_sound_tree_has_no_problems(tree: pathlib.Path):
  assert problems(tree) == []


@pytest.mark.parametrize(
  ('file', 'old', 'new', 'expected'),
  [
    ('p/c.py', '', 'X = 1\n', 'p/c.py is in no target'),
    ('p/c_test.py', '', 'X = 1\n', 'p/c_test.py is in no target'),
    ('p/BUILD', 'py_binary(', 'py_library(', '//p:b is a py_library, not a py_binary'),
    ('p/BUILD', 'py_test(', 'py_library(', '//p:a_test is a py_library, not a py_test'),
    ('p/BUILD', '[":a"]', '[]', '//p:b imports p.a without //p:a'),
    ('p/BUILD', '["//p:a", ', '[', '//p:a_test imports p.a.f without //p:a'),
    ('p/BUILD', '[":a"]', '[":a", "//q:x"]', '//p:b needs //q:x, which is not there'),
    ('p/BUILD', '["a.py"]', '["a.py", "z.py"]', '//p:a has the file p/z.py'),
    ('p/BUILD', 'requirement("numpy")', '', '//p:a imports numpy without'),
    (
      'requirements.txt',
      'numpy==1',
      'six==1',
      '//p:a needs numpy, which is not pinned',
    ),
    ('p/BUILD', '[requirement("numpy")', '[":b", requirement("numpy")', 'circle'),
    ('p/b.py', 'from p import a\n', 'from p import a, gone\n', 'no target'),
  ],
)
def test_fault_is_found(
  tree: pathlib.Path, file: str, old: str, new: str, expected: str
):
  path = tree / file
  text = path.read_text() if path.exists() else ''
  path.write_text(text.replace(old, new, 1))
  assert any(expected in problem for problem in problems(tree)), problems(tree)


@pytest.mark.slow
def test_generator_is_deterministic_and_mends_what_is_missing(tmp_path: pathlib.Path):
  for file in [*python_files(ROOT), pathlib.Path('requirements.txt')]:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes((ROOT / file).read_bytes())
  assert problems(tmp_path)
  command = [sys.executable, str(tmp_path / 'tools' / 'build_files.py')]
  first = subprocess.run(command, check=True, capture_output=True, text=True)
  again = subprocess.run(command, check=True, capture_output=True, text=True)
  assert 'wrote tff_algorithms/BUILD' in first.stdout
  assert again.stdout == ''
  assert problems(tmp_path) == []
