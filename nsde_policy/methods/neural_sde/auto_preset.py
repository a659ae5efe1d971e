"""Settings of the Neural SDE by the statistics of demonstrations.

The rules were chosen on Adroit's door, hammer, relocate and pen, MountainCarContinuous, Pendulum and one task
of human demonstrations with `benchmarks/experiments/auto_choices.toml`, the rule for forks on two tasks of
obstacle avoidance with `auto_forks.toml` and on Push-T (seeds 200000 and up).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from nsde_policy.config import NetworkConfig, Preset, SelectionConfig, TrainConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig

if TYPE_CHECKING:
    from nsde_policy.data.statistics import DemoStatistics

BATCH = 256
PASSES = 800
"""Passes over the demonstrations, within the bounds below."""
FEWEST_STEPS, MOST_STEPS = 2_000, 40_000
WIDTHS = ((32, 256), (128, 512))
"""Largest number of dimensions and the width of the networks; wider states get 1024."""


def adapt_to_demos(statistics: "DemoStatistics") -> Preset:
    """Choose settings.

    - Sampling: predictable demonstrations need no noise, which only costs success; half of it is a compromise
      for those that are neither predictable nor forked.
    - Forks: the denoiser leads back to one of the ways, and more noise than the learned g keeps all of them.
      Forks of demonstrations that similar frames predict otherwise are often the switches of a script: all of
      the noise with less pull to their mean.
    - Dropout helps against the noise of human demonstrations; where they are predictable, or fork, it blurs
      what the policy has to tell apart.
    - The blur is always 0.7 of each dimension's typical increment: 0.3 helped on one task and hurt on two,
      1.5 helped on two tasks that fork and hurt on a third.
    """
    from nsde_policy.data.statistics import PREDICTABLE, choose_chunk

    sampling = SamplingConfig(alpha=1.0, diffusion=0.5)
    if statistics.is_predictable:
        sampling = SamplingConfig(alpha=1.0, diffusion=0.0)
    elif statistics.has_forks and statistics.unexplained_share < PREDICTABLE:
        sampling = SamplingConfig(alpha=0.5, diffusion=1.0)
    elif statistics.has_forks:
        sampling = SamplingConfig(alpha=1.0, diffusion=1.5)
    plain = statistics.is_predictable or statistics.has_forks
    width = next((width for dims, width in WIDTHS if statistics.dim <= dims), 1024)
    model = NeuralSDEConfig(
        network=NetworkConfig(width=width, dropout=0.0 if plain else 0.1),
        sampling=sampling,
    )
    steps = min(max(100 * round(PASSES * statistics.frames / BATCH / 100), FEWEST_STEPS), MOST_STEPS)
    train = TrainConfig(steps=steps, batch_size=BATCH)
    selection = SelectionConfig(select="auto", train=replace(train, steps=steps // 3))
    return Preset(model, train, chunk=choose_chunk(statistics), selection=selection)
