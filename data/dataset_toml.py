"""`dataset.toml`: settings of data sets whose own files do not say what training needs."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError, DemoError, summarize_error
from nsde_policy.files import read_file

DATASET_FILE = "dataset.toml"
MAX_TOML_BYTES = 2**20
"""Larger files are not settings."""
Settings = TypeVar("Settings", bound=BaseConfig)


def get_dataset_format(folder: Path) -> str | None:
    """Return the `format` that `dataset.toml` names, "" if it names none, None if it cannot be read."""
    try:
        return str(_parse(folder).get("format", ""))
    except DemoError:
        return None


def load_dataset_toml(folder: Path, settings: type[Settings]) -> Settings:
    """Read `dataset.toml` of a folder; its keys are the fields of the settings.

    Raises:
        DemoError: If it cannot be read, a key is unknown or missing, or a value has the wrong type.
    """
    try:
        return settings.from_dict(_parse(folder))
    except ConfigError as error:
        raise DemoError(f"{folder / DATASET_FILE}: {error}") from None


def _parse(folder: Path) -> dict[str, Any]:
    file = folder / DATASET_FILE
    content = read_file(file, MAX_TOML_BYTES, error=DemoError)
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # neither UTF-8 nor TOML
        raise DemoError(f"{file} is not TOML: {summarize_error(error)}") from None
