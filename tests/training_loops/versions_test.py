"""Tests of what a run is said to be made with."""

import platform
import re

import numpy as np

from training_loops import versions


def test_the_versions_of_everything_that_makes_the_numbers_are_there():
  found = versions.versions()
  assert found['python'] == platform.python_version()
  assert found['numpy'] == np.__version__
  assert found['tensorflow-federated'] == '0.87.0'
  assert re.fullmatch(r'\d+\.\d+\.\d+.*', found['tff-algorithms'])


def test_the_commit_is_a_hash_or_none_outside_a_repository(monkeypatch, tmp_path):
  commit = versions.git_commit()
  assert commit is None or re.fullmatch(r'[0-9a-f]{40}(-dirty)?', commit)
  monkeypatch.setattr(versions, '_SOURCE', tmp_path / 'versions.py')
  assert versions.git_commit() is None
