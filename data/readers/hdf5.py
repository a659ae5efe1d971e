"""HDF5 files: one group or one file per episode, or D4RL's flat arrays.

robomimic, MimicGen, LIBERO, RoboCasa, Isaac Lab   data/demo_N/{actions, obs/<key>}
Minari, ManiSkill                                  {episode, traj}_N/{actions, observations or obs}
ALOHA, a file for each episode                     action, observations/{qpos, images/<camera>}
D4RL                                               actions, observations, terminals, timeouts
"""

import math
import re
from collections.abc import Callable, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.errors import DemoError, import_optional, wrap_read_errors
from nsde_policy.files import open_regular, parse_json

from ..roles import find_roles
from ..source import MAX_DEPTH, MemorySource, SourceArray
from ..types import Numbers, check_rate
from .base import Reader
from .groups import Group, find_ends, list_files, natural_key, open_parts
from .registry import register_reader

HDF5_SUFFIXES, MINARI_FILE = (".hdf5", ".h5"), "main_data.hdf5"
MAX_TEXT = 200  # of an attribute
MOST_OPEN = 32  # files
EPISODE, ACTION = re.compile(r"((?:data/)?(?:demo|episode|traj)_\d+)/(.+)"), re.compile(r"actions?(/|$)")
FRAMES = re.compile(r"obs|action|states$")  # arrays that must have a row per frame
ROBOMIMIC_STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
DEFAULT_STATES = (tuple(f"obs/{key}" for key in ROBOMIMIC_STATE), ("observations/qpos",))  # of ALOHA
RESULTS = {
    *("next_obs", "next_observations", "rewards", "dones", "terminations", "truncations", "terminated"),
    *("truncated", "success", "fail", "infos", "datagen_info"),
}
"""Arrays and groups that are left out: what follows an action cannot be an observation."""

OpenFile = Callable[[Path], Any]


