"""Evaluated episodes to watch: in a window where there is a display, else as videos and a contact sheet."""

import importlib
import math
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.errors import ConfigError, MissingDependencyError, OutputError
from nsde_policy.eval.evaluate import Evaluation
from nsde_policy.eval.render.frames import Film, best_coverage, summary_tile
from nsde_policy.eval.render.pictures import caption_height, check_png, contact_sheet, save_png
from nsde_policy.eval.rollout import EpisodeResult, Player, Trace, one_thread
from nsde_policy.inference.policy import Policy

SIZE = 512
"""Side of the scene in windows and videos, pixels."""
TILE = 256
SHEET = "contact-sheet.png"
REPEAT = 3
"""Frames of a video per control period: real time at 30 frames per second, which every player takes."""
_ENCODING = ["-crf", "20", "-preset", "veryfast", "-tune", "animation", "-movflags", "+faststart"]
HOLD = CONTROL_HZ
"""Control periods that the last moment stays, in windows and videos."""


class Renderer:
    """Shows the episodes of an evaluation; what it lacks for that is said before they are played.

    With `out` it writes files there. Without, it opens a window where there is a display, and else writes to
    the run's folder `eval`, or to `out/eval` for the shipped policy (`path` None).
    """

    def __init__(self, path: Path | None, out: Path | None = None, *, videos: int = 3) -> None:
        if videos < 0:
            raise ConfigError(f"videos must be at least 0, got {videos}")
        Policy.from_pretrained(path)  # so that no folder is made in what is no run
        self._path, self._videos = path, videos
        self._out = out or (Path("out") if path is None else path) / "eval"
        self._in_window = out is None and has_display()
        if not self._in_window:
            video_writers()
            check_png(self._out / SHEET)

    def show(self, found: Evaluation) -> None:
        """Play the episodes again, exactly as they were evaluated, for people to see."""
        player = Player(self._path, found.config)
        with one_thread():
            if self._in_window:
                play_in_window(player, [episode.seed for episode in found.scores.episodes])
            else:
                self._write(player, found.scores.episodes)

    def _write(self, player: Player, episodes: Sequence[EpisodeResult]) -> None:
        wanted = seeds_to_film(episodes, self._videos)
        tiles, written = [], 0
        for episode in tqdm(episodes, "drawing", unit="episode", leave=False, disable=None):
            if episode.seed in wanted:
                film = Film.shoot(player, episode.seed)
                for old in self._out.glob(f"seed-{episode.seed}-*.mp4"):
                    old.unlink()  # of an earlier evaluation, whose outcome may have been another
                write_video(film, self._out / f"{outcome_name(film.result)}.mp4")
                written += 1
                result, trace = film.result, film.trace
            else:
                trace = Trace()
                result = player.play(episode.seed, trace)
            tiles.append(summary_tile(result, trace, TILE))
        failed = sum(not tile.good for tile in tiles)
        title = f"{len(tiles) - failed} of {len(tiles)} episodes succeed; failures are framed"
        save_png(contact_sheet(tiles, columns=columns_for(len(tiles)), title=title), self._out / SHEET)
        print(f"wrote {SHEET} and {written} mp4 to {self._out}", file=sys.stderr)


def has_display() -> bool:
    """Whether a window can be opened here, and seen."""
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform not in ("darwin", "win32") and not named:
        return False
    import pygame

    try:
        pygame.display.init()  # the display that is named may be out of reach
    except pygame.error:
        return False
    pygame.display.quit()
    return True


def seeds_to_film(episodes: Sequence[EpisodeResult], each: int) -> set[int]:
    """The first few failures, and the first few successes."""
    failed = [episode.seed for episode in episodes if not episode.success]
    won = [episode.seed for episode in episodes if episode.success]
    return {*failed[:each], *won[:each]}


def outcome_name(result: EpisodeResult) -> str:
    """How an episode's files are called: by seed and outcome, a failure with its best coverage."""
    return f"seed-{result.seed}-" + ("success" if result.success else f"failure-{best_coverage(result)}")


def columns_for(tiles: int) -> int:
    """Columns of a sheet that is a little wider than high."""
    return math.ceil(math.sqrt(1.6 * tiles))


def play_in_window(player: Player, seeds: Sequence[int]) -> None:
    """Show episodes in real time until they are over, the window is closed, or Ctrl-C."""
    from nsde_policy.envs.pusht.drawing import Window

    window = Window((SIZE, SIZE + caption_height(SIZE)), CONTROL_HZ)
    try:
        for seed in seeds:
            film = Film.shoot(player, seed)
            for frame in film.frames(SIZE):
                window.show(frame)
                if window.closed:
                    return
            for _ in range(HOLD):
                window.show(frame)
    except KeyboardInterrupt:
        pass
    finally:
        window.close()


def write_video(film: Film, path: Path, *, size: int = SIZE) -> None:
    """Write an episode as H.264, in real time; through a temporary file, so that no half video is left."""
    imageio = video_writers()
    partial = path.with_name(f".{path.stem}.partial.mp4")
    try:
        writer = imageio.get_writer(
            partial,
            fps=CONTROL_HZ,
            codec="libx264",
            pixelformat="yuv420p",
            macro_block_size=2,
            ffmpeg_log_level="error",
            output_params=["-r", str(CONTROL_HZ * REPEAT), *_ENCODING],
        )
        with closing(writer):  # its own `with` leaves the encoder running after an error
            for frame in film.frames(size):
                writer.append_data(frame)
            for _ in range(HOLD):
                writer.append_data(frame)
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def video_writers() -> Any:
    """The module imageio, with what it writes videos with."""
    try:
        importlib.import_module("imageio_ffmpeg")
        return importlib.import_module("imageio.v2")
    except ImportError:
        raise MissingDependencyError.extra("imageio", "video") from None
