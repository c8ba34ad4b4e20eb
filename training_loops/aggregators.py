"""Aggregators of the clients' updates by name: their flags, and how each is built.

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping
import typing
from typing import Any

from training_loops.options import UserError, choice, number

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff

AGGREGATOR = choice(
  'aggregator',
  'mean',
  'How the updates of the clients become one.',
  {
    'mean': [],
    'adaptive_clipping': [
      number(
        'clipping_quantile',
        0.5,
        'Share of the updates to be left as they are (Andrew 2021, no noise).',
        above=0,
        below=1,
      ),
      number('initial_clip', 0.1, 'The norm to begin with.', above=0),
    ],
    'dp': [
      number('dp_clip', 0.1, 'What the norm of an update is cut to.', above=0),
      number(
        'dp_noise_multiplier',
        1.0,
        'Standard deviation of the noise over the clip norm.',
        at_least=0,
      ),
      number(
        'dp_delta',
        None,
        'delta of the privacy that is told; 1 over the number of clients by default.',
        above=0,
        below=1,
      ),
    ],
  },
)


def check(config: Mapping[str, Any]) -> None:
  """Refuses flags that do not go together.

  Raises:
    UserError: If they do not.
  """
  if config.get('aggregator') != 'dp':
    return
  if config['client_weighting'] != 'uniform':
    raise UserError(
      '--aggregator=dp needs --client_weighting=uniform: the privacy of a client must '
      'not depend on how many examples it has.'
    )
  if config['sampling'] != 'uniform' or config['available_share'] < 1:
    raise UserError(
      '--aggregator=dp needs --sampling=uniform and --available_share=1: the privacy '
      'that is told counts on all clients being equally likely.'
    )
  if config.get('mixed_diagnostics'):
    raise UserError(
      '--mixed_diagnostics averages gradients of the clients without noise, so that '
      'the privacy of --aggregator=dp would be none.'
    )
  if config.get('elastic_sensitivity', 'none') != 'none':
    raise UserError(
      '--elastic_sensitivity averages what the clients send beside their updates '
      'without noise, so that the privacy of --aggregator=dp would be none.'
    )


def num_private_rounds(config: Mapping[str, Any], round_num: int) -> int:
  """How often clients have sent something through the mechanism after a round."""
  num_rounds = round_num
  if config['algorithm'] == 'transfer_learning':
    in_first_stage = min(round_num, config['transfer_round'])
    is_central_first = config['transfer_order'] == 'central_first'
    num_rounds = round_num - in_first_stage if is_central_first else in_first_stage
  # Updates and gradients.
  return num_rounds * (2 if config['algorithm'] == 'two_way_gradient_transfer' else 1)


def build(
  config: Mapping[str, Any],
) -> 'tff.aggregators.AggregationFactory | None':
  """The aggregator that `--aggregator` and its flags describe; None for the mean."""
  import tensorflow_federated as tff

  name = config['aggregator']
  if name == 'adaptive_clipping':
    norm = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=config['initial_clip'],
      target_quantile=config['clipping_quantile'],
      learning_rate=0.2,
    )
    weighted = config['client_weighting'] == 'examples'
    mean = tff.aggregators.MeanFactory()
    if not weighted:
      mean = tff.aggregators.UnweightedMeanFactory()
    return tff.aggregators.clipping_factory(norm, mean)
  if name == 'dp':
    return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=config['dp_noise_multiplier'],
      clients_per_round=config['clients_per_round'],
      clip=config['dp_clip'],
    )
  return None
