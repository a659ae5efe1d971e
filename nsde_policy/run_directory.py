"""A run directory: everything a training run leaves behind, every file replaced whole.

    config.json           settings, layout, seed, demonstrations, versions
    model.safetensors     the averaged weights: what a policy loads
    training.safetensors  what continuing needs: weights, averages, optimiser, generator, step
    metrics.jsonl         one JSON object per record
    calibration.json      what a control loop takes from the demonstrations

Killed at any moment, each file is the old one or the new one. No pickle: tensors are safetensors, the
rest is JSON.
"""

import hashlib
import json
import platform
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nsde_policy import __version__
from nsde_policy.config import BaseConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.errors import CheckpointError, PluginError
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig

FORMAT = 1
"""Version of the run directory; a newer one is refused."""
LARGEST_CONFIG, LARGEST_TENSORS = 2**24, 2**33
"""Bytes of the largest config.json and of the largest file of tensors that are read."""


@dataclass(frozen=True)
class DemoRecord(BaseConfig):
    """Which demonstrations a run was trained on."""

    source: str
    fingerprint: str
    """SHA-256 of their content."""
    episodes: int
    frames: int


@dataclass(frozen=True)
class RunRecord:
    """What config.json holds."""

    config: RunConfig
    layout: StateSpec
    task: str
    seed: int
    demos: DemoRecord
    versions: Mapping[str, str]
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Distributions that provide the method and the task, `name==version`, if they are not built in."""

    def to_json(self) -> str:
        """Indented JSON."""
        values = {
            "format": FORMAT,
            "task": self.task,
            "seed": self.seed,
            "demos": self.demos.to_dict(),
            "versions": dict(self.versions),
            **({"plugins": dict(self.plugins)} if self.plugins else {}),
            "config": self.config.to_dict(),
            "layout": self.layout.to_dict(),
        }
        return json.dumps(values, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """The inverse of `to_json`; raises `CheckpointError` for anything else."""
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise CheckpointError(f"run format {values['format']}, this version reads {FORMAT}")
            plugins = dict(values.get("plugins", {}))
            return cls(
                config=RunConfig.from_dict(values["config"], package=plugins.get("method")),
                layout=StateSpec.from_dict(values["layout"]),
                task=str(values["task"]),
                seed=int(values["seed"]),
                demos=DemoRecord.from_dict(values["demos"]),
                versions=dict(values["versions"]),
                plugins=plugins,
            )
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError | PluginError):
                raise
            raise CheckpointError(
                f"config.json is not that of a run: {type(error).__name__} {error}"
            ) from error

    def same_training(self, other: "RunRecord") -> bool:
        """Whether one run continues the other: same settings, layout, seed and data."""
        return (self.config, self.layout, self.task, self.seed, self.demos.fingerprint) == (
            other.config,
            other.layout,
            other.task,
            other.seed,
            other.demos.fingerprint,
        )


def versions() -> dict[str, str]:
    """Versions that may change a number."""
    names = ("torch", "numpy", "pymunk", "gymnasium")
    found = {"nsde_policy": __version__, "python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.model = path / "config.json", path / "model.safetensors"
        self.training, self.metrics = path / "training.safetensors", path / "metrics.jsonl"

    def record(self) -> RunRecord:
        """What config.json holds."""
        try:
            _check_file(self.config, LARGEST_CONFIG)
            return RunRecord.from_json(self.config.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{self.path} is no run directory: {self._why(error)}; expected config.json and its weights"
            ) from None
        except (CheckpointError, PluginError) as error:
            raise type(error)(f"{self.path}: {error}") from None

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights, finite."""
        return self._read(self.model)

    def training_state(self) -> dict[str, Tensor]:
        """What `save_training` wrote."""
        return self._read(self.training)

    def save_record(self, record: RunRecord) -> None:
        """Write config.json."""
        replace_file(self.config, record.to_json().encode())

    def save_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Write model.safetensors."""
        replace_file(self.model, _packed(weights))

    def save_training(self, state: Mapping[str, Tensor]) -> None:
        """Write training.safetensors."""
        replace_file(self.training, _packed(state))

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """Whole records only: a line cut off by a crash is left out."""
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    return

    def keep_metrics_until(self, step: int) -> None:
        """Forget records of steps beyond `step`, which are about to be done again."""
        kept = [json.dumps(record) for record in self.read_metrics() if record["step"] <= step]
        replace_file(self.metrics, "".join(f"{line}\n" for line in kept).encode())

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self, path: Path) -> dict[str, Tensor]:
        try:
            _check_file(path, LARGEST_TENSORS)
            tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read: {self._why(error)}; the run is not whole"
            ) from None
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise CheckpointError(
                    f"{path}: {name} holds numbers that are not finite; the file is damaged"
                )
        return tensors

    @staticmethod
    def _why(error: Exception) -> str:
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _check_file(path: Path, largest: int) -> None:
    """Refuse what would hang, or fill the memory, when it is read."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is no regular file")
    if found.st_size > largest:
        raise CheckpointError(f"{path} has {found.st_size} bytes, at most {largest} are read")


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of weights, name by name: equal where and only where every bit is."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(
            weights[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    packed: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return packed
