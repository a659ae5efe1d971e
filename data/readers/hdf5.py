"""HDF5 files: one group or one file per episode, or D4RL's flat arrays.

robomimic, MimicGen, LIBERO, RoboCasa, Isaac Lab   data/demo_N/{actions, obs/<key>}
robosuite, raw                                     data/demo_N/{actions, states}
Minari, ManiSkill                                  {episode, traj}_N/{actions, observations or obs}
ALOHA, a file for each episode                     action, observations/{qpos, images/<camera>}
D4RL                                               actions, observations, terminals, timeouts
"""

import math
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.hdf5_arrays import Hdf5Array, check_links, find_datasets, open_hdf5
from nsde_policy.data.parted_array import Part
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.roles import is_camera
from nsde_policy.data.source import MAX_COLUMNS, Source, SourceArray
from nsde_policy.data.types import MIN_STEPS, Ints, Numbers, check_rate
from nsde_policy.data.zarr_store.store import wrap_read_errors
from nsde_policy.errors import DemoError
from nsde_policy.files import parse_json

HDF5_SUFFIXES = (".hdf5", ".h5")
MINARI_FILE = "main_data.hdf5"
MAX_OPEN_FILES = 32
"""Maximum number of files that are open at the same time."""
MAX_TEXT = 200
"""Longest text that is kept as an attribute."""
FRAMES = re.compile(r"obs|action|states$")
"""Start of the names of arrays that must have a row per frame; others are left out if they do not."""
ROBOMIMIC_STATE = tuple(
    f"obs/{key}" for key in ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
)
"""Observations that robomimic trains on by default."""
D4RL, RAW = "D4RL HDF5", "robosuite raw HDF5"


