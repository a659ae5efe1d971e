"""Draw pictures for README.md and docs/, with the shipped policy or another run.

    python benchmarks/pictures.py [--run RUN] [--out docs/images]

`recovery.gif`: one episode, three times faster than real time. When the goal is almost covered, the block is
dragged away. Needs the extra `video`.

With `--demos`: `avoiding_demos.png` alone, the demonstrations of obstacle avoidance in the package, coloured
by mode. Needs the extra `plot`.

With `--run shipped-pixels`, or another policy with cameras: `pixels.png` alone, moments of one episode with
its keypoints.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pygame
import torch

from nsde_policy.assets import find_demos, resolve_run
from nsde_policy.data import load_demonstrations
from nsde_policy.envs.avoiding import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.envs.pusht.geometry import SIDE, SUCCESS_COVERAGE
from nsde_policy.eval.compare.path_plots import choose_mode_colours
from nsde_policy.eval.render.forecast import FORECAST_SAMPLES, FORECAST_STEPS, sample_forecast
from nsde_policy.eval.render.frames import RenderedEpisode
from nsde_policy.eval.render.gif import encode_gif
from nsde_policy.eval.render.pictures import add_caption
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.tasks import get_task

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


def draw_moments(
    episode: RenderedEpisode, *, side: int = 400, moments: int = 4, before_end: int = 4
) -> np.ndarray:
    """Draw equally spaced moments of an episode side by side, from its start to shortly before its end."""
    steps = np.linspace(0, len(episode) - 1 - before_end, moments).round().astype(int)
    return np.concatenate([episode.frame(int(step), side) for step in steps], axis=1)


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
        yield add_caption(
            picture, seed=seed, step=step, progress=info["coverage"], threshold=SUCCESS_COVERAGE
        )
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
        threshold=SUCCESS_COVERAGE,
        success=solved,
    )


def draw_hand(picture: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Mark the point at which the block is held."""
    surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
    scale = len(picture) / SIDE
    pygame.draw.circle(surface, HAND, position * scale, 26 * scale, width=3)
    pygame.draw.circle(surface, HAND, position * scale, 7 * scale)
    return pygame.surfarray.array3d(surface).swapaxes(0, 1)


def save_small_png(picture: np.ndarray, path: Path) -> None:
    """Write a picture of few colours with a palette."""
    from PIL import Image

    Image.fromarray(picture).quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


def draw_demos(path: Path) -> None:
    """Draw the demonstrations of obstacle avoidance, from the fixed start and from varied ones."""
    from matplotlib.patches import Circle

    with plot_style():
        figure, axes = make_figure(1, 2, (6.4, 3.6))
        colours = choose_mode_colours(geometry.N_MODES)
        for axis, task in zip(axes[0], ("avoiding", "avoiding_varied"), strict=True):
            demos = load_demonstrations(find_demos(task))
            for x, y, radius in geometry.OBSTACLES:
                axis.add_patch(
                    Circle((x, y), radius, facecolor="#dcdcdc", edgecolor="#8a8a8a", linewidth=0.6)
                )
            for episode in demos:
                rod = episode.obs[:, 2:]
                axis.plot(*rod.T, color=colours[geometry.read_mode(rod)], linewidth=0.5, alpha=0.8)
            axis.axhline(geometry.FINISH_Y, color="#60a068", linewidth=1, linestyle="--")
            axis.set_title(f"{task}: {len(demos)} demonstrations")
            axis.set_xlabel("x (m)")
            axis.set_ylabel("y (m)")
            axis.set_aspect("equal")
        replace_file(path, encode_figure(figure, "png"))
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, help="run directory; the shipped policy by default")
    parser.add_argument("--demos", action="store_true", help="draw the demonstrations of obstacle avoidance")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.demos:
        draw_demos(args.out / "avoiding_demos.png")
        return
    with use_threads(1):
        path = args.run and resolve_run(args.run)
        policy = Policy.from_pretrained(path)
        if policy.spec.cameras:
            episode = RenderedEpisode.play(Player(path, RolloutConfig()), SEED)
            save_small_png(draw_moments(episode), args.out / "pixels.png")
            return
        frames = list(draw_recovery(policy, SEED))
    path = args.out / "recovery.gif"
    replace_file(path, encode_gif(frames, period_s=1 / (CONTROL_HZ * SPEED)))
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
