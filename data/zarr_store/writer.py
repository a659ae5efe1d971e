"""Crash-safe recording of demonstrations: a crash loses at most the episode being written.

An episode is committed by one atomic step, the replacement of `meta/episode_ends/.zarray`, which holds the
number of episodes. All writes before that step only add rows behind the committed ones: complete chunks never
change, the incomplete one is replaced by a copy with more rows, and every file is replaced atomically. So the
store on disk holds all committed episodes at any time; rows behind them are ignored by the reader and cut off
by the next writer.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from nsde_policy.errors import DemoError, NsdePolicyError, describe_problem
from nsde_policy.files import PARTIAL, lock_directory, read_json, replace_file

from ..images import check_scale
from ..roles import is_colour
from ..types import MIN_STEPS, Episode, Ints, Numbers, check_angles, check_rate
from .growing_array import GrowingArray
from .store import ENDS, RECORDING, Store

STATE, ACTION = "data/state", "data/action"
INFO_PREFIX = "meta/episode_"
"""Prefix of arrays with one number per episode: `info={"seed": 7}` is stored in meta/episode_seed."""
MADE_WITH = "made_with"
"""Root attribute with the settings that determine all episodes of a recording."""
GROUPS = (".zgroup", "data/.zgroup", "meta/.zgroup")
Attribute = TypeVar("Attribute", dict[str, Any], list[Any])
MAX_WRITE_BYTES = 32 * 2**20
"""Rows are written in blocks of about this size."""


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

    _ends: GrowingArray
    _arrays: dict[str, GrowingArray]

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
        self._session: dict[str, object] | None = {"started": started, **(provenance or {})}
        self._lock = lock_directory(self.path)
        try:
            self._check_links()
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
        return self._ends.length

    @property
    def frames(self) -> int:
        """Number of frames of all committed episodes."""
        return next((array.length for name, array in self._arrays.items() if name.startswith("data/")), 0)

    def close(self) -> None:
        """Release the lock on the store; all appended episodes are already on disk."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read_info(self) -> dict[str, Numbers]:
        """Read the `info` of all committed episodes, (episodes,) each."""
        self._require_open()
        names = [name for name in self._arrays if name.startswith(INFO_PREFIX)]
        with Store(self.path) as store:
            return {n.removeprefix(INFO_PREFIX): store.open_path(n).read(0, len(self)) for n in names}

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
        arrays = self._arrays or {name: self._create_array(name, values) for name, values in rows.items()}
        frames = next(iter(rows))
        end = np.array([arrays[frames].length + rows[frames].shape[0]], np.int64)
        try:
            self._write_session()
            grown = {name: self._write_rows(arrays[name], values) for name, values in rows.items()}
            self._write(self._ends.encode(end))
        except (OSError, NsdePolicyError) as error:
            why = describe_problem(error)
            raise DemoError(f"{self.path}: episode not recorded, {why}; earlier ones are safe") from error
        self._arrays = grown
        self._ends = self._ends.extend(end)

    def drop_last(self) -> None:
        """Remove the last committed episode, by one atomic step."""
        self._require_open()
        if not len(self):
            raise DemoError(f"{self.path} holds no episode to drop")
        key = f"{ENDS}/.zarray"
        shorter = _make_empty_ends().encode(self._read_ends()[:-1])
        self._write({key: shorter[key]})
        self._load()

    def _require_open(self) -> None:
        """Raise `DemoError` if the writer was closed: another one may be writing to the store by now."""
        if self._lock < 0:
            raise DemoError(f"the writer of {self.path} is closed; open a new one")

    def _check_links(self) -> None:
        """Raise `DemoError` for links to folders: the writer could change files outside the store."""
        for parent, folders, _ in os.walk(self.path):
            for folder in folders:
                if os.path.islink(link := os.path.join(parent, folder)):
                    raise DemoError(
                        f"{link} is a link; recording needs real folders: replace it with a copy of what it "
                        "leads to, or choose a new path"
                    )

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
        self._write({".zattrs": json.dumps(attributes).encode()})
        self._write(dict.fromkeys(GROUPS, b'{"zarr_format": 2}'))
        self._write(_make_empty_ends().encode(np.zeros(0, np.int64)))

    def _read_attributes(self) -> dict[str, Any]:
        path = self.path / ".zattrs"
        return read_json(path, error=DemoError, allow_nan=True) if os.path.lexists(path) else {}

    def _check_settings(self, recorded: Mapping[str, Any], settings: Mapping[str, object]) -> None:
        """Raise `DemoError` if a recording was made with other settings."""
        written = {**get_attribute(recorded, MADE_WITH, {}, self.path), "rate_hz": recorded.get("rate_hz")}
        for name in {**written, **settings}:
            old, new = written.get(name), settings.get(name)
            if old != new:
                raise DemoError(
                    f"{self.path} was made with {name} {json.dumps(old)}, not {json.dumps(new)}; continue "
                    "with the same settings or choose a new path"
                )

    def _write_session(self) -> None:
        """Store the provenance before the first episode that this writer appends."""
        if self._session is None:
            return
        attributes = self._read_attributes()
        new = {"first_episode": len(self), **self._session}
        attributes["sessions"] = [*get_attribute(attributes, "sessions", [], self.path), new]
        self._write({".zattrs": json.dumps(attributes).encode()})
        self._session = None

    def _load(self) -> None:
        """Load the committed episodes and cut off any rows behind them."""
        ends = self._read_ends()
        self._ends = _make_empty_ends().extend(ends)
        self._arrays = {}
        if not len(ends):
            for path in [path for part in ("data", "meta") for path in (self.path / part).iterdir()]:
                if path.is_dir() and path != self.path / ENDS:
                    shutil.rmtree(path)
            return
        with Store(self.path) as store:
            for folder, rows in (("data", int(ends[-1])), ("meta", len(ends))):
                for name in store.find_paths(folder):
                    if name != ENDS:
                        self._arrays[name] = self._load_array(store, name, rows)

    def _read_ends(self) -> Ints:
        """Read the ends of the committed episodes."""
        if not self._has_episodes():
            return np.zeros(0, np.int64)
        with Store(self.path) as store:
            return store.open_episodes(store.find_arrays())[0]

    def _load_array(self, store: Store, name: str, rows: int) -> GrowingArray:
        """Load the committed rows of an array and cut off any others."""
        stored = store.open_path(name)
        if stored.shape[0] < rows:
            raise DemoError(f"{name} has {stored.shape[0]} rows of {rows}; restore it from a copy")
        stored.check_parts(rows)
        tail = stored.read(rows - rows % stored.rows_per_read, rows)
        array = GrowingArray(name, rows, tail, stored.rows_per_read, dict(stored.zarray.attrs))
        angles, expected = array.attributes.get("angles", []), self._angles.get(name, [])
        if angles != sorted(expected):
            raise DemoError(f"{name} was recorded with angle columns {angles}, not {expected}")
        if stored.shape[0] > rows:
            self._write(array.encode(tail[:0]))
            for chunk in (self.path / name).glob("[0-9]*"):
                if int(chunk.name.split(".")[0]) * array.chunk_rows >= array.length:
                    chunk.unlink()
        return array

    def _write_rows(self, array: GrowingArray, rows: LazyRows) -> GrowingArray:
        """Write rows block by block, so that few of them are in memory, and return the grown array."""
        chunk_bytes = array.chunk_rows * rows[:1].nbytes
        block_rows = array.chunk_rows * max(1, MAX_WRITE_BYTES // max(1, chunk_bytes))
        start, end = 0, block_rows - len(array.tail)
        while start < len(rows):
            block = rows[start:end]
            self._write(array.encode(block))
            array = array.extend(block)
            start, end = end, end + block_rows
        return array

    def _create_array(self, name: str, rows: LazyRows) -> GrowingArray:
        angles = self._angles.get(name)
        attributes = {"angles": list(check_angles(angles, rows.shape[1], name))} if angles else {}
        return GrowingArray.empty(name, rows[:1], attributes)

    def _collect_rows(
        self, episode: Episode | None, extras: Mapping[str, LazyRows], info: Mapping[str, float | np.generic]
    ) -> dict[str, LazyRows]:
        """Return the new rows of every array, those of frames first; raise if they do not fit."""
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
            if (rows[name].shape[1:], rows[name].dtype) != (array.tail.shape[1:], array.tail.dtype):
                raise DemoError(
                    f"{name} is {_describe(rows[name])}, the recording has {_describe(array.tail)}"
                )
        return rows

    def _write(self, files: Mapping[str, bytes]) -> None:
        """Replace files atomically, in the given order."""
        for key, content in files.items():
            replace_file(self.path / key, content)


def get_attribute(attributes: Mapping[str, Any], name: str, default: Attribute, path: Path) -> Attribute:
    """Return an attribute of a store; raise `DemoError` unless it has the type of its default."""
    value = attributes.get(name, default)
    if not isinstance(value, type(default)):
        raise DemoError(
            f"the attribute {name} of {path} is {value!r:.80}, expected a {type(default).__name__}; "
            "correct or remove it"
        )
    return value


def _make_empty_ends() -> GrowingArray:
    return GrowingArray.empty(ENDS, np.zeros(0, np.int64), {})


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


def _describe(values: LazyRows) -> str:
    return f"{values.dtype} {values.shape}"
