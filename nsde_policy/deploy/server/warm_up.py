"""Plans made before a server starts, because the first plan of each size is slow on a GPU."""

from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.planner.interface import SPARE_COMMANDS

if TYPE_CHECKING:
    from nsde_policy.inference.policy import Policy


def warm_up(policy: "Policy", rows: int) -> None:
    """Plan for up to `rows` robots, in all batch sizes, plan lengths and numbers of candidates in use."""
    spec = policy.spec
    middle = np.add(spec.low, spec.high) / 2
    frames = [np.zeros(camera.shape, np.uint8) for camera in spec.cameras]
    far = np.tile(middle, (spec.history, 1))
    near = far.copy()
    if policy.selector is not None and policy.rule.kind == "goal":
        near[:, list(policy.rule.columns)] = policy.selector.goal.cpu().numpy()
    longest = policy.chunk + SPARE_COMMANDS
    lengths = sorted({policy.chunk, min(longest, spec.longest_chunk or longest)})
    counts = [policy.candidates >> halved for halved in range(policy.candidates.bit_length() - 1)]
    for size in (1 << power for power in range((rows - 1).bit_length() + 1)):
        if frames:
            policy.encode_frames(
                np.stack([middle[: spec.plain_dim]] * size), [np.stack([frame] * size) for frame in frames]
            )
        for steps in lengths:
            policy.plan_rows([far] * size, steps=steps, seeds=range(size))
            for count in counts:
                policy.plan_rows([near] * size, steps=steps, seeds=range(size), candidates=count)
