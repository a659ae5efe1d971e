"""Content of a report: outcomes, recorded episodes, videos, training curves and settings of every run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError, EnvError
from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.files import merge_comparisons
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.run import EntryCache, compare_runs, load_records
from nsde_policy.eval.render.frames import RenderedEpisode
from nsde_policy.eval.render.video import check_render, choose_video_seeds, encode_video
from nsde_policy.eval.report.replays import MAX_REPLAY_BYTES, Replays
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.files import read_file, replace_file
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory, RunRecord
from nsde_policy.tasks import Task

CURVE_POINTS = 240
"""Most points of a training curve in a page; more are averaged."""
VIDEO_SIZE = 320
"""Side of the scene in videos, pixels."""

Curve = list[tuple[float, float]]
"""(step, value), in the order of the steps."""


@dataclass(frozen=True)
class Video:
    """An episode as an MP4 file."""

    seed: int
    success: bool | None
    """None if the environment does not say."""
    score: float
    forecast: bool
    """Whether it shows the futures that the policy sampled."""
    mp4: bytes


@dataclass(frozen=True, eq=False)
class ReportRun:
    """One run of a report; without a directory, only its entry is known."""

    entry: Entry | None
    """Its outcomes; None without an environment."""
    path: str | None = None
    record: RunRecord | None = None
    replays: Replays | None = None
    curves: dict[str, Curve] = field(default_factory=dict)
    """Losses by name; empty without a training log."""
    videos: tuple[Video, ...] = ()
    no_videos: str = ""
    """Why there are no videos although some were asked for."""


def collect_report(
    runs: Sequence[Path],
    cache: EntryCache,
    *,
    earlier: Sequence[Comparison] = (),
    rounds: int = 30,
    videos: int = 1,
) -> tuple[Comparison, list[ReportRun]]:
    """Roll out runs from the same seeds, time them, make videos, and add entries of earlier comparisons.

    Args:
        runs: Run directories.
        cache: Rolls out runs that are not cached; recorded episodes are cached next to the entries.
        earlier: Comparisons on the same seeds.
        rounds: How often each run is timed; 0 for not at all.
        videos: Number of failures and number of successes per run to make videos of.

    Returns:
        The comparison, and a run for each of its entries, in the same order.
    """
    records = load_records(runs, env=cache.config.env)
    replays = {run: _load_replays(run, cache, record) for run, record in records.items()}
    own = [compare_runs(runs, cache, rounds=rounds)] if runs else []
    comparison = merge_comparisons([*own, *earlier])
    found = []
    for path, entry in zip(runs, comparison.entries, strict=False):
        shown = ReportRun(
            entry=entry,
            path=get_shipped_name(path) or str(path),
            record=records[path],
            replays=replays[path],
            curves=read_all_curves(path),
        )
        found.append(_add_videos(shown, path, cache.config.find_task(records[path]), videos))
    return comparison, found + [ReportRun(entry) for entry in comparison.entries[len(runs) :]]


def _load_replays(run: Path, cache: EntryCache, record: RunRecord) -> Replays | None:
    """Return a run's recorded episodes, from the cache or rolled out now; None if its task has no scene."""
    scene = cache.config.find_task(record).drawing.scene()
    if scene is None:
        return None
    file = cache.path(run, record).with_suffix(".npz")
    try:
        cache.read(run, record)
        return Replays.from_bytes(read_file(file, MAX_REPLAY_BYTES, error=ComparisonError))
    except ComparisonError:  # not rolled out yet, or a file is damaged
        pass
    replays = Replays.from_traces(
        [result.trace for result in cache.roll_out(run, record, traced=True)], scene
    )
    replace_file(file, replays.to_bytes())
    return replays


def read_all_curves(path: Path) -> dict[str, Curve]:
    """Read the training curves of a run, and those of its encoder under names that say so."""
    encoder = read_curves(RunDirectory(path / ENCODER_FOLDER))
    return read_curves(RunDirectory(path)) | {f"encoder, {name}": curve for name, curve in encoder.items()}


def read_curves(run: RunDirectory) -> dict[str, Curve]:
    """Read the training curves of a run by name, with at most `CURVE_POINTS` points each."""
    curves: dict[str, Curve] = {}
    for record in run.read_metrics():
        for name, value in record.items():
            if name not in ("step", "seconds") and isinstance(value, int | float) and isfinite(value):
                curves.setdefault(name, []).append((float(record["step"]), float(value)))
    return {name: thin_curve(points) for name, points in curves.items()}


def thin_curve(points: Curve) -> Curve:
    """Average neighbouring points so that at most `CURVE_POINTS` remain."""
    size = -(-len(points) // CURVE_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def _add_videos(shown: ReportRun, run: Path, task: Task, each: int) -> ReportRun:
    """Return a run with videos of a few episodes, with forecasts if the task or a camera shows them."""
    assert shown.entry is not None
    seeds = choose_seeds(shown.entry.episodes, each)
    if not seeds:
        return shown
    player, videos = Player(run, RolloutConfig(task)), []
    if not task.drawing.can_draw:
        try:
            check_render(player, seeds[0])
        except EnvError:
            reason = "no videos, because its environment draws no pictures (render mode rgb_array)"
            return replace(shown, no_videos=reason)
    with use_threads(1):
        for seed in tqdm(seeds, f"videos of {run.name}", unit="video", leave=False, disable=None):
            episode = RenderedEpisode.play(player, seed)
            mp4 = encode_video(episode, size=VIDEO_SIZE)
            result = episode.result
            videos.append(Video(seed, result.success, result.score, bool(episode.forecasts), mp4))
    return replace(shown, videos=tuple(videos))


def choose_seeds(episodes: Episodes, each: int) -> list[int]:
    """Return seeds for videos: of the first successes and failures, or of the highest and lowest scores."""
    if episodes.success is not None:
        return choose_video_seeds(zip(episodes.seed, episodes.success, strict=True), each)
    ranked = [seed for _, seed in sorted(zip(episodes.score, episodes.seed, strict=True), reverse=True)]
    return list(dict.fromkeys([*ranked[:each], *ranked[len(ranked) - each :]]))
