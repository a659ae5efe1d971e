"""Crash-safe recording of demonstrations: a crash loses at most the episode being written.

zarr writes the rows of an episode behind the committed ones. Then one atomic step commits the episode: the
replacement of `meta/episode_ends/.zarray`, which holds the number of episodes. Every file is replaced
atomically (`AtomicStore`), so a chunk with rows of earlier episodes is never half written. Readers ignore
the rows behind the last episode end, and the next writer cuts them off.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from nsde_policy.errors import DemoError, NsdePolicyError, describe_problem
from nsde_policy.files import PARTIAL, lock_directory, read_json, replace_file

from ..roles import check_scale, is_colour
from ..types import MIN_STEPS, Episode, Ints, Numbers, check_angles, check_rate
from .store import ENDS, RECORDING, Store

if TYPE_CHECKING:
    import zarr
    from zarr.abc.store import Store as ZarrStore

STATE, ACTION = "data/state", "data/action"
INFO_PREFIX = "meta/episode_"
"""Prefix of arrays with one number per episode: `info={"seed": 7}` is stored in meta/episode_seed.
`open_source(path).read_info()` reads it."""
MADE_WITH = "made_with"
"""Root attribute with the settings that determine all episodes of a recording."""
GROUPS = (".zgroup", "data/.zgroup", "meta/.zgroup")
CHUNK_BYTES = 2**20
"""Size of an uncompressed chunk; the last one is rewritten with every episode."""
MAX_WRITE_BYTES = 32 * 2**20
"""Rows are written in blocks of about this size."""
ENDS_PER_CHUNK = 2**20
"""Must not change: the chunks of `meta/episode_ends` are replaced before the metadata with their size."""
COMPRESSOR: dict[str, Any] = {"id": "zstd", "level": 3, "checksum": True}
"""Zstandard with a checksum, so that flipped bits are detected."""


class LazyRows(Protocol):
    """Rows of an array that are read in slices: an array, or frames that would not fit into memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and the shape of each."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the values; integers if they are not an array, because they are not checked for NaN."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Numbers: ...


