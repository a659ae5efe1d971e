"""Draw the pictures of the README, with the shipped policy or another run.

    python benchmarks/pictures.py [--run RUN] [--out docs/images]

`pusht.png`: five moments of one episode. `pusht.gif`: three episodes side by side, at twice real time. The
starts are the first test seeds, not selected by their outcome. Needs the extra `video`.

With `--demos`: `avoiding_demos.png` alone, the demonstrations of obstacle avoidance in the package, coloured
by mode. Needs the extra `plot`.

With `--run shipped-pixels`, or another policy with cameras: `pixels.png` alone, moments of one episode with
its keypoints.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nsde_policy.assets import find_demos, resolve_run
from nsde_policy.data import load_demonstrations
from nsde_policy.envs.avoiding import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.eval.compare.path_plots import choose_mode_colours
from nsde_policy.eval.render.frames import RenderedEpisode
from nsde_policy.eval.render.gif import encode_gif
from nsde_policy.eval.render.pictures import save_png
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.torch_threads import use_threads

SEEDS = (100_000, 100_001, 100_002)
MOMENTS = 5
HOLD_S = 2.0
"""Seconds for which the end of the longest episode is shown."""
SPEED = 2
"""Factor of real time."""


def draw_moments(
    episode: RenderedEpisode, *, side: int = 400, moments: int = MOMENTS, before_end: int = 0
) -> np.ndarray:
    """Draw equally spaced moments of an episode side by side, from its start to its end or shortly before."""
    steps = np.linspace(0, len(episode) - 1 - before_end, moments).round().astype(int)
    return np.concatenate([episode.frame(int(step), side) for step in steps], axis=1)


def draw_side_by_side(episodes: Sequence[RenderedEpisode], *, side: int = 256) -> list[np.ndarray]:
    """Draw episodes side by side, each paused at its end until all have ended."""
    frames_of_episodes = [list(episode.frames(side)) for episode in episodes]
    longest = max(map(len, frames_of_episodes))
    return [
        np.concatenate([frames[min(step, len(frames) - 1)] for frames in frames_of_episodes], axis=1)
        for step in range(longest)
    ]


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
        player = Player(args.run and resolve_run(args.run), RolloutConfig())
        if player.policy.spec.cameras:
            picture = draw_moments(RenderedEpisode.play(player, SEEDS[0]), moments=4, before_end=4)
            save_small_png(picture, args.out / "pixels.png")
            return
        episodes = [RenderedEpisode.play(player, seed) for seed in SEEDS]
    save_png(draw_moments(episodes[0]), args.out / "pusht.png")
    animation = encode_gif(draw_side_by_side(episodes), period_s=1 / (CONTROL_HZ * SPEED), hold_s=HOLD_S)
    replace_file(args.out / "pusht.gif", animation)
    for name in ("pusht.png", "pusht.gif"):
        print(f"{args.out / name}  {(args.out / name).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
