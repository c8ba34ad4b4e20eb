"""Writes the BUILD files of all directories with Python sources, from their imports.

One target a file: py_test for a test, py_binary for what has a main program, otherwise
py_library. Imports inside functions count as well.
"""

import ast
from collections.abc import Iterator
import os
from pathlib import Path
import sys

ROOT = Path(__file__).resolve().parent.parent

# Distributions by import name, where the name with dashes is not it. TensorFlow is not
# among the pins of what needs it: tensorflow-cpu stands in for it.
DISTRIBUTIONS = {
  'PIL': ['pillow'],
  'absl': ['absl-py'],
  'grpc': ['grpcio'],
  'sklearn': ['scikit-learn'],
  'tensorflow': ['tensorflow-cpu'],
  'tensorflow_datasets': ['tensorflow-cpu', 'tensorflow-datasets'],
  'tensorflow_federated': ['tensorflow-cpu', 'tensorflow-federated'],
  'tree': ['dm-tree'],
  'vl_convert': ['vl-convert-python'],
  'yaml': ['pyyaml'],
}
# Other projects that a benchmark is run against, each in an environment of its own.
NOT_PINNED = {'fedjax', 'flwr', 'pfl', 'ray', 'torch'}
# What a source may read from its own directory.
DATA = {'.csv', '.html', '.yaml'}
# These look at the whole checkout, which Bazel does not give them.
OF_THE_CHECKOUT = {'build_files_test', 'deploy_test', 'setup_test'}


def sources(root: Path) -> dict[str, Path]:
  """Returns the project's Python files by module name; a package is its __init__.py."""
  found = {}
  for directory, names, files in os.walk(root):
    names[:] = [
      name
      for name in sorted(names)
      if name[0] != '.' and name not in ('build', 'dist', 'runs', '__pycache__')
    ]
    for file in sorted(files):
      path = Path(directory, file)
      if path.suffix == '.py' and path.parent != root:
        parts = path.relative_to(root).with_suffix('').parts
        found['.'.join(part for part in parts if part != '__init__')] = path
  return found


def imports(tree: ast.AST, module: str, modules: dict[str, Path]) -> Iterator[str]:
  """Yields the modules that a file imports, some of them as `module.name`."""
  by_name = any(
    isinstance(node, ast.Attribute) and node.attr == 'import_module'
    for node in ast.walk(tree)
  )
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise ValueError(f'{module}: relative imports are not supported')
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
      # `importlib.import_module` of a name, or of a name inside this package.
      for name in (node.value, f'{module}.{node.value}'):
        if '.' in name and find(name, modules):
          yield name


def find(name: str, modules: dict[str, Path]) -> str | None:
  """Returns the module of the project that `name` is, or is defined in, if any."""
  while name and name not in modules:
    name = name.rpartition('.')[0]
  return name or None


def label(module: str, modules: dict[str, Path]) -> str:
  """Returns the label of a module's target; a package's is named as its directory."""
  path = modules[module]
  name = path.parent.name if path.stem == '__init__' else path.stem
  return f'//{path.parent.relative_to(ROOT).as_posix()}:{name}'


def dependencies(
  tree: ast.AST, module: str, modules: dict[str, Path]
) -> tuple[set[str], set[str]]:
  """Returns the labels and the distributions that a file needs."""
  packages = {name.partition('.')[0] for name in modules}
  labels, distributions = set(), set()
  for name in imports(tree, module, modules):
    top = name.partition('.')[0]
    if top in packages:
      if found := find(name, modules):
        labels.add(label(found, modules))
    elif top not in sys.stdlib_module_names and top not in NOT_PINNED:
      distributions.update(DISTRIBUTIONS.get(top, [top.replace('_', '-')]))
  return labels - {label(module, modules)}, distributions


def attribute(name: str, values: list[str]) -> str:
  """Returns a list-valued attribute, formatted as buildifier does."""
  if len(values) == 1:
    return f'    {name} = [{values[0]}],\n'
  return f'    {name} = [\n' + ''.join(f'        {v},\n' for v in values) + '    ],\n'


def target(module: str, modules: dict[str, Path]) -> tuple[str, str]:
  """Returns the rule and the text of a module's target."""
  path = modules[module]
  tree = ast.parse(path.read_text())
  labels, distributions = dependencies(tree, module, modules)
  has_main = any(
    isinstance(node, ast.If) and '__main__' in ast.unparse(node.test)
    for node in ast.iter_child_nodes(tree)
  )
  here, _, name = label(module, modules).partition(':')
  if name.endswith('_test'):
    # Bazel would only import it: pytest has to be started, and wants the conftest.py.
    rule = 'py_test'
    labels.add('//tests:conftest')
    distributions.add('pytest')
    text = '    size = "large",\n'
    text += attribute('srcs', [f'"{path.name}"', '"//tools:run_pytest.py"'])
    text += f'    args = ["$(location {path.name})"],\n'
    text += '    main = "//tools:run_pytest.py",\n'
    text += '    tags = ["manual"],\n' if name in OF_THE_CHECKOUT else ''
  else:
    rule = 'py_binary' if has_main else 'py_library'
    text = '    testonly = True,\n' if here.startswith('//tests') else ''
    text += attribute('srcs', [f'"{path.name}"'])
  # As buildifier has it: those of this directory first and without it, then the others,
  # without the name if it is the directory's.
  near = {found for found in labels if found.startswith(f'{here}:')}
  deps = [f'"{found.removeprefix(here)}"' for found in sorted(near)]
  for found in sorted(labels - near, key=lambda f: f.replace(':', '/').split('/')):
    directory, _, last = found.partition(':')
    deps.append(f'"{directory if directory.endswith(f"/{last}") else found}"')
  deps += [f'requirement("{found}")' for found in sorted(distributions)]
  # Files that the source names by strings and that lie beside it.
  data = sorted(
    {
      f'"{node.value}"'
      for node in ast.walk(tree)
      if isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and Path(node.value).suffix in DATA
      and (path.parent / node.value).is_file()
    }
  )
  text += attribute('data', data) if data else ''
  text += attribute('deps', deps) if deps else ''
  return rule, f'{rule}(\n    name = "{name}",\n{text})\n'


def build_file(package: list[str], modules: dict[str, Path]) -> str:
  """Returns the text of the BUILD file for the modules of one directory."""
  targets = [target(module, modules) for module in package]
  body = '\n'.join(text for _, text in targets)
  rules = ''.join(f', "{rule}"' for rule in sorted({rule for rule, _ in targets}))
  loads = f'load("@rules_python//python:defs.bzl"{rules})\n'
  if 'requirement(' in body:
    loads = 'load("@pypi//:requirements.bzl", "requirement")\n' + loads
  exports = ''
  if 'tools.run_pytest' in package:
    exports = 'exports_files(["run_pytest.py"])\n\n'
  return (
    f'{loads}\npackage(default_visibility = ["//visibility:public"])\n\n'
    f'licenses(["notice"])\n\n{exports}{body}'
  )


def main() -> None:
  """Writes the BUILD files, and says which changed."""
  modules = sources(ROOT)
  for directory in sorted({path.parent for path in modules.values()}):
    package = [name for name, path in modules.items() if path.parent == directory]
    file, text = directory / 'BUILD', build_file(package, modules)
    if not file.exists() or file.read_text() != text:
      file.write_text(text)
      print(f'wrote {file.relative_to(ROOT)}')


if __name__ == '__main__':
  main()
