"""The flags that the benchmarks of speed share."""

from absl import flags

ROUNDS = flags.DEFINE_integer(
  'rounds', None, 'Rounds to measure; each benchmark has its default.', lower_bound=1
)
SEED = flags.DEFINE_integer('seed', 0, 'Seed of data and cohorts.', lower_bound=0)
OUTPUT = flags.DEFINE_string(
  'output', None, 'The page whose numbers are renewed; files go beside it.'
)
