"""Content of a report: outcomes, settings and recorded episodes of every run.

Recorded episodes take few bytes: integers, differences between frames, deflate. Browsers can decode this
without a library; 200 episodes of 300 steps with five observed values take about 300 kB.
"""

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError
from nsde_policy.files import read_file, replace_file
from nsde_policy.run_directory import RunRecord
from nsde_policy.tasks import Scene

from ..compare.entries import Entry
from ..compare.result import Comparison, merge_comparisons, read_comparison
from ..compare.run import EntryCache, compare_runs, load_records
from ..rollouts.episode import Trace

MAX_REPLAY_BYTES = 2**28
"""Most bytes of a file with recorded episodes."""


@dataclass(frozen=True, eq=False)
class Replays:
    """Frames of several episodes, concatenated: observations, then progress."""

    lengths: tuple[int, ...]
    """Frames of each episode: one before each action, and the last."""
    frames: npt.NDArray[np.int16]
    """All frames in units of 1 / scale, (sum of lengths, columns)."""

    @classmethod
    def from_traces(cls, traces: Sequence[Trace], scene: Scene) -> "Replays":
        """Round the frames of episodes to integers, as many per unit as the scene says."""
        values = [np.column_stack([each.obs, np.array(each.progress, float)]) for each in traces]
        rounded = np.rint(np.concatenate(values) * scene.scales)
        return cls(tuple(map(len, values)), np.clip(rounded, -(2**15), 2**15 - 1).astype(np.int16))

    def encode(self) -> str:
        """Encode for a page: column by column, differences between frames, raw deflate, base64."""
        changes = np.diff(self.frames, axis=0, prepend=np.zeros((1, self.frames.shape[1]), np.int16))
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        raw = deflate.compress(changes.T.astype("<i2").tobytes()) + deflate.flush()
        return base64.b64encode(raw).decode()

    def to_bytes(self) -> bytes:
        """Return the content of a cache file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, lengths=np.array(self.lengths), frames=self.frames)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Replays":
        """Read what `to_bytes` returned; raise `ComparisonError` for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return cls(tuple(arrays["lengths"].tolist()), arrays["frames"])
        except Exception as error:  # numpy and zipfile raise many kinds for damaged files
            raise ComparisonError(f"cannot read recorded episodes: {error}") from None


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
    """Roll out runs from the same seeds, time them `rounds` times, and add entries of earlier comparisons.

    Return the comparison, and a run for each of its entries, in the same order.
    """
    records = load_records(runs, cache.config)
    replays = {run: _load_replays(run, cache, record) for run, record in records.items()}
    own = [compare_runs(runs, cache, rounds=rounds)] if runs else []
    comparison = merge_comparisons([*own, *earlier])
    own_runs = [
        ReportRun(entry, get_shipped_name(path) or str(path), records[path], replays[path])
        for path, entry in zip(runs, comparison.entries, strict=False)
    ]
    return comparison, own_runs + [ReportRun(entry) for entry in comparison.entries[len(runs) :]]


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
