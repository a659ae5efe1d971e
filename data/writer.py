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

from nsde_policy.data.arrays import read_json
from nsde_policy.data.durable import lock_directory
from nsde_policy.data.episodes import Episode, Ints, check_angles, check_rate
from nsde_policy.data.files import DirectoryFiles
from nsde_policy.data.growing import GrowingArray
from nsde_policy.data.store import RECORDING, Store
from nsde_policy.errors import DamagedStoreError, DemoError, EpisodeError, NonFiniteError, NotAStoreError
from nsde_policy.files import PARTIAL, replace_file

ENDS = "meta/episode_ends"
GROUPS = (".zgroup", "data/.zgroup", "meta/.zgroup")
NO_ENDS: Ints = np.zeros(0, np.int64)


class DemoWriter:
    """Appends whole episodes to a replay-buffer store, zarr format 2; one writer at a time (POSIX).

        with DemoWriter("demos.zarr", rate_hz=10, angles=(4,)) as writer:
            writer.append(Episode(obs, act), extras={"img": frames})

    The first episode decides the arrays, their widths and types. An existing recording is continued.
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
        """
        check_rate(rate_hz)
        self.path = Path(path)
        self._keys = (obs_key, act_key)
        self._angles = {f"data/{obs_key}": list(angles), f"data/{act_key}": list(act_angles)}
        self._lock = lock_directory(self.path)
        try:
            self._begin({"obs_key": obs_key, "act_key": act_key}, rate_hz, dict(provenance or {}))
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

    def append(self, episode: Episode, extras: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Commit one episode, with `extras` such as images, one row per frame each."""
        if self._lock < 0:
            raise DemoError(f"the writer of {self.path} is closed; open a new one")
        rows = self._rows(episode, extras or {})
        arrays = self._arrays or {name: self._new_array(name, values) for name, values in rows.items()}
        end = np.array([self._frames + len(episode)], np.int64)
        try:
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
        """Take back the last committed episode."""
        if not len(self):
            raise EpisodeError(f"{self.path} holds no episode to drop")
        kept = self._committed_ends()[:-1]
        self._write(GrowingArray.empty(ENDS, NO_ENDS, {}).files(kept))
        self._load()

    def _begin(self, keys: dict[str, str], rate_hz: float | None, provenance: dict[str, Any]) -> None:
        """Mark an empty directory as a recording, or continue the one that is there."""
        settings = {RECORDING: keys, "rate_hz": rate_hz}
        if {path.name for path in self.path.iterdir()} <= {".zattrs" + PARTIAL}:
            self._write({".zattrs": json.dumps(settings).encode()})
        attributes = read_json(DirectoryFiles(self.path), ".zattrs")
        if RECORDING not in attributes:
            raise NotAStoreError(f"{self.path} is no recording of this package; choose a new path")
        found = {name: attributes.get(name) for name in settings}
        if found != settings:
            raise EpisodeError(f"{self.path} was recorded with {found}, which {settings} cannot continue")
        for partial in self.path.rglob(f"*{PARTIAL}"):
            partial.unlink()
        self._write({group: b'{"zarr_format": 2}' for group in GROUPS if not (self.path / group).is_file()})
        self._load()
        session = {"first_episode": len(self), "started": datetime.now(UTC).isoformat(), **provenance}
        attributes["sessions"] = [*attributes.get("sessions", []), session]
        self._write({".zattrs": json.dumps(attributes).encode()})

    def _load(self) -> None:
        """Take up the committed episodes, and cut off whatever lies behind them."""
        ends = self._committed_ends()
        self._ends = GrowingArray.empty(ENDS, NO_ENDS, {}).extended(ends)
        self._frames = int(ends[-1]) if len(ends) else 0
        self._arrays = {}
        if not self._frames:
            for folder in (path for path in (self.path / "data").iterdir() if path.is_dir()):
                shutil.rmtree(folder)
            return
        with Store(self.path) as store:
            for name in store.names("data"):
                self._arrays[name] = self._take_up(store, name)

    def _committed_ends(self) -> Ints:
        with Store(self.path) as store:
            names = store.names("data")
            if not store.names("meta"):
                if names:
                    raise DamagedStoreError(f"{self.path} has lost {ENDS}; restore it before recording more")
                self._write(GrowingArray.empty(ENDS, NO_ENDS, {}).files(NO_ENDS))
            return store.episodes(names)[0] if store.array(ENDS).shape[0] else NO_ENDS

    def _take_up(self, store: Store, name: str) -> GrowingArray:
        """Continue an array behind its committed rows; longer ones are cut off there."""
        stored = store.array(name)
        stored.verify(self._frames)
        tail = stored.read(self._frames - self._frames % stored.rows_per_read, self._frames)
        array = GrowingArray(name, self._frames, tail, stored.rows_per_read, stored.attributes)
        angles, given = array.attributes.get("angles", []), self._angles.get(name, [])
        if angles != sorted(given):
            raise EpisodeError(f"{name} was recorded with angle columns {angles}, not {given}")
        if stored.shape[0] > self._frames:
            self._write(array.files(tail[:0]))
            for chunk in (self.path / name).glob("[0-9]*"):
                if int(chunk.name.split(".")[0]) * array.chunk_rows >= array.length:
                    chunk.unlink()
        return array

    def _new_array(self, name: str, rows: npt.NDArray[Any]) -> GrowingArray:
        angles = self._angles.get(name)
        attributes = {"angles": list(check_angles(angles, rows.shape[1], name))} if angles else {}
        return GrowingArray.empty(name, rows, attributes)

    def _rows(self, episode: Episode, extras: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The new rows of every array, after refusing any that do not fit."""
        given = dict(zip(self._keys, (episode.obs, episode.act), strict=True))
        for key, values in extras.items():
            if not re.fullmatch(r"\w+", key) or key in given:
                raise EpisodeError(f"{key!r} cannot name an extra array; use letters, digits and _")
            given[key] = _checked_extra(key, np.asarray(values), len(episode))
        rows: dict[str, npt.NDArray[Any]] = {f"data/{key}": values for key, values in given.items()}
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
        raise NonFiniteError(f"{key} holds NaN or infinity; nothing of this episode was recorded")
    return values


def _form(values: npt.NDArray[Any]) -> str:
    return f"{values.dtype} {values.shape}"
