"""Settings of the Neural SDE by the statistics of demonstrations."""

from dataclasses import replace
from typing import TYPE_CHECKING

from nsde_policy.config import NetworkConfig, Preset, SelectionConfig, TrainConfig

from .config import NeuralSDEConfig, SamplingConfig

if TYPE_CHECKING:
    from nsde_policy.data.statistics import DemoStatistics

BATCH = 256
PASSES = 800
"""Passes over the demonstrations, within the bounds below."""
FEWEST_STEPS, MOST_STEPS = 2_000, 40_000
SMOOTH = 0.25
"""Actions are smooth if they change by less than this fraction of their spread in a frame."""
WIDTHS = ((32, 256), (128, 512))
"""Largest number of dimensions and the width of the networks; wider states get 1024."""


def adapt_to_demos(statistics: "DemoStatistics") -> Preset:
    """Choose settings: without sampling noise, unless the demonstrations show that it is needed.

    - Predictable demonstrations need no dropout. Each action follows from the observation. More noise on the
      previous action keeps the policy from relying on it, unless actions jump, as those of a switch do.
    - Demonstrations with a common goal: plans are selected by it (`SelectionConfig`), half of the learned
      noise makes them differ, and final actions, which complete the task, weigh more.
    - Branching demonstrations: much noise trains flow and denoiser between the modes as well, a strong
      denoiser leads back to one of them, and more noise than the learned g keeps all of them.
    - Otherwise dropout helps against what the demonstrations do not tell.
    """
    from nsde_policy.data.statistics import choose_chunk

    chunk = choose_chunk(statistics)
    noise, action_noise, dropout = 0.7, 1.0, 0.1
    sampling = SamplingConfig(alpha=1.0, diffusion=0.0)
    demos: dict[str, float] = {}
    if statistics.is_predictable:
        dropout = 0.0
        action_noise = 3.0 if statistics.action_step < SMOOTH else 1.0
    elif statistics.goal_frames >= chunk:
        sampling = replace(sampling, diffusion=0.5)
        demos = {"final_action_weight": 10.0}
    elif statistics.has_branches:
        noise, dropout, sampling = 1.5, 0.0, SamplingConfig(alpha=1.5, diffusion=2.5)
    width = next((width for dims, width in WIDTHS if statistics.dim <= dims), 1024)
    model = NeuralSDEConfig(
        noise=noise,
        action_noise=action_noise,
        network=NetworkConfig(width=width, dropout=dropout),
        sampling=sampling,
    )
    steps = min(max(100 * round(PASSES * statistics.frames / BATCH / 100), FEWEST_STEPS), MOST_STEPS)
    train = TrainConfig(steps=steps, batch_size=BATCH)
    selection = SelectionConfig(select="auto", train=replace(train, steps=steps // 3))
    return Preset(model, train, chunk=chunk, demos=demos, selection=selection)
