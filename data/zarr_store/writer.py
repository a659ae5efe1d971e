"""Recording demonstrations so that a crash costs at most the episode being written.

An episode is committed by one atomic step, the replacement of `meta/episode_ends/.zarray`, which
says how many episodes there are. Everything before that step only adds rows behind the committed
ones: finished chunks never change, the unfinished one is replaced by a copy with more rows, and
every file is replaced whole. So at any moment the store on disk holds all committed episodes; what
lies behind them is ignored by the loader and cut off by the next writer.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.data.types import Episode, Ints, check_angles, check_rate
from nsde_policy.data.zarr_store.arrays import read_metadata
from nsde_policy.data.zarr_store.files import DirectoryFiles
from nsde_policy.data.zarr_store.growing_array import GrowingArray
from nsde_policy.data.zarr_store.lock import lock_directory
from nsde_policy.data.zarr_store.store import MADE_WITH, RECORDING, Store
from nsde_policy.errors import DamagedStoreError, DemoError, EpisodeError, NotAStoreError
from nsde_policy.files import PARTIAL, replace_file

ENDS = "meta/episode_ends"
ABOUT = "meta/episode_"
"""Where what is noted about each episode begins: its seed is in meta/episode_seed."""
GROUPS = (".zgroup", "data/.zgroup", "meta/.zgroup")
NO_ENDS: Ints = np.zeros(0, np.int64)


class DemoWriter:
    """Appends whole episodes to a replay-buffer store, zarr format 2; one writer at a time (POSIX).

        with DemoWriter("demos.zarr", rate_hz=10, angles=(4,)) as writer:
            writer.append(Episode(obs, act), extras={"img": frames}, about={"seed": 7})

    The first episode decides the arrays, their widths and types. An existing recording is continued; who
    opens it and records nothing leaves no trace.
    """

    _ends: GrowingArray
    _arrays: dict[str, GrowingArray]
    _frames: int

    def __init__(
        self,
        path: Path | str,
        *,
        rate_hz: float | None = None,
        angles: Sequence[int] = (),
        act_angles: Sequence[int] = (),
        obs_key: str = "state",
        act_key: str = "action",
        provenance: Mapping[str, Any] | None = None,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        """Open or begin a recording.

        Args:
            path: a directory; it is created, or holds an earlier recording.
            rate_hz: frames per second.
            angles: which columns of an observation are angles in radians.
            act_angles: which columns of an action are.
            obs_key: name of the observations' array below `data/`.
            act_key: name of the actions' array.
            provenance: who, what, where: noted in the store with the episode it begins at; JSON.
            made_with: how all its episodes come about; a recording made otherwise is not continued; JSON.
        """
        check_rate(rate_hz)
        self.path = Path(path)
        self._keys = (obs_key, act_key)
        self._angles = {f"data/{obs_key}": list(angles), f"data/{act_key}": list(act_angles)}
        self._session = {"started": datetime.now(UTC).isoformat(timespec="seconds"), **(provenance or {})}
        self._noted: int | None = None
        self._lock = lock_directory(self.path)
        try:
            settings = {RECORDING: {"obs_key": obs_key, "act_key": act_key}, "rate_hz": rate_hz}
            self._begin(settings, json.loads(json.dumps(made_with or {})))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "DemoWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Episodes committed so far."""
        return self._ends.length

    def close(self) -> None:
        """Let others write; every appended episode is on disk already."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def about(self) -> dict[str, npt.NDArray[Any]]:
        """What was noted about the committed episodes, (episodes,) each."""
        with Store(self.path) as store:
            return {
                name.removeprefix(ABOUT): store.array(name).read(0, len(self))
                for name in self._arrays
                if name.startswith(ABOUT)
            }

    def append(
        self,
        episode: Episode,
        extras: Mapping[str, npt.NDArray[Any]] | None = None,
        about: Mapping[str, float] | None = None,
    ) -> None:
        """Commit one episode, with `extras` such as images, one row per frame, and numbers `about` it."""
        if self._lock < 0:
            raise DemoError(f"the writer of {self.path} is closed; open a new one")
        rows = self._rows(episode, extras or {}, about or {})
        arrays = self._arrays or {name: self._new_array(name, values) for name, values in rows.items()}
        end = np.array([self._frames + len(episode)], np.int64)
        try:
            self._note_session()
            for name, values in rows.items():
                self._write(arrays[name].files(values))
            self._write(self._ends.files(end))
        except OSError as error:
            why = error.strerror or str(error)
            raise DemoError(f"{self.path}: episode not recorded, {why}; earlier ones are safe") from error
        self._arrays = {name: arrays[name].extended(values) for name, values in rows.items()}
        self._ends = self._ends.extended(end)
        self._frames += len(episode)

    def drop_last(self) -> None:
        """Take back the last committed episode, by the one step that says how many there are."""
        if not len(self):
            raise EpisodeError(f"{self.path} holds no episode to drop")
        count = f"{ENDS}/.zarray"
        shorter = GrowingArray.empty(ENDS, NO_ENDS, {}).files(self._committed_ends()[:-1])
        self._write({count: shorter[count]})
        self._load()

    def _begin(self, settings: dict[str, Any], made_with: dict[str, Any]) -> None:
        """Mark an empty directory as a recording, or continue the one that is there."""
        attributes = self._noted_so_far()
        if attributes is None:  # nobody has recorded anything here
            made = {MADE_WITH: made_with} if made_with else {}
            self._write({".zattrs": json.dumps({**settings, **made}).encode()})
            attributes = read_metadata(DirectoryFiles(self.path), ".zattrs")
        if RECORDING not in attributes:
            raise NotAStoreError(f"{self.path} is no recording of this package; choose a new path")
        found = {name: attributes.get(name) for name in settings}
        if found != settings:
            raise EpisodeError(f"{self.path} was recorded with {found}, which {settings} cannot continue")
        self._check_made_alike(attributes.get(MADE_WITH, {}), made_with)
        for partial in self.path.rglob(f"*{PARTIAL}"):
            partial.unlink()
        self._write({group: b'{"zarr_format": 2}' for group in GROUPS if not (self.path / group).is_file()})
        self._load()

    def _noted_so_far(self) -> dict[str, Any] | None:
        """What the store says of itself; None where it is empty, whatever was meant to come into it."""
        if {path.name for path in self.path.iterdir()} <= {".zattrs" + PARTIAL}:
            return None
        attributes = read_metadata(DirectoryFiles(self.path), ".zattrs")
        ends = f"{ENDS}/.zarray"
        counted = (self.path / ends).is_file() and read_metadata(DirectoryFiles(self.path), ends)[
            "shape"
        ] != [0]
        held = counted or any(path.is_dir() for path in (self.path / "data").glob("*"))
        return attributes if held or RECORDING not in attributes else None

    def _check_made_alike(self, found: Any, given: dict[str, Any]) -> None:
        """Refuse to mix episodes that come about in different ways."""
        if found == given:
            return
        if not found or not isinstance(found, dict):
            raise EpisodeError(
                f"{self.path} does not say how its episodes were made, so none are added; choose a new path"
            )
        for name in {**found, **given}:
            was, wanted = found.get(name), given.get(name)
            if was != wanted:
                how = f"by {was}" if name == "by" else f"with {name} {json.dumps(was)}"
                otherwise = f"by {wanted or 'somebody unnamed'}" if name == "by" else json.dumps(wanted)
                raise EpisodeError(
                    f"{self.path} was made {how}, not {otherwise}; "
                    "go on with the same settings, or choose a new path"
                )

    def _note_session(self) -> None:
        """Say who records, before the first episode; sessions of which nothing is left are forgotten."""
        if self._noted is not None and self._noted <= len(self):
            return
        attributes = read_metadata(DirectoryFiles(self.path), ".zattrs")
        earlier = [s for s in attributes.get("sessions", []) if s.get("first_episode", 0) < len(self)]
        attributes["sessions"] = [*earlier, {"first_episode": len(self), **self._session}]
        self._write({".zattrs": json.dumps(attributes).encode()})
        self._noted = len(self)

    def _load(self) -> None:
        """Take up the committed episodes, and cut off whatever lies behind them."""
        ends = self._committed_ends()
        self._ends = GrowingArray.empty(ENDS, NO_ENDS, {}).extended(ends)
        self._frames = int(ends[-1]) if len(ends) else 0
        self._arrays = {}
        if not self._frames:
            folders = [path for part in ("data", "meta") for path in (self.path / part).iterdir()]
            for folder in folders:
                if folder.is_dir() and folder != self.path / ENDS:
                    shutil.rmtree(folder)
            return
        with Store(self.path) as store:
            for name in store.names("data"):
                self._arrays[name] = self._take_up(store, name, self._frames)
            for name in store.names("meta"):
                if name != ENDS:
                    self._arrays[name] = self._take_up(store, name, len(self))

    def _committed_ends(self) -> Ints:
        with Store(self.path) as store:
            names = store.names("data")
            if ENDS not in store.names("meta"):
                if names:
                    raise DamagedStoreError(f"{self.path} has lost {ENDS}; restore it before recording more")
                self._write(GrowingArray.empty(ENDS, NO_ENDS, {}).files(NO_ENDS))
            return store.episodes(names)[0] if store.array(ENDS).shape[0] else NO_ENDS

    def _take_up(self, store: Store, name: str, rows: int) -> GrowingArray:
        """Continue an array behind its committed rows; longer ones are cut off there."""
        stored = store.array(name)
        if stored.shape[0] < rows:
            raise DamagedStoreError(f"{name} has {stored.shape[0]} rows of {rows}; restore it from a copy")
        stored.verify(rows)
        tail = stored.read(rows - rows % stored.rows_per_read, rows)
        array = GrowingArray(name, rows, tail, stored.rows_per_read, stored.attributes)
        angles, given = array.attributes.get("angles", []), self._angles.get(name, [])
        if angles != sorted(given):
            raise EpisodeError(f"{name} was recorded with angle columns {angles}, not {given}")
        if stored.shape[0] > rows:
            self._write(array.files(tail[:0]))
            for chunk in (self.path / name).glob("[0-9]*"):
                if int(chunk.name.split(".")[0]) * array.chunk_rows >= array.length:
                    chunk.unlink()
        return array

    def _new_array(self, name: str, rows: npt.NDArray[Any]) -> GrowingArray:
        angles = self._angles.get(name)
        attributes = {"angles": list(check_angles(angles, rows.shape[1], name))} if angles else {}
        return GrowingArray.empty(name, rows, attributes)

    def _rows(
        self, episode: Episode, extras: Mapping[str, npt.NDArray[Any]], about: Mapping[str, float]
    ) -> dict[str, npt.NDArray[Any]]:
        """The new rows of every array, after refusing any that do not fit."""
        given = dict(zip(self._keys, (episode.obs, episode.act), strict=True))
        for key, values in extras.items():
            if not re.fullmatch(r"\w+", key) or key in given:
                raise EpisodeError(f"{key!r} cannot name an extra array; use letters, digits and _")
            given[key] = _checked_extra(key, np.asarray(values), len(episode))
        rows: dict[str, npt.NDArray[Any]] = {f"data/{key}": values for key, values in given.items()}
        for key, value in about.items():
            if not re.fullmatch(r"\w+", key) or ABOUT + key == ENDS:
                raise EpisodeError(f"{key!r} cannot name a note; use letters, digits and _")
            rows[ABOUT + key] = _checked_extra(key, np.asarray([value]), 1)
        if self._arrays and rows.keys() != self._arrays.keys():
            raise EpisodeError(f"got arrays {sorted(rows)}, the recording has {sorted(self._arrays)}")
        for name, array in self._arrays.items():
            if (rows[name].shape[1:], rows[name].dtype) != (array.tail.shape[1:], array.tail.dtype):
                raise EpisodeError(f"{name} is {_form(rows[name])}, the recording has {_form(array.tail)}")
        return rows

    def _write(self, files: Mapping[str, bytes]) -> None:
        """Replace files one after the other, in the order given."""
        for key, content in files.items():
            replace_file(self.path / key, content)


def _checked_extra(key: str, values: npt.NDArray[Any], frames: int) -> npt.NDArray[Any]:
    """One row of finite real numbers per frame, or an error."""
    if values.dtype.kind not in "biuf" or values.ndim < 1 or len(values) != frames or not values.size:
        raise EpisodeError(f"{key} is {_form(values)}, expected {frames} rows of real numbers")
    if not np.isfinite(values).all():
        raise EpisodeError(f"{key} holds NaN or infinity; nothing of this episode was recorded")
    return values


def _form(values: npt.NDArray[Any]) -> str:
    return f"{values.dtype} {values.shape}"