class Hdf5Array(SourceArray):
    """A dataset of an HDF5 file, which is opened when it is read."""

    def __init__(self, file: Path, dataset: Any, open_file: OpenFile) -> None:
        self._file, self._path, self._open_file = file, dataset.name, open_file
        self.name, self.shape, self.dtype = f"{dataset.name} in {file}", dataset.shape or (), dataset.dtype

    def read(self, start: int, stop: int) -> Numbers:
        """Read some rows; chunks that were never written, which HDF5 reads as zeros, are damage."""
        with wrap_read_errors(f"rows {start} to {stop} of {self.name} cannot be read, restore them"):
            dataset = self._open_file(self._file)[self._path]
            self.check_size(math.prod(dataset.chunks or ()), "a chunk")
            steps = dataset.chunks or self.shape
            expected = math.prod(-(-size // step) for size, step in zip(self.shape, steps, strict=True))
            written = dataset.id.get_num_chunks() if dataset.chunks else dataset.id.get_storage_size()
            if written < expected:
                raise DemoError(f"{self.name} is incomplete: {written} of {expected} chunks were written")
            return np.asarray(dataset[start:stop])


@register_reader
class Hdf5Reader(Reader):
    """Reader of HDF5 files, and of folders with one for each episode."""

    name = "hdf5"

    def probe(self, path: Path) -> bool:
        """Recognise files by their suffix, and folders of such files; Minari's are another reader's."""
        return any(file.name != MINARI_FILE for file in list_files(path, HDF5_SUFFIXES))

    def open(self, path: Path) -> MemorySource:
        """Open all episodes; only names, shapes, types and attributes are read."""
        open_file = lru_cache(MOST_OPEN)(open_hdf5)
        with wrap_read_errors(f"{path} cannot be read"):
            files = list_files(path, HDF5_SUFFIXES)
            groups = [group for file in files for group in _open_groups(file, open_file)]
            kind = "robomimic HDF5" if groups[0].name.startswith("/data/") else "HDF5"
            source = open_parts(path, groups, FRAMES.match, format=kind)
            source.conventions = _find_conventions(source.find_arrays(), groups)
            _set_metadata(source, open_file(files[0]), groups[0])
        return source


def _open_groups(file: Path, open_file: OpenFile) -> list[Group]:
    """Open the groups with episodes in the order of their numbers, or the root."""
    arrays: dict[str, dict[str, SourceArray]] = {}
    for name, dataset in find_datasets(open_file(file), RESULTS).items():
        match = EPISODE.fullmatch(name)
        group, key = match.groups() if match else ("", name)
        arrays.setdefault(group, {})[key] = Hdf5Array(file, dataset, open_file)
    names = sorted(filter(None, arrays), key=natural_key) or [""]
    return [_make_group(open_file(file)[f"/{name}"], arrays.get(name, {})) for name in names]


def _make_group(group: Any, arrays: dict[str, SourceArray]) -> Group:
    """Check the arrays of an episode, or of all episodes of a D4RL file."""
    label = f"{group.name} in {group.file.filename}"
    shape = next((array.shape for key, array in arrays.items() if ACTION.match(key)), ())
    if not shape:
        raise DemoError(
            f"{label} has no actions, it holds: {', '.join(arrays) or 'nothing':.200}; expected robomimic "
            "(data/demo_0/actions), Minari (episode_0/actions), ALOHA (observations/qpos, action) or D4RL "
            "(observations, actions, terminals)"
        )
    frames = shape[0]
    if group.name == "/" and (ends := find_ends(arrays, frames)) is not None:
        return Group(label, arrays, ends)
    if group.name == "/" and "actions" in arrays:
        raise DemoError(f"{label} has neither terminals nor timeouts that end an episode")
    return Group(label, arrays, np.array([frames]))


def _find_conventions(names: Sequence[str], groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Return the arrays that training takes by default."""
    arrays = {name: array for group in groups for name, array in group.arrays.items()}
    shapes = {n: arrays[n].shape for n in names if arrays[n].dtype.kind in "bif"}  # bytes may be images
    state = [name for name in find_roles(shapes)[0] if name.startswith("obs")]
    for default in DEFAULT_STATES:
        if default[0] in state:
            state = [name for name in default if name in state]
    action = [name for name in shapes if ACTION.match(name)]
    return {key: tuple(names) for key, names in (("state", state), ("action", action)) if names}


def _set_metadata(source: MemorySource, file: Any, first: Group) -> None:
    """Set the format, attributes, and the rate that is recorded with the environment or as time of states."""
    arrays = first.arrays
    attributes = {**file.attrs, **file.get("data", file).attrs}
    text = str(attributes.get("env_args", attributes.get("env_info", "{}")))
    env_args = parse_json(text, name=f"env_args of {file.filename}", error=DemoError, allow_nan=True)
    attributes["env_name"] = env_args.get("env_name")
    source.attributes.update(
        {k: v for k, v in attributes.items() if isinstance(v, str) and len(v) <= MAX_TEXT}
    )
    kwargs = env_args.get("env_kwargs", env_args)
    source.rate_hz = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
    check_rate(source.rate_hz)
    if first.name.startswith("/ in "):
        source.format = "ALOHA HDF5" if "action" in arrays else "D4RL HDF5"


def open_hdf5(path: Path) -> Any:
    """Open a regular file with h5py; raise `DemoError` if it is no HDF5 file or truncated."""
    h5py = import_optional("h5py", "hdf5")
    open_regular(path, error=DemoError).close()
    with wrap_read_errors(f"{path} is not an undamaged HDF5 file"):
        return h5py.File(path, "r")


def find_datasets(file: Any, without: Set[str]) -> dict[str, Any]:
    """Return the datasets of an HDF5 file by name, except those in groups `without`."""
    links: dict[str, Any] = {}

    def add(name: str, link: Any) -> str | None:
        links[name] = link
        return name if name.count("/") > MAX_DEPTH else None  # stops the visit

    if deepest := file.visititems_links(add):
        raise DemoError(f"{file.filename} has groups in groups, {deepest:.60}…, more than {MAX_DEPTH} levels")
    for name, link in links.items():
        if type(link).__name__ != "HardLink":
            raise DemoError(f"{name} in {file.filename} is a link, which is not followed: put a copy there")
    items = {name: file[name] for name in links if without.isdisjoint(name.split("/"))}
    datasets = {name: item for name, item in items.items() if hasattr(item, "shape")}
    for name, dataset in datasets.items():
        if dataset.is_virtual or dataset.external:
            raise DemoError(f"{name} in {file.filename} is stored elsewhere and not read: put a copy there")
    return datasets
