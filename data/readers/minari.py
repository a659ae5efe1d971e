"""Minari data sets: `data/main_data.hdf5` with a group for each episode, and `data/metadata.json`."""

from pathlib import Path

from nsde_policy.errors import DemoError
from nsde_policy.files import parse_json, read_json

from ..source import MemorySource, parse_action_space
from .hdf5 import MAX_TEXT, MINARI_FILE, Hdf5Reader
from .registry import register_reader


@register_reader
class MinariReader(Hdf5Reader):
    """Reader of the folder of a data set, of its folder data/, and of the file in it."""

    name = "minari"

    def probe(self, path: Path) -> bool:
        """Recognise data sets by the name of their file."""
        return _find_file(path).exists()

    def open(self, path: Path) -> MemorySource:
        """Open a data set; the task and the limits of the actions come from its metadata."""
        file = _find_file(path)
        source = super().open(file)
        metadata = dict(source.attributes)  # where versions before 0.5 keep it
        if (file.parent / "metadata.json").exists():
            metadata |= read_json(file.parent / "metadata.json", error=DemoError, allow_nan=True)
        counts = {"total_episodes": len(source.read_ends()), "total_steps": int(source.read_ends()[-1])}
        declared = {key: metadata.get(key, count) for key, count in counts.items()}
        if declared != counts:
            raise DemoError(f"{file} has {counts}, but its metadata {declared}; restore it from the original")
        spec, space, _ = (
            parse_json(
                str(metadata.pop(key, None) or "{}"),
                name=f"{key} in {file.parent}",
                error=DemoError,
                allow_nan=True,
            )
            for key in ("env_spec", "action_space", "observation_space")
        )
        if space.get("type") == "Box" and len(space.get("shape", ())) == 1:
            source.act_limits = parse_action_space(space, file)
        source.format = f"Minari {metadata.get('minari_version', '')}"
        metadata["env_id"] = spec.get("id")
        source.attributes.update(
            {key: v for key, v in metadata.items() if isinstance(v, str) and len(v) <= MAX_TEXT}
        )
        return source


def _find_file(path: Path) -> Path:
    inside = path / "data" / MINARI_FILE
    return path if path.name == MINARI_FILE else inside if inside.exists() else path / MINARI_FILE
