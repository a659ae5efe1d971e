"""Content of a report: outcomes, recorded episodes and settings of every run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import Entry
from nsde_policy.eval.compare.result import Comparison, merge_comparisons, read_comparison
from nsde_policy.eval.compare.run import EntryCache, compare_runs, load_records
from nsde_policy.eval.report.replays import MAX_REPLAY_BYTES, Replays
from nsde_policy.files import read_file, replace_file
from nsde_policy.run_directory import RunRecord


@dataclass(frozen=True, eq=False)
class ReportRun:
    """One run of a report; of an earlier comparison, only the entry is known."""

    entry: Entry
    path: str | None = None
    record: RunRecord | None = None
    replays: Replays | None = None
    """Its recorded episodes; None if the task has no scene."""


def collect_report(
    runs: Sequence[Path], cache: EntryCache, *, earlier: Sequence[Comparison] = (), rounds: int = 30
) -> tuple[Comparison, list[ReportRun]]:
    """Roll out runs from the same seeds, time them, and add entries of earlier comparisons.

    Args:
        runs: Run directories.
        cache: Rolls out runs that are not cached; recorded episodes are cached next to the entries.
        earlier: Comparisons on the same seeds.
        rounds: How often each run is timed; 0 for not at all.

    Returns:
        The comparison, and a run for each of its entries, in the same order.
    """
    records = load_records(runs, env=cache.config.env)
    replays = {run: _load_replays(run, cache, record) for run, record in records.items()}
    own = [compare_runs(runs, cache, rounds=rounds)] if runs else []
    comparison = merge_comparisons([*own, *earlier])
    found = [
        ReportRun(entry, get_shipped_name(path) or str(path), records[path], replays[path])
        for path, entry in zip(runs, comparison.entries, strict=False)
    ]
    return comparison, found + [ReportRun(entry) for entry in comparison.entries[len(runs) :]]


def _load_replays(run: Path, cache: EntryCache, record: RunRecord) -> Replays | None:
    """Return a run's recorded episodes, from the cache or rolled out now; None if its task has no scene."""
    scene = cache.config.find_task(record).drawing.scene()
    if scene is None:
        return None
    entry = cache.path(run, record)
    file = entry.with_suffix(".npz")
    try:
        read_comparison(entry)
        return Replays.from_bytes(read_file(file, MAX_REPLAY_BYTES, error=ComparisonError))
    except ComparisonError:  # not rolled out yet, or a file is damaged
        pass
    replays = Replays.from_traces(
        [result.trace for result in cache.roll_out(run, record, traced=True)], scene
    )
    replace_file(file, replays.to_bytes())
    return replays
