"""Settings of the Neural SDE by the statistics of demonstrations.

The rules were chosen on Adroit's door, hammer, relocate and pen, MountainCarContinuous, Pendulum and one task
of human demonstrations with `benchmarks/experiments/auto_choices.toml`, the rules for forks and goals on
obstacle avoidance and Push-T with `auto_forks.toml` (seeds 200000 and up).
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
SMOOTH = 0.25
"""Actions are smooth if they change by less than this share of their spread in a frame."""
WIDTHS = ((32, 256), (128, 512))
"""Largest number of dimensions and the width of the networks; wider states get 1024."""


def adapt_to_demos(statistics: "DemoStatistics") -> Preset:
    """Choose settings.

    - Predictable demonstrations need no sampling noise, which only costs success, and no dropout. Each action
      follows from the observation; more blur on the previous action keeps the policy from relying on it,
      unless actions jump, as those of a switch do.
    - Demonstrations that end alike: plans are selected by their goal (`SelectionConfig`), and final actions,
      which complete it, weigh more.
    - Forks: a large blur trains flow and denoiser between the ways as well, a strong denoiser leads back to
      one of them, and more noise than the learned g keeps all of them. Settings change in proportion to how
      much the demonstrations fork.
    - Otherwise half of the noise is a compromise, and dropout helps against the noise of people.
    """
    from nsde_policy.data.statistics import choose_chunk

    chunk = choose_chunk(statistics)
    has_goal = statistics.goal_frames >= chunk
    forking = 0.0 if has_goal else statistics.forking
    dropout, diffusion, action_noise = 0.1 * (1 - forking), 0.5 + 2 * forking, 1.0
    if statistics.is_predictable:
        dropout, diffusion = 0.0, 0.0
        action_noise = 3.0 if statistics.action_step < SMOOTH else 1.0
    width = next((width for dims, width in WIDTHS if statistics.dim <= dims), 1024)
    model = NeuralSDEConfig(
        noise=0.7 + 0.8 * forking,
        action_noise=action_noise,
        network=NetworkConfig(width=width, dropout=dropout),
        sampling=SamplingConfig(alpha=1 + 0.5 * forking, diffusion=diffusion),
    )
    steps = min(max(100 * round(PASSES * statistics.frames / BATCH / 100), FEWEST_STEPS), MOST_STEPS)
    train = TrainConfig(steps=steps, batch_size=BATCH)
    selection = SelectionConfig(select="auto", train=replace(train, steps=steps // 3))
    demos = {"final_action_weight": 10.0} if has_goal and not statistics.is_predictable else {}
    return Preset(model, train, chunk=chunk, demos=demos, selection=selection)