class DemoWriter:
    """Writer that appends whole episodes to a replay-buffer store, zarr format 2; one at a time.

        with DemoWriter("demos.zarr", rate_hz=10, angles=(4,)) as writer:
            writer.append(Episode(obs, act), extras={"img": frames}, info={"seed": 7})

    The first episode determines the arrays, their widths and types. A recording that holds episodes is only
    continued with `resume=True`; a writer that appends nothing leaves it unchanged.
    """

    _ends: Ints
    """Ends of the committed episodes."""
    _arrays: dict[str, "zarr.Array[Any]"]
    """Arrays of frames and of episode information, open for writing; empty before the first episode."""

    def __init__(
        self,
        path: Path | str,
        *,
        resume: bool = False,
        rate_hz: float | None = None,
        angles: Sequence[int] = (),
        act_angles: Sequence[int] = (),
        provenance: Mapping[str, object] | None = None,
        made_with: Mapping[str, object] | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """Start or continue a recording.

        Args:
            path: Directory that is created or holds an earlier recording.
            resume: Append to a recording that holds episodes; without it, one is refused, so that a script
                that runs twice does not store its episodes twice.
            rate_hz: Frames per second.
            angles: Columns of an observation that are angles in radians.
            act_angles: Columns of an action that are angles in radians.
            provenance: JSON values stored with the first episode that this writer appends.
            made_with: JSON settings that determine the episodes; a recording with others is not continued.
            attributes: Further root attributes of a new recording, JSON; an existing one keeps its own.
        """
        check_rate(rate_hz)
        self.path = Path(path)
        self._angles = {STATE: list(angles), ACTION: list(act_angles)}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._provenance: dict[str, object] | None = {"started": started, **(provenance or {})}
        self._lock = lock_directory(self.path)
        try:
            settings = json.loads(json.dumps({**(made_with or {}), "rate_hz": rate_hz}))
            self._open(settings, attributes or {}, resume=resume)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of committed episodes."""
        return len(self._ends)

    @property
    def frames(self) -> int:
        """Number of frames of all committed episodes."""
        return int(self._ends[-1]) if len(self) else 0

    def close(self) -> None:
        """Release the lock on the store; all appended episodes are already on disk."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def append(
        self,
        episode: Episode | None,
        extras: Mapping[str, LazyRows] | None = None,
        info: Mapping[str, float | np.generic] | None = None,
    ) -> None:
        """Write and commit one episode; None for a recording without observations, such as videos.

        `extras` are further arrays with one row per frame, such as images, read and written block by block.
        `info` are numbers about the episode, such as its seed.
        """
        self._require_open()
        rows = self._collect_rows(episode, extras or {}, info or {})
        frames = next(iter(rows.values())).shape[0]
        try:
            self._append_provenance()
            arrays = self._arrays or {name: self._create_array(name, values) for name, values in rows.items()}
            for name, values in rows.items():
                start = self.frames if name.startswith("data/") else len(self)
                _write_rows(arrays[name], start, values)
            ends = np.append(self._ends, self.frames + frames)
            self._write_ends(ends)
        except (OSError, NsdePolicyError) as error:
            why = describe_problem(error)
            raise DemoError(f"{self.path}: episode not recorded, {why}; earlier ones are safe") from error
        self._arrays, self._ends = arrays, ends

    def drop_last(self) -> None:
        """Remove the last committed episode, by one atomic step."""
        self._require_open()
        if not len(self):
            raise DemoError(f"{self.path} holds no episode to drop")
        self._write_ends(self._ends[:-1], chunks=False)
        self._load()

    def _require_open(self) -> None:
        """Raise `DemoError` if the writer was closed: another one may be writing to the store by now."""
        if self._lock < 0:
            raise DemoError(f"the writer of {self.path} is closed; open a new one")

    def _open(self, settings: dict[str, object], attributes: Mapping[str, object], *, resume: bool) -> None:
        """Start a recording in an empty directory, or check and continue an existing one.

        A recording without episodes is started again, with any settings.
        """
        recorded = self._read_attributes()
        if RECORDING not in recorded and any(path.suffix != PARTIAL for path in self.path.iterdir()):
            raise DemoError(f"{self.path} is not a recording of this package; choose a new path")
        if not self._has_episodes():
            self._start(settings, attributes)
        elif resume:
            self._check_settings(recorded, settings)
        else:
            raise DemoError(
                f"{self.path} already holds episodes; append to them with resume=True, or choose a new path"
            )
        for partial in self.path.rglob(f"*{PARTIAL}"):  # does not follow links
            with suppress(OSError):
                partial.unlink()
        self._load()

    def _has_episodes(self) -> bool:
        """Return whether episodes are committed; raise `DemoError` if their ends are lost."""
        ends = self.path / ENDS / ".zarray"
        if ends.is_file():
            return read_json(ends, error=DemoError).get("shape") != [0]
        if any(path.is_dir() for path in (self.path / "data").glob("*")):
            raise DemoError(f"{self.path} has lost {ENDS}; restore it before recording more")
        return False

    def _start(self, settings: Mapping[str, object], more_attributes: Mapping[str, object]) -> None:
        """Write a recording without episodes."""
        made_with = {name: value for name, value in settings.items() if name != "rate_hz"}
        attributes = {
            RECORDING: {"obs_key": "state", "act_key": "action"},
            "rate_hz": settings["rate_hz"],
            **({MADE_WITH: made_with} if made_with else {}),
            **more_attributes,
        }
        replace_file(self.path / ".zattrs", json.dumps(attributes))
        for key in GROUPS:
            replace_file(self.path / key, '{"zarr_format": 2}')
        self._write_ends(np.zeros(0, np.int64))

    def _read_attributes(self) -> dict[str, Any]:
        path = self.path / ".zattrs"
        return read_json(path, error=DemoError, allow_nan=True) if os.path.lexists(path) else {}

    def _check_settings(self, recorded: Mapping[str, Any], settings: Mapping[str, object]) -> None:
        """Raise `DemoError` if a recording was made with other settings."""
        written = {**recorded.get(MADE_WITH, {}), "rate_hz": recorded.get("rate_hz")}
        for name in {**written, **settings}:
            old, new = written.get(name), settings.get(name)
            if old != new:
                raise DemoError(
                    f"{self.path} was made with {name} {json.dumps(old)}, not {json.dumps(new)}; continue "
                    "with the same settings or choose a new path"
                )

    def _append_provenance(self) -> None:
        """Append who recorded, and from which episode on, before the first episode of this writer."""
        if self._provenance is None:
            return
        attributes = self._read_attributes()
        new = {"first_episode": len(self), **self._provenance}
        attributes["sessions"] = [*attributes.get("sessions", []), new]
        replace_file(self.path / ".zattrs", json.dumps(attributes))
        self._provenance = None

    def _load(self) -> None:
        """Load the committed episodes and cut off any rows behind them; without any, remove all arrays."""
        self._ends, self._arrays = np.zeros(0, np.int64), {}
        if not self._has_episodes():
            for path in [path for part in ("data", "meta") for path in (self.path / part).iterdir()]:
                if path.is_dir() and path != self.path / ENDS:
                    shutil.rmtree(path)
            return
        with Store(self.path) as store:
            self._ends, _ = store.open_episodes(store.find_arrays())
            self._arrays = {
                name: self._open_array(store, name, rows)
                for folder, rows in (("data", self.frames), ("meta", len(self)))
                for name in store.find_paths(folder)
                if name != ENDS
            }

    def _open_array(self, store: Store, name: str, rows: int) -> "zarr.Array[Any]":
        """Check the committed rows of an array, open it for writing and cut off any rows behind them."""
        import zarr

        from .atomic_store import AtomicStore

        stored = store.open_path(name)
        if stored.shape[0] < rows:
            raise DemoError(f"{name} has {stored.shape[0]} rows of {rows}; restore it from a copy")
        stored.check_parts(rows)
        stored.read(rows - rows % stored.rows_per_read, rows)  # the chunk that will be rewritten
        angles, expected = stored.zarray.attrs.get("angles", []), self._angles.get(name, [])
        if angles != sorted(expected):
            raise DemoError(f"{name} was recorded with angle columns {angles}, not {expected}")
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = zarr.open_array(AtomicStore(self.path), path=name, mode="r+", zarr_format=2)
        _cut_off(array, rows)
        return array

    def _create_array(self, name: str, rows: LazyRows) -> "zarr.Array[Any]":
        """Create an array without rows, for rows like these."""
        from .atomic_store import AtomicStore

        angles = self._angles.get(name)
        attributes = {"angles": list(check_angles(angles, rows.shape[1], name))} if angles else {}
        row_bytes = rows.dtype.itemsize * math.prod(rows.shape[1:])
        shape, chunk_rows = (0, *rows.shape[1:]), max(1, CHUNK_BYTES // row_bytes)
        store = AtomicStore(self.path)
        return _create(store, name, shape, rows.dtype, chunk_rows, attributes=attributes, overwrite=True)

    def _collect_rows(
        self, episode: Episode | None, extras: Mapping[str, LazyRows], info: Mapping[str, float | np.generic]
    ) -> dict[str, LazyRows]:
        """Return the new rows of every array, frames first; raise if they do not fit."""
        rows: dict[str, LazyRows] = {} if episode is None else {STATE: episode.obs, ACTION: episode.act}
        extras = {
            key: values if hasattr(values, "dtype") else np.asarray(values) for key, values in extras.items()
        }
        frames = next((values.shape[0] for values in (*rows.values(), *extras.values()) if values.shape), 0)
        if frames < MIN_STEPS:
            raise DemoError(f"an episode needs at least {MIN_STEPS} frames, got {frames}")
        for key, values in extras.items():
            if not re.fullmatch(r"\w+", key) or f"data/{key}" in rows:
                raise DemoError(f"{key!r} cannot name an extra array; use letters, digits and _")
            rows[f"data/{key}"] = _check_rows(key, values, frames)
        for key, value in info.items():
            if not re.fullmatch(r"\w+", key) or INFO_PREFIX + key == ENDS:
                raise DemoError(f"{key!r} cannot name episode information; use letters, digits and _")
            rows[INFO_PREFIX + key] = _check_rows(key, np.asarray([value]), 1)
        if self._arrays and rows.keys() != self._arrays.keys():
            raise DemoError(f"got arrays {sorted(rows)}, the recording has {sorted(self._arrays)}")
        for name, array in self._arrays.items():
            if (rows[name].shape[1:], rows[name].dtype) != (array.shape[1:], array.dtype):
                raise DemoError(f"{name} is {_describe(rows[name])}, the recording has {_describe(array)}")
        return rows

    def _write_ends(self, ends: Ints, *, chunks: bool = True) -> None:
        """Commit episodes: write the chunks of their ends first, and then the metadata with their number.

        Without `chunks`, only the number is written.
        """
        from zarr.storage import MemoryStore

        files: dict[str, Any] = {}
        array = _create(MemoryStore(files), ENDS, ends.shape, ends.dtype, ENDS_PER_CHUNK)
        array[:] = ends
        metadata = f"{ENDS}/.zarray"
        parts = [key for key in files if re.fullmatch(rf"{ENDS}/\d+", key)] if chunks else []
        for key in (*parts, metadata):
            replace_file(self.path / key, files[key].to_bytes())


def _create(
    store: "ZarrStore", name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int, **options: Any
) -> "zarr.Array[Any]":
    """Create an array of zeros, whose chunks are all written."""
    import zarr

    return zarr.create_array(
        store,
        name=name,
        shape=shape,
        chunks=(chunk_rows, *shape[1:]),
        dtype=dtype,
        zarr_format=2,
        compressors=COMPRESSOR,
        fill_value=0,
        config={"write_empty_chunks": True},
        **options,
    )


def _write_rows(array: "zarr.Array[Any]", start: int, rows: LazyRows) -> None:
    """Write rows behind the first `start` ones, block by block, so that few of them are in memory."""
    _cut_off(array, start)  # rows of an episode that could not be committed
    chunk_rows, end = array.chunks[0], start + rows.shape[0]
    array.resize((end, *array.shape[1:]))
    block_rows = chunk_rows * max(1, MAX_WRITE_BYTES // (chunk_rows * rows[:1].nbytes))
    for first in range(start - start % block_rows, end, block_rows):
        low, high = max(first, start), min(first + block_rows, end)
        array[low:high] = rows[low - start : high - start]


def _cut_off(array: "zarr.Array[Any]", rows: int) -> None:
    """Remove all rows behind the first `rows` ones, so that the array is as if it never had more."""
    if array.shape[0] > rows:
        end_of_chunk = rows + -rows % array.chunks[0]
        array[rows:end_of_chunk] = 0
        array.resize((rows, *array.shape[1:]))


def _check_rows(key: str, values: LazyRows, frames: int) -> LazyRows:
    shape = values.shape
    is_stored = values.dtype.kind in "biuf" and values.dtype.itemsize <= 8
    if not is_stored or not shape or shape[0] != frames or not np.prod(shape):
        raise DemoError(f"{key} is {_describe(values)}, expected {frames} rows of real numbers up to 64 bits")
    if values.dtype.kind == "f" and not np.isfinite(values[:]).all():
        raise DemoError(f"{key} holds NaN or infinity; nothing of this episode was recorded")
    if is_colour(shape) and values.dtype != np.uint8:
        check_scale(key, values.dtype, float(values[:].max()))
    return values


def _describe(values: "LazyRows | zarr.Array[Any]") -> str:
    return f"{values.dtype} {values.shape}"
