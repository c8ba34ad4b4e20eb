"""Learning-rate schedules over rounds by name: their flags, and what they make."""

from collections.abc import Mapping
import typing
from typing import Any

from training_loops.options import Option, choice, number

if typing.TYPE_CHECKING:
  from tff_algorithms import schedules


def schedule_option(who: str) -> Option:
  """The choice `--<who>_lr_schedule`, with its parameter."""

  def rounds(name: str, default: float, help_text: str) -> list[Option]:
    return [number(f'{who}_lr_{name}', default, help_text, above=0)]

  return choice(
    f'{who}_lr_schedule',
    'constant',
    f'How the {who} learning rate goes over the rounds.',
    {
      'constant': [],
      'exponential': rounds('half_life', 100.0, 'Rounds in which it halves.'),
      'inverse_sqrt': rounds('offset', 1.0, 'o in sqrt(o / (o + round)).'),
      'linear_warmup': rounds('warmup', 10.0, 'Rounds until it is reached.'),
    },
  )


def build_schedule(who: str, config: Mapping[str, Any]) -> 'schedules.Schedule':
  """The schedule that `--<who>_lr_schedule` and its parameter describe."""
  from tff_algorithms import schedules

  name = config[f'{who}_lr_schedule']
  if name == 'exponential':
    return schedules.exponential(config[f'{who}_lr_half_life'])
  if name == 'inverse_sqrt':
    return schedules.inverse_sqrt(config[f'{who}_lr_offset'])
  if name == 'linear_warmup':
    return schedules.linear_warmup(config[f'{who}_lr_warmup'])
  return schedules.constant()
