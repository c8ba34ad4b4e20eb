"""The flags that the benchmarks of speed share."""

from absl import flags

_MODELS = ('logistic', 'cnn')

MODELS = flags.DEFINE_list('models', list(_MODELS), 'Which models to train.')
flags.register_validator(
  'models', lambda names: set(names) <= set(_MODELS), f'Known are {", ".join(_MODELS)}.'
)
ROUNDS = flags.DEFINE_integer('rounds', 10, 'Rounds to measure.', lower_bound=1)
SEED = flags.DEFINE_integer('seed', 0, 'Seed of data and cohorts.')
OUTPUT = flags.DEFINE_string('output', None, 'A Markdown file to write the table to.')
