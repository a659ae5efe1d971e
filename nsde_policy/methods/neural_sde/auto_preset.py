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
REACTION_S, REACTION_FRACTION = 0.2, 32
"""A policy replans after this time, or this part of an episode if that is less, if nothing shows that
demonstrators commit themselves. Measured on 26 tasks of Meta-World with episodes of 50 to 120 frames, success
with a chunk of 1, 4 and 8: 0.84, 0.81 and 0.77. The noisy arm of examples/arm_with_gripper.py, at 20 Hz with
episodes of 160 frames, needs a chunk of 4: with 1, it hardly delivers."""
WIDTHS = ((32, 256), (128, 512))
"""Largest number of dimensions and the width of the networks; wider states get 1024."""


def adapt_to_demos(statistics: "DemoStatistics") -> Preset:
    """Choose settings: without sampling noise, unless the demonstrations show that it is needed.

    - Demonstrations with a common goal: plans are selected by it (`SelectionConfig`), half of the learned
      noise makes them differ, and final actions, which complete the task, weigh more.
    - Branching demonstrations: much noise trains flow and denoiser between the modes as well, a strong
      denoiser leads back to one of them, and more noise than the learned g keeps all of them. Dropout would
      blur the modes.
    - Otherwise each action follows from the newest observation, so the policy replans often.
    """
    from nsde_policy.data.statistics import choose_chunk

    chunk, noise, dropout = choose_chunk(statistics), 0.7, 0.1
    sampling = SamplingConfig(alpha=1.0, diffusion=0.0)
    demos: dict[str, float] = {}
    if statistics.has_goal:
        sampling = replace(sampling, diffusion=0.5)
        demos = {"final_action_weight": 10.0}
    elif statistics.has_branches:
        noise, dropout, sampling = 1.5, 0.0, SamplingConfig(alpha=1.5, diffusion=2.5)
    else:
        chunk = min(chunk, choose_reaction(statistics))
    width = next((width for dims, width in WIDTHS if statistics.dim <= dims), 1024)
    model = NeuralSDEConfig(
        noise=noise,
        network=NetworkConfig(width=width, dropout=dropout),
        sampling=sampling,
    )
    steps = min(max(100 * round(PASSES * statistics.frames / BATCH / 100), FEWEST_STEPS), MOST_STEPS)
    train = TrainConfig(steps=steps, batch_size=BATCH)
    selection = SelectionConfig(select="auto", train=replace(train, steps=steps // 3))
    return Preset(model, train, chunk=chunk, demos=demos, selection=selection)


def choose_reaction(statistics: "DemoStatistics") -> int:
    """Return the actions of a reaction: a new plan costs no more network calls than a longer one."""
    from nsde_policy.data.statistics import round_down

    rate, shortest = statistics.rate_hz, round_down(statistics.median_length // REACTION_FRACTION)
    return 1 if rate is None else min(max(round(REACTION_S * rate), 1), shortest)
