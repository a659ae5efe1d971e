"""Show evaluated episodes as videos and a contact sheet."""

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ConfigError, NsdePolicyError, import_optional
from nsde_policy.eval.episode import EpisodeResult
from nsde_policy.eval.evaluate import Evaluation
from nsde_policy.eval.render.frames import (
    RenderedEpisode,
    draw_summary,
    format_progress,
)
from nsde_policy.eval.render.pictures import check_png, draw_contact_sheet, save_png
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.tasks import Task, get_task_of_run

FRAME_SIDE = 512
"""Side of the scene in videos, pixels."""
TILE_SIDE = 256
SHEET = "contact-sheet.png"
VIDEO_FPS = 30
"""Frames per second of a video, whatever the control rate; every player supports it."""
HOLD_S = 1
"""Seconds for which the last frame stays."""
_ENCODING = ["-crf", "20", "-preset", "veryfast", "-tune", "animation", "-movflags", "+faststart"]


class Renderer:
    """Writes videos and a contact sheet of an evaluation; raises errors before episodes are rolled out.

    Args:
        path: Run directory; None for the shipped policy.
        env: Task or environment to play, see `get_task`; None for the one that the policy was trained for.
        env_kwargs: Keyword arguments of the environment.
        out: Folder for files; by default the run's folder `eval`, or `out/eval` for the shipped policy.
        videos: Number of failures and of successes to write videos of.
        seed: Seed of the first episode, with which pictures of the environment are tried.
    """

    def __init__(
        self,
        path: Path | None,
        out: Path | None = None,
        *,
        env: str | None = None,
        env_kwargs: Mapping[str, object] | None = None,
        videos: int = 3,
        seed: int = 0,
    ) -> None:
        if videos < 0:
            raise ConfigError(f"videos must be at least 0, got {videos}")
        task = get_task_of_run(Policy.from_pretrained(path).record, env)  # before any folder is made
        if not task.drawing.can_draw:
            check_render(Player(path, RolloutConfig(task, env_kwargs or {})), seed)
        self._path, self._videos = path, videos
        self._out = out or choose_eval_folder(path)
        import_video_writer()
        check_png(self._out / SHEET)

    def write(self, evaluation: Evaluation) -> list[Path]:
        """Roll out the episodes again exactly as evaluated, and return the files written."""
        with use_threads(1):
            return self._write(Player(self._path, evaluation.config), evaluation.scores.episodes)

    def _write(self, player: Player, episodes: Sequence[EpisodeResult]) -> list[Path]:
        filmed = choose_video_seeds([(each.seed, each.success) for each in episodes], self._videos)
        tiles, files = [], [self._out / SHEET]
        for episode in tqdm(episodes, "drawing", unit="episode", leave=False, disable=None):
            if episode.seed in filmed:
                rendered = RenderedEpisode.play(player, episode.seed)
                for old in self._out.glob(f"seed-{episode.seed}-*.mp4"):
                    old.unlink()  # of an earlier evaluation, perhaps with another outcome
                files.append(self._out / f"{format_outcome(rendered.result)}.mp4")
                replace_file(files[-1], encode_video(rendered))
                result = rendered.result
            else:
                result = player.play(episode.seed, frames="last")
            tiles.append(draw_summary(player.task, result, TILE_SIDE))
        title = format_title(player.task, episodes)
        save_png(draw_contact_sheet(tiles, columns=count_columns(len(tiles)), title=title), files[0])
        return files


def choose_eval_folder(path: Path | None) -> Path:
    """Return the default folder for pictures: that of the run, or `out/eval` for a shipped policy."""
    return Path("out/eval") if path is None or get_shipped_name(path) is not None else path / "eval"


def check_render(player: Player, seed: int) -> None:
    """Raise `EnvError` if there are no pictures of a player's episode: camera frames, or drawn by its env."""
    if player.policy.spec.cameras:
        return
    env = player.make_render_env()
    env.reset(seed)
    env.render()
    env.close()


def choose_video_seeds(outcomes: Iterable[tuple[int, bool | None]], each: int) -> list[int]:
    """Return the seeds of the first few successes, failures and unknown outcomes, given seed and success."""
    seeds: dict[bool | None, list[int]] = {True: [], False: [], None: []}
    for seed, success in outcomes:
        seeds[success].append(seed)
    return [seed for found in seeds.values() for seed in found[:each]]


def format_title(task: Task, episodes: Sequence[EpisodeResult]) -> str:
    """Return the title of a contact sheet: how many episodes succeed, or the mean score."""
    if all(episode.success is None for episode in episodes):
        score = sum(episode.score for episode in episodes) / len(episodes)
        return f"{len(episodes)} episodes, mean {task.score_name.replace('_', ' ')} {score:.4g}"
    won = sum(bool(episode.success) for episode in episodes)
    return f"{won} of {len(episodes)} episodes succeed; failures are framed"


def format_outcome(result: EpisodeResult) -> str:
    """Return the stem of an episode's file names: seed, outcome, and the best progress of a failure."""
    if result.success is None:
        return f"seed-{result.seed}-episode"
    best = "" if result.max_progress is None else f"-{format_progress(result.max_progress)}"
    return f"seed-{result.seed}-" + ("success" if result.success else f"failure{best}")


def count_columns(tiles: int) -> int:
    """Return the number of columns of a contact sheet that is a little wider than high."""
    return math.ceil(math.sqrt(1.6 * tiles))


def encode_video(episode: RenderedEpisode, *, size: int = FRAME_SIDE) -> bytes:
    """Encode an episode as an MP4 file, H.264 in real time."""
    imageio, rate = import_video_writer(), max(round(episode.rate_hz), 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "episode.mp4"
            writer = imageio.get_writer(
                file,
                fps=rate,
                codec="libx264",
                pixelformat="yuv420p",
                macro_block_size=2,
                ffmpeg_log_level="error",
                output_params=["-r", str(VIDEO_FPS), *_ENCODING],
            )
            with closing(writer):  # its own `with` leaves the encoder running after an error
                for frame in episode.frames(size):
                    writer.append_data(frame)
                for _ in range(HOLD_S * rate):
                    writer.append_data(frame)
            return file.read_bytes()
    except OSError as error:
        raise NsdePolicyError(f"a video cannot be encoded: {error}") from error


def import_video_writer() -> Any:
    """Import imageio together with its video encoder."""
    import_optional("imageio_ffmpeg", "video")
    return import_optional("imageio.v2", "video")
