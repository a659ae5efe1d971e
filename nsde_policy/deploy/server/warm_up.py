"""Plans made before a server starts, because the first plan of each batch size is slow on a GPU."""

from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.interface.planner import SPARE_COMMANDS

if TYPE_CHECKING:
    from nsde_policy.policy.policy import Policy


def warm_up(policy: "Policy", rows: int) -> None:
    """Plan for up to `rows` robots in all batch sizes, as sessions ask for it, also near the goal."""
    spec = policy.spec
    steps = min(policy.chunk + SPARE_COMMANDS, spec.longest_chunk or policy.chunk + SPARE_COMMANDS)
    far = np.tile(np.add(spec.low, spec.high) / 2, (spec.history, 1))
    near = far.copy()
    if policy.selector is not None and policy.rule.kind == "goal":
        near[:, list(policy.rule.columns)] = policy.selector.goal.cpu().numpy()
    for size in (1 << power for power in range((rows - 1).bit_length() + 1)):
        if spec.cameras:
            frames = [np.zeros((size, *camera.shape), np.uint8) for camera in spec.cameras]
            policy.encode_frames(np.tile(far[0, : spec.plain_dim], (size, 1)), frames)
        for states in (far, near):
            policy.plan_rows([states] * size, steps=steps, seeds=range(size))
