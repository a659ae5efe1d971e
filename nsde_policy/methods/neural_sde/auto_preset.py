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
REACTION = 0.16
"""A policy replans before the robot has moved by this fraction of the spread of its observations, if nothing
shows that demonstrators commit themselves. A pendulum, which moves by 0.14 per frame, scores higher with a
chunk of 1 than of 4. The noisy arm of examples/simulated_arm.py, which moves by 0.033, needs 4."""
NOISE = 0.7
"""Noise augmentation, in increments of one frame."""
NOISE_OF_SPREAD, MOST_NOISE = 0.06, 3.0
"""Noise augmentation of a slow robot, as a fraction of the spread of its observations, and the most in
increments: at a high rate, frames differ by less than a policy drifts. From the full state, that arm delivers
34 of 50 blocks with a noise of 0.7, and all with 1.5 (benchmarks/arms.py). Faster robots lose by it: over 26
tasks of Meta-World, success falls from 0.81 with 0.7 to 0.70 with 1.5."""
WIDTHS = ((32, 256), (128, 512))
"""Largest number of dimensions and the width of the networks; wider states get 1024."""


def adapt_to_demos(statistics: "DemoStatistics") -> Preset:
    """Choose settings: without sampling noise, unless the demonstrations show that it is needed.

    - Demonstrations with a common goal: plans are selected by it (`SelectionConfig`), half of the learned
      noise makes them differ, and final actions, which complete the task, weigh more.
    - Branching demonstrations: much noise trains flow and denoiser between the modes as well, a strong
      denoiser leads back to one of them, and more noise than the learned g keeps all of them. Dropout would
      blur the modes.
    - Otherwise each action follows from the newest observation, so the policy replans before the robot has
      moved far, and noise augmentation covers as much of its movements.
    """
    from nsde_policy.data.statistics import choose_chunk

    chunk, noise, dropout = choose_chunk(statistics), NOISE, 0.1
    sampling = SamplingConfig(alpha=1.0, diffusion=0.0)
    demos: dict[str, float] = {}
    if statistics.has_goal:
        sampling = replace(sampling, diffusion=0.5)
        demos = {"final_action_weight": 10.0}
    elif statistics.has_branches:
        noise, dropout, sampling = 1.5, 0.0, SamplingConfig(alpha=1.5, diffusion=2.5)
    else:
        chunk = min(chunk, choose_reaction(statistics.robot_movement))
        noise = choose_noise(statistics.movement)
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


def choose_reaction(movement: float) -> int:
    """Return the actions of a reaction: a new plan costs no more network calls than a longer one."""
    from nsde_policy.data.statistics import round_down

    return round_down(int(REACTION / movement)) if movement else 1


def choose_noise(movement: float) -> float:
    """Return the noise augmentation in increments, in halves, so that a few more episodes give the same."""
    noise = int(2 * NOISE_OF_SPREAD / movement) / 2 if movement else NOISE
    return min(max(noise, NOISE), MOST_NOISE)
