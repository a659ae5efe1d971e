"""Draw docs/images/recovery.gif with the shipped policy or another run.

    python benchmarks/pictures.py [--run RUN] [--out docs/images]

One episode, three times faster than real time. When the goal is almost covered, the block is dragged away.
Needs the extra `video`.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pygame
import torch
from PIL import Image

from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.envs.pusht.geometry import SIDE
from nsde_policy.eval.render.pictures import add_caption
from nsde_policy.eval.render.video import FORECAST_SAMPLES, FORECAST_STEPS, sample_forecast
from nsde_policy.files import replace_file
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import get_task
from nsde_policy.torch_threads import use_threads

SEED = 100_000
DRAG_COVERAGE = 0.85
"""Coverage of the goal at which the block is dragged away."""
DRAG_TO = (400.0, 330.0, 2.4)
"""Where it is dragged: x and y in pixels, angle in radians."""
DRAG_PERIODS = 15
LONGEST = 600
"""Most control periods of the episode."""
SPEED = 3
"""Factor of real time."""
HAND = (200, 30, 90)


def draw_recovery(policy: Policy, seed: int, *, side: int = 360) -> Iterator[np.ndarray]:
    """Draw an episode in which a hand drags the block away, until the policy has solved it again."""
    task = get_task("pusht")
    table = task.live_table()
    state, info = table.start(seed=seed)
    history, generator = policy.spec.new_history(), torch.Generator().manual_seed(seed)
    poses: list[np.ndarray] = []
    dragged = False
    for step in range(LONGEST):
        history.add_observation(state)
        if step % policy.chunk == 0:
            actions = policy.plan(history, generator=generator).actions
            noise = [torch.Generator().manual_seed(seed)] * FORECAST_SAMPLES
            forecast = sample_forecast(policy, history, steps=FORECAST_STEPS, generators=noise)
        if not dragged and info["coverage"] > DRAG_COVERAGE:
            poses = list(np.linspace(state[2:], DRAG_TO, DRAG_PERIODS + 1)[1:])
            dragged = True
        held = poses.pop(0) if poses else None
        picture = task.drawing.draw(state, size=side, forecast=forecast.skip(step % policy.chunk))
        if held is not None:
            picture = draw_hand(picture, state[2:4])
        yield add_caption(picture, seed=seed, step=step, progress=info["coverage"])
        action = table.clip(actions[step % policy.chunk])
        history.add_action(np.array(action))
        trail, _, solved, info = table.advance(action, held)
        state = trail[-1]
        if solved:
            break
    yield add_caption(
        task.drawing.draw(state, size=side),
        seed=seed,
        step=step + 1,
        progress=info["coverage"],
        success=solved,
    )


def draw_hand(picture: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Mark the point at which the block is held."""
    surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
    scale = len(picture) / SIDE
    pygame.draw.circle(surface, HAND, position * scale, 26 * scale, width=3)
    pygame.draw.circle(surface, HAND, position * scale, 7 * scale)
    return pygame.surfarray.array3d(surface).swapaxes(0, 1)


def write_gif(path: Path, pictures: list[np.ndarray], period_s: float) -> None:
    """Write pictures with one common palette, so that unchanged areas take no space; the last one stays."""
    palette = Image.fromarray(np.concatenate(pictures[:: max(len(pictures) // 12, 1)])).quantize(64, dither=0)
    images = [Image.fromarray(picture).quantize(palette=palette, dither=0) for picture in pictures]
    durations = [round(1000 * period_s)] * (len(images) - 1) + [2000]
    content = io.BytesIO()
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    replace_file(path, content.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, help="run directory; the shipped policy by default")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with use_threads(1):
        frames = list(draw_recovery(Policy.from_pretrained(args.run), SEED))
    path = args.out / "recovery.gif"
    write_gif(path, frames, 1 / (CONTROL_HZ * SPEED))
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