class Hdf5Source(Source):
    """Demonstrations in HDF5 files; only names, shapes, types and attributes are read when it is opened."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._open_file = lru_cache(MAX_OPEN_FILES)(open_hdf5)
        self._episodes: list[tuple[Path, str]] = []
        self._parts: list[dict[str, Part]] = []
        self._lengths: list[int] = []
        self._attributes: dict[str, Any] = {}
        formats: list[str] = []
        with wrap_read_errors(f"{path} cannot be read"):
            for file in files:
                name, groups = _find_episodes(self._open_file(file), file)
                formats.append(name)
                self._episodes += [(file, group) for group in groups]
            if len(set(formats)) != 1 or not self._episodes:
                raise DemoError(
                    f"{path} holds {' and '.join(dict.fromkeys(formats)) or 'no HDF5 files'} and "
                    f"{len(self._episodes)} episodes, expected at least one episode, all in one format"
                )
            self.format = formats[0]
            self._parts = [self._find_parts(file, group) for file, group in self._episodes]
            env_args = _read_env_args(self._group(0).parent)
            self.rate_hz = self._find_rate(env_args)
            self._attributes |= self._find_attributes(env_args)
        self.conventions = self._find_conventions()

    @property
    def attributes(self) -> dict[str, Any]:
        """Short attributes of the file and of its group data/, and the name of the environment."""
        return self._attributes

    def find_arrays(self) -> list[str]:
        """Return the names of all arrays with a row for each frame."""
        return self._names

    @cached_property
    def _names(self) -> list[str]:
        frames = {name for parts in self._parts for name in parts if FRAMES.match(name)}
        return sorted(frames.union(set.intersection(*map(set, self._parts))), key=natural_key)

    def open_array(self, name: str) -> SourceArray:
        """Open an array, which must have the same type and columns in all episodes."""
        if name not in self._names:
            raise DemoError(self.describe_missing(name))
        for parts, (file, group) in zip(self._parts, self._episodes, strict=True):
            if name not in parts:
                raise DemoError(
                    f"{group} in {file} has no {name}, which other episodes have; it holds: "
                    f"{', '.join(parts)}; repair or remove the episode"
                )
        array = Hdf5Array(name, [parts[name] for parts in self._parts], self._open_file)
        if self.format == RAW and name == "states":
            array.columns = ("time", *(f"states[{column}]" for column in range(1, array.width)))
        return array

    def read_ends(self) -> Ints:
        """Return the ends of the episodes, in the order of their numbers."""
        return np.cumsum(self._lengths)

    def read_info(self) -> dict[str, Numbers]:
        """Return the numbers that all episodes have as attributes, such as the seed."""
        with wrap_read_errors(f"the attributes of the episodes in {self.path} cannot be read"):
            found = [_read_numbers(self._group(i).attrs) for i in range(len(self._episodes))]
        shared = set.intersection(*map(set, found))
        return {key: np.array([numbers[key] for numbers in found]) for key in sorted(shared)}

    def describe_missing(self, name: str) -> str:
        """Describe a missing array; robosuite's raw recordings have no observations."""
        if self.format != RAW:
            return super().describe_missing(name)
        return (
            f"{super().describe_missing(name)}; this is a raw recording of robosuite without observations, "
            "which robomimic's dataset_states_to_obs.py computes; its states are the simulator's and begin "
            "with the time"
        )

    def close(self) -> None:
        """Close all files as soon as no array reads them."""
        self._open_file.cache_clear()

    def _group(self, episode: int) -> Any:
        file, group = self._episodes[episode]
        return self._open_file(file)[group]

    def _find_parts(self, file: Path, group: str) -> dict[str, Part]:
        """Return the datasets of an episode by name, and note its length."""
        opened = self._open_file(file)[group]
        datasets = dict(find_datasets(opened))
        actions = next((d for name, d in datasets.items() if re.match(r"actions?(/|$)", name)), None)
        if actions is None or not actions.shape:
            raise DemoError(
                f"{group} in {file} has no actions, it holds: {', '.join(datasets) or 'nothing'}; repair or "
                "remove the episode"
            )
        rows = actions.shape[0]
        declared = opened.attrs.get("num_samples", opened.attrs.get("total_steps", rows))
        if declared != rows:
            raise DemoError(
                f"{group} in {file} has {rows} actions, but its attribute num_samples or total_steps is "
                f"{declared}; restore the episode from the original"
            )
        lengths = [rows]
        if self.format == D4RL:
            lengths, unfinished = _read_d4rl_lengths(opened, file)
            rows = sum(lengths)
            self._attributes |= {"frames_after_last_end": unfinished} if unfinished else {}
        self._lengths += lengths
        return {
            name: Part(file, dataset.name, dataset.shape, dataset.dtype, rows)
            for name, dataset in datasets.items()
            if FRAMES.match(name) or (dataset.shape[:1] == actions.shape[:1] and dataset.dtype.kind in "biuf")
        }

    def _find_attributes(self, env_args: dict[str, Any]) -> dict[str, Any]:
        group = self._group(0)
        found = {**group.file.attrs, **group.parent.attrs}
        scalars = {key: v.item() if isinstance(v, np.generic) else v for key, v in found.items()}
        env_name = env_args.get("env_name")
        kept = {
            k: v for k, v in scalars.items() if isinstance(v, str | int | float) and len(str(v)) <= MAX_TEXT
        }
        return kept | ({"env_name": env_name} if isinstance(env_name, str) else {})

    def _find_rate(self, env_args: dict[str, Any]) -> float | None:
        """Return the control frequency that the environment was made with, or the rate of the time column."""
        kwargs = env_args.get("env_kwargs", env_args)
        rate_hz = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
        check_rate(rate_hz)
        if rate_hz is None and self.format == RAW and "states" in self._parts[0]:
            periods = np.diff(self._group(0)["states"][:, 0])
            if len(periods) and np.ptp(periods) < 0.01 * np.median(periods):
                rate_hz = round(1 / float(np.median(periods)), 3)
        return rate_hz

    def _find_conventions(self) -> dict[str, tuple[str, ...]]:
        """Return the arrays that training takes by default."""
        found = {name: part for parts in self._parts for name, part in parts.items()}
        low = [
            name
            for name, part in ((name, found[name]) for name in self._names)
            if not is_camera(part.shape)
            and math.prod(part.shape[1:]) <= MAX_COLUMNS
            and part.dtype.kind in "biuf"
            and (part.dtype != np.uint8 or len(part.shape) != 2)
        ]
        state = [name for name in low if name.startswith("obs") and not re.search(r"/act[^/]*$", name)]
        for default in (ROBOMIMIC_STATE, ("observations/qpos",)):
            if default[0] in state:
                state = [name for name in default if name in state]
        action = [name for name in low if re.match(r"actions?(/|$)", name)]
        return {key: tuple(names) for key, names in (("state", state), ("action", action)) if names}


