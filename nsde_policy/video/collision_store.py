"""Stores of collision videos, with the true state of the objects."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.data.video_sets import WriteReport
from nsde_policy.data.zarr_store.writer import DemoWriter
from nsde_policy.errors import ConfigError
from nsde_policy.video.collisions import CollisionsConfig, CollisionVideos, make_collisions

COLLISION_BATCH = 32
"""Videos that are simulated together; part of what determines them."""
FRAMES_PER_SECOND = 10
"""Nominal rate of frames; in-between frames come on top."""


def write_collisions(
    out: Path,
    videos: int,
    config: CollisionsConfig,
    *,
    seed: int,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> WriteReport:
    """Write the first `videos` collision videos of a seed into a store, or continue one.

    `data/img` holds all kept frames. `data/state` holds x, y, velocity in x, velocity in y and radius of the
    five objects, 25 numbers a frame: pixels of a frame of 64 from the upper left corner, pixels per frame.
    All five are 0 for an object that does not exist.
    """
    if videos < 1 or seed < 0:
        raise ConfigError(f"need --videos >= 1 and --seed >= 0, got {videos} and {seed}")
    rate_hz = float(FRAMES_PER_SECOND * config.substeps)
    made_with = {"by": "collisions", "seed": seed, **config.to_dict()}
    with DemoWriter(out, resume=True, rate_hz=rate_hz, made_with=made_with) as writer:
        before = len(writer)
        for first in progress(range(before - before % COLLISION_BATCH, videos, COLLISION_BATCH)):
            state = np.random.SeedSequence([seed, first // COLLISION_BATCH]).generate_state(1)
            found = make_collisions(COLLISION_BATCH, config, seed=int(state[0]))
            for k in range(len(writer) - first, min(COLLISION_BATCH, videos - first)):
                writer.append(None, {"img": found.frames[k].numpy(), "state": _list_state(found, k)})
        return WriteReport(
            path=str(out),
            videos=len(writer),
            frames=writer.frames,
            size=config.size,
            rate_hz=rate_hz,
            added=len(writer) - before,
            skipped=(),
        )


def _list_state(videos: CollisionVideos, k: int) -> Any:
    """Return the state of the objects of a video, (frames, 25) float32."""
    position, velocity = videos.motion.position[k], videos.motion.velocity[k]
    radius = videos.objects.radius[k].expand(len(position), -1)[..., None]
    state = torch.cat([position, velocity, radius], dim=-1)
    return (state * videos.objects.present[k][:, None]).flatten(1).numpy()
