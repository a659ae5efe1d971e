"""What a report is made of: every run's outcomes, recorded episodes, films, log and settings."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.assets import SHIPPED, SHIPPED_POLICY
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import Entry
from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.compare.run import Games, Job, checked_records, compare, kept_file, play_and_keep
from nsde_policy.eval.render.frames import RenderedEpisode
from nsde_policy.eval.render.video import write_video
from nsde_policy.eval.report.replays import Frames, Replays, quantised
from nsde_policy.eval.rollout import EpisodeResult, Player, RolloutConfig, Trace, one_thread
from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory, RunRecord

CURVE_POINTS = 240
"""Most points of a training curve in a page; more are averaged."""
FILM_SIZE = 320
"""Side of the scene in videos, pixels."""

Curve = list[tuple[float, float]]
"""(step, value), in their order."""


@dataclass(frozen=True)
class Video:
    """An episode as an MP4 file."""

    seed: int
    success: bool
    mp4: bytes


@dataclass(frozen=True, eq=False)
class Seen:
    """One run of a report."""

    entry: Entry
    """Outcomes and costs."""
    path: str | None = None
    """Where its directory is; None where only outcomes are known, and so nothing of what follows."""
    record: RunRecord | None = None
    replays: Replays | None = None
    curves: dict[str, Curve] | None = None
    """Losses by name; empty where no log was kept."""
    videos: tuple[Video, ...] = ()


@dataclass(frozen=True, eq=False)
class Report:
    """Everything a page says."""

    comparison: Comparison
    runs: tuple[Seen, ...]
    """One for each entry of the comparison, in its order."""


def gather(
    runs: Sequence[Path],
    games: Games,
    *,
    kept: Path,
    earlier: Sequence[Comparison] = (),
    workers: int = 0,
    device: str = "cpu",
    rounds: int = 30,
    videos: int = 1,
) -> Report:
    """Play runs on the same starts, time them, film some episodes, and add what earlier comparisons hold.

    What was played is kept in the folder `kept`, and not played again as long as weights and settings are the
    same.
    """
    jobs = [Job(path) for path in runs]
    records = checked_records(jobs)
    replays = {
        job.run: _recorded(job, games, records[job.run], kept, workers=workers, device=device) for job in jobs
    }
    own = []
    if jobs:
        own = [compare(jobs, games, kept=kept, workers=workers, device=device, rounds=rounds)]
    comparison = together([*own, *earlier])
    seen = []
    for i, entry in enumerate(comparison.entries):
        if i >= len(jobs):
            seen.append(Seen(entry))
            continue
        path, record = runs[i], records[runs[i]]
        seen.append(
            Seen(
                entry=entry,
                path=SHIPPED if path == SHIPPED_POLICY else str(path),
                record=record,
                replays=replays[path],
                curves=curves_of(RunDirectory(path)),
                videos=_films(path, entry, games.env_kwargs(record), videos),
            )
        )
    return Report(comparison, tuple(seen))


def together(comparisons: Sequence[Comparison]) -> Comparison:
    """All entries once, those of the first comparison first; costs known to any of them are kept."""
    first, *rest = comparisons
    entries = {(entry.setting, entry.train_seed): entry for entry in first.entries}
    for other in rest:
        same = (other.task, other.reset_rule, other.seeds) == (first.task, first.reset_rule, first.seeds)
        if not same:
            raise ComparisonError(
                f"{other.task}, {other.reset_rule} starts {other.seeds[0]} to {other.seeds[1]} do not mix "
                f"with {first.task}, {first.reset_rule} starts {first.seeds[0]} to {first.seeds[1]}: "
                "set --episodes, --seed-start and --reset-rule to the same"
            )
        for entry in other.entries:
            known = entries.setdefault((entry.setting, entry.train_seed), entry)
            if known.episodes != entry.episodes:
                raise ComparisonError(
                    f"two different results of {entry.name!r}, training seed {entry.train_seed}; "
                    "leave one out"
                )
            entries[entry.setting, entry.train_seed] = replace(
                known, latency_ms=known.latency_ms or entry.latency_ms, train_s=known.train_s or entry.train_s
            )
    machine = {what: where for each in reversed(comparisons) for what, where in each.machine.items()}
    return replace(first, entries=tuple(entries.values()), machine=machine)


def _recorded(job: Job, games: Games, record: RunRecord, kept: Path, *, workers: int, device: str) -> Replays:
    """A job's episodes, from its file or played now; its entry is then kept beside it."""
    entry_file = kept_file(job, games, record, kept)
    file = entry_file.with_suffix(".npz")
    try:
        steps = read_comparison(entry_file).entries[0].episodes.steps
        held = Replays.from_bytes(file.read_bytes())
        if held.lengths == tuple(step + 1 for step in steps):
            return held
    except (ComparisonError, OSError):  # not played yet, or a file is damaged
        pass
    episodes: list[Frames] = []

    def watch(_: EpisodeResult, trace: Trace) -> None:
        episodes.append(quantised(trace))

    play_and_keep(job, games, record, kept, workers=workers, device=device, watch=watch)
    replays = Replays.of(episodes)
    replace_file(file, replays.to_bytes())
    return replays


def curves_of(run: RunDirectory) -> dict[str, Curve]:
    """What a run logged while it trained, by name, thinned to what a picture shows."""
    found: dict[str, Curve] = {}
    for record in run.read_metrics():
        for name, value in record.items():
            if name not in ("step", "seconds") and isinstance(value, int | float) and isfinite(value):
                found.setdefault(name, []).append((float(record["step"]), float(value)))
    return {name: thinned(points) for name, points in found.items()}


def thinned(points: Curve) -> Curve:
    """At most `CURVE_POINTS` points, each the mean of its neighbourhood."""
    size = -(-len(points) // CURVE_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def _films(run: Path, entry: Entry, env_kwargs: dict[str, str], each: int) -> tuple[Video, ...]:
    """The first few failures and the first few successes, with the futures that the policy saw."""
    outcomes = list(zip(entry.episodes.seed, entry.episodes.success, strict=True))
    wanted = [outcome for won in (True, False) for outcome in [o for o in outcomes if o[1] is won][:each]]
    if not wanted:
        return ()
    player = Player(run, RolloutConfig(env_kwargs=env_kwargs))
    made: list[Video] = []
    with tempfile.TemporaryDirectory() as folder, one_thread():
        for seed, _ in tqdm(wanted, f"filming {run.name}", unit="film", leave=False, disable=None):
            file = Path(folder) / f"{seed}.mp4"
            film = RenderedEpisode.play(player, seed)
            write_video(film, file, size=FILM_SIZE)
            made.append(Video(seed, film.result.success, file.read_bytes()))
    return tuple(made)


def settings_of(record: RunRecord) -> dict[str, Any]:
    """All settings of a run in one level: train.steps, model.network.width, …"""
    flat: dict[str, Any] = {}

    def walk(values: dict[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(record.config.to_dict(), "")
    return {**flat, "seed": record.seed, "demos.fingerprint": record.demos.fingerprint[:12]}