@register_reader
class Hdf5Reader(Reader):
    """Reader of HDF5 files, and of folders with one for each episode."""

    name = "hdf5"

    def probe(self, path: Path) -> bool:
        """Recognise files by their suffix, and folders of such files; Minari's are another reader's."""
        if path.is_dir():
            return bool(_list_hdf5(path)) and not (path / MINARI_FILE).exists()
        return path.suffix in HDF5_SUFFIXES and path.name != MINARI_FILE

    def open(self, path: Path) -> Hdf5Source:
        """Open a file or all files of a folder, in the order of their numbers."""
        return Hdf5Source(path, _list_hdf5(path) if path.is_dir() else [path])


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _list_hdf5(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix in HDF5_SUFFIXES and path.is_file()]
    return sorted(found, key=lambda path: natural_key(path.name))


def _find_episodes(file: Any, path: Path) -> tuple[str, list[str]]:
    """Return the format of a file and the groups of its episodes."""
    check_links(file)
    root = file["data"] if hasattr(file.get("data"), "keys") else file
    check_links(root)
    groups = sorted((key for key in root if re.fullmatch(r"(demo|episode|traj)_\d+", key)), key=natural_key)
    if groups:
        name = "HDF5 with a group for each episode"
        if root is not file:
            first = root[groups[0]]
            name = RAW if "states" in first and "obs" not in first else "robomimic HDF5"
        return name, [f"{root.name.rstrip('/')}/{group}" for group in groups]
    is_nested = hasattr(file.get("observations"), "keys")
    if is_nested and "action" in file:
        return "ALOHA HDF5", ["/"]
    if not is_nested and {"observations", "actions"} <= set(file):
        return D4RL, ["/"]
    raise DemoError(
        f"{path} holds {', '.join(root) or 'nothing'}, expected demonstrations as written by robomimic "
        "(data/demo_0/actions), ALOHA (observations/qpos, action), D4RL (observations, actions, terminals) "
        "or Minari (episode_0/actions)"
    )


def _read_env_args(group: Any) -> dict[str, Any]:
    """Parse what robomimic and robosuite record about the environment."""
    for name in ("env_args", "env_info"):
        if name in group.attrs:
            text = str(group.attrs[name])
            where = f"the attribute {name} of {group.name} in {group.file.filename}"
            return parse_json(text, name=where, error=DemoError, allow_nan=True)
    return {}


def _read_numbers(attributes: Any) -> dict[str, Any]:
    """Read attributes that are single numbers; others may be whole models of a robot."""
    ids = {key: attributes.get_id(key) for key in attributes}
    return {
        key: attributes[key] for key, found in ids.items() if not found.shape and found.dtype.kind in "biuf"
    }


def _read_d4rl_lengths(group: Any, path: Path) -> tuple[list[int], int]:
    """Return the lengths of the episodes of a D4RL file, and the number of frames behind the last end.

    An episode ends with a terminal state or a time-out. Frames behind the last end are an episode that the
    recording cut off; a single one is left out.
    """
    frames = group["actions"].shape[0]
    ends = np.zeros(frames, bool)
    found = [key for key in ("terminals", "timeouts") if key in group]
    for key in found:
        flags = Hdf5Array(
            key, [Part(path, f"/{key}", group[key].shape, group[key].dtype, frames)], lambda _: group.file
        )
        ends |= flags.read_checked().reshape(frames, -1)[:, 0].astype(bool)
    if not found:
        raise DemoError(f"{path} has neither terminals nor timeouts, so that nothing says where episodes end")
    lengths = np.diff(np.flatnonzero(ends) + 1, prepend=0).tolist()
    tail = frames - sum(lengths)
    return lengths + ([tail] if tail >= MIN_STEPS else []), tail
