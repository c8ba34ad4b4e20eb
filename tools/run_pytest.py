"""What Bazel starts for a test: pytest on the files named as arguments."""

import sys

import pytest

if __name__ == '__main__':
  sys.exit(pytest.main(['-m', 'not long', '-p', 'no:cacheprovider', *sys.argv[1:]]))
