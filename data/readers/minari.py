"""Minari data sets: `data/main_data.hdf5` with a group for each episode, and `data/metadata.json`."""

import operator
from pathlib import Path
from typing import Any

from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.hdf5 import MAX_TEXT, MINARI_FILE, Hdf5Source
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.types import ActionLimits
from nsde_policy.errors import DemoError
from nsde_policy.files import parse_json, read_json


class MinariSource(Hdf5Source):
    """A Minari data set; the observation after the last action of an episode is left out."""

    def __init__(self, path: Path, file: Path) -> None:
        super().__init__(path, [file])
        metadata = dict(self._attributes)  # where versions before 0.5 keep it
        if (file.parent / "metadata.json").exists():
            metadata |= read_json(file.parent / "metadata.json", error=DemoError, allow_nan=True)
        found = {"total_episodes": len(self._lengths), "total_steps": sum(self._lengths)}
        for key, count in found.items():
            if metadata.get(key, count) != count:
                raise DemoError(
                    f"{file} has {key} {count}, but its metadata says {metadata[key]!r:.40}; restore the "
                    "files from the original"
                )
        self.format = f"Minari {metadata.get('minari_version', '')}".rstrip()
        self.act_limits = _read_limits(metadata)
        env_id = _parse_text(metadata, "env_spec").get("id")
        texts = {key: v for key, v in metadata.items() if isinstance(v, str) and len(v) <= MAX_TEXT}
        without = {"env_spec", "action_space", "observation_space", "data_format"}
        self._attributes = {key: v for key, v in texts.items() if key not in without}
        self._attributes |= {"env_id": env_id} if isinstance(env_id, str) else {}


@register_reader
class MinariReader(Reader):
    """Reader of the folder of a data set, of its folder data/, and of the file in it."""

    name = "minari"

    def probe(self, path: Path) -> bool:
        """Recognise data sets by the name of their file."""
        return _find_file(path).exists()

    def open(self, path: Path) -> MinariSource:
        """Open a data set; the task and the limits of the actions come from its metadata."""
        return MinariSource(path, _find_file(path))


def _find_file(path: Path) -> Path:
    if path.name == MINARI_FILE:
        return path
    inside = path / "data" / MINARI_FILE
    return inside if inside.exists() else path / MINARI_FILE


def _parse_text(metadata: dict[str, Any], key: str) -> dict[str, Any]:
    """Parse a JSON object that the metadata holds as text."""
    text = metadata.get(key)
    return parse_json(text, name=key, error=DemoError, allow_nan=True) if isinstance(text, str) else {}


def _read_limits(metadata: dict[str, Any]) -> ActionLimits | None:
    """Return the limits of actions that are a vector."""
    space = _parse_text(metadata, "action_space")
    if space.get("type") != "Box" or len(space.get("shape", ())) != 1:
        return None
    try:
        low, high = (tuple(float(value) for value in space[key]) for key in ("low", "high"))
        is_valid = len(low) == len(high) and all(map(operator.le, low, high))
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise DemoError(f"the action_space {space!r:.80} has no limits 'low' below 'high': correct it")
    return low, high
