"""The file `dataset.toml`, which describes the csv, npz and ROS 2 files next to it."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError, DemoError, wrap_read_errors
from nsde_policy.files import read_file

DATASET_FILE = "dataset.toml"
Settings = TypeVar("Settings", bound=BaseConfig)


def get_dataset_format(folder: Path) -> str | None:
    """Return the `format` that `dataset.toml` names, "" if it names none, None if it cannot be read."""
    try:
        return str(_parse(folder).get("format", ""))
    except DemoError:
        return None


def load_dataset_toml(folder: Path, settings: type[Settings]) -> Settings:
    """Read `dataset.toml` of a folder; raise `DemoError` unless its keys are the fields of the settings."""
    try:
        return settings.from_dict(_parse(folder))
    except ConfigError as error:
        problem = re.sub(rf"{settings.__name__}[:.]? ?", "", str(error))
        raise DemoError(f"{folder / DATASET_FILE}: {problem}") from None


def suggest_dataset_toml(folder: Path, held: str, **settings: str | float | Sequence[str]) -> str:
    """Describe the `dataset.toml` that a folder lacks, by what its first file holds and likely settings."""
    lines = ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in settings.items())
    path = folder / DATASET_FILE
    return f"{folder} has no {DATASET_FILE}, and {held}; write {path} with lines such as {lines}"


def _parse(folder: Path) -> dict[str, Any]:
    content = read_file(folder / DATASET_FILE, 2**20, error=DemoError)
    with wrap_read_errors(f"{folder / DATASET_FILE} is not TOML"):
        return tomllib.loads(content.decode())
