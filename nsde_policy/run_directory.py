"""Run directories: all files that a training run writes.

    config.json           settings, sizes, seed, demonstrations, versions
    model.safetensors     averaged weights, which a policy loads
    training.safetensors  checkpoint to resume from: weights, averages, optimiser, generator, step
    metrics.jsonl         losses and scores, one JSON object per record
    calibration.json      limits and statistics for a control session
    encoder/              encoder of images, see `training/encoder.py`; only in runs with cameras
    selection/            dynamics model and rule of plan selection; only in runs that use them

model.safetensors of a run with cameras records the fingerprint of its encoder, so that another is refused.

Files are replaced atomically, so that a killed process leaves the old or the new version. No file is a
pickle.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from nsde_policy.config import BaseConfig
from nsde_policy.core.spec import CameraSpec, StateSpec
from nsde_policy.errors import CheckpointError, NsdePolicyError, PluginError
from nsde_policy.files import (
    PARTIAL,
    decode_json,
    lock_directory,
    open_regular,
    read_file,
    read_json,
    replace_file,
)
from nsde_policy.run_config import RunConfig
from nsde_policy.version import __version__

RUN_FORMAT = 1
"""Version of the file format; other versions are rejected."""
MAX_TENSOR_BYTES = 2**33
"""Larger tensor files are not read."""
MAX_METRICS_BYTES = 2**26
"""Larger metrics are not read."""
FEATURES_FILE = "codes.safetensors"
"""File of the features of all frames, in the folder of the encoder."""
ENCODER_FOLDER = "encoder"
"""Folder of a run directory with the files of its encoder of images."""
SELECTION_FOLDER = "selection"
"""Folder of a run directory with the files of plan selection."""
SIMULATORS = ("mujoco", "gymnasium-robotics", "metaworld")
"""Optional packages whose versions influence episodes, because contacts amplify every difference."""


@dataclass(frozen=True)
class DemoRecord(BaseConfig):
    """Demonstrations of a run, those held out of training included."""

    source: str
    fingerprint: str
    """SHA-256 of the demonstrations."""
    episodes: int
    frames: int
    held_out: tuple[int, ...] = ()
    """Episodes that were not used for training, by `train --validation`; places in `episode_fingerprints`."""
    episode_fingerprints: tuple[str, ...] = ()
    """Fingerprint of each episode, held out or not."""


@dataclass(frozen=True)
class RunRecord:
    """Content of config.json."""

    config: RunConfig
    spec: StateSpec
    """Sizes and ranges of a state; `layout` in the file."""
    task: str
    seed: int
    demos: DemoRecord
    versions: Mapping[str, str] = field(default_factory=lambda: find_versions())
    """Versions of packages that may influence results; by default those installed now."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's environment that differ from those of the task."""
    cameras: tuple[CameraSpec, ...] = ()
    """Cameras whose frames are encoded."""

    def to_json(self) -> str:
        """Convert to indented JSON."""
        values = {
            "format": RUN_FORMAT,
            "task": self.task,
            **({"env_kwargs": dict(self.env_kwargs)} if self.env_kwargs else {}),
            "seed": self.seed,
            "demos": self.demos.to_dict(),
            "versions": dict(self.versions),
            "config": self.config.to_dict(),
            "layout": self.spec.to_dict(),
            **({"cameras": [camera.to_dict() for camera in self.cameras]} if self.cameras else {}),
        }
        return json.dumps(values, indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRecord":
        """Read the content of `to_json`, or raise `CheckpointError`."""
        try:
            if values.get("kind", "policy") != "policy":
                raise CheckpointError(
                    f"this run holds a {values['kind']} model, not a policy: use `nsde-video eval`"
                )
            if values["format"] != RUN_FORMAT:
                raise ValueError(f"its format is {values['format']}, expected {RUN_FORMAT}")
            return cls(
                config=RunConfig.from_dict(values["config"]),
                spec=StateSpec.from_dict(values["layout"]),
                task=str(values["task"]),
                seed=int(values["seed"]),
                demos=DemoRecord.from_dict(values["demos"]),
                versions=dict(values["versions"]),
                env_kwargs=dict(values.get("env_kwargs", {})),
                cameras=tuple(CameraSpec.from_dict(camera) for camera in values.get("cameras", ())),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError | PluginError):
                raise
            raise CheckpointError(
                f"config.json is not a run record of this version ({type(error).__name__} {error}): train "
                "again, or use the version of nsde-policy that wrote it"
            ) from error

    def same_training(self, other: "RunRecord") -> bool:
        """Return whether `other` can resume this run: same settings, sizes, task, seed and data."""
        one, two = (
            (run.config, run.spec, run.task, run.env_kwargs, run.seed, demos.fingerprint, demos.held_out)
            for run, demos in ((self, self.demos), (other, other.demos))
        )
        return one == two


def find_versions() -> dict[str, str]:
    """Return the versions of packages that may influence results, of simulators and plug-ins if installed."""
    versions = {"nsde_policy": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "pymunk", "gymnasium", *SIMULATORS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in SIMULATORS:
                versions[name] = "not installed"
    for group in ("nsde_policy.methods", "nsde_policy.tasks"):
        versions |= {
            point.dist.name: point.dist.version for point in metadata.entry_points(group=group) if point.dist
        }
    return versions


class RunDirectory:
    """Files of one training run; reads are checked and writes are atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.model = path / "config.json", path / "model.safetensors"
        self.training, self.metrics = path / "training.safetensors", path / "metrics.jsonl"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for training, and delete files that a killed training left half written.

        A crash releases the lock. A directory that is still empty at the end, because the training was
        refused, is removed if it did not exist before.
        """
        existed = self.path.exists()
        directory = lock_directory(self.path, error=CheckpointError)
        try:
            for partial in self.path.glob(f"*{PARTIAL}"):
                partial.unlink()
            yield
        finally:
            if not existed:
                with suppress(OSError):  # it holds files, as after every training
                    self.path.rmdir()
            os.close(directory)

    def read_record(self) -> RunRecord:
        """Read and check config.json."""
        if not self.config.exists():
            raise CheckpointError(f"{self.path} is not a run directory: it has no config.json")
        values = read_json(self.config, error=CheckpointError)
        try:
            return RunRecord.from_dict(values)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        except PluginError as error:
            made_with = f"{values.get('versions')!s:.400}"
            raise PluginError(f"{self.path}: {error}; the run was made with {made_with}") from None

    def read_weights(self) -> dict[str, Tensor]:
        """Read the averaged weights and check that they are finite."""
        return self.read_tensors(self.model)

    def save_record(self, record: RunRecord) -> None:
        """Write config.json atomically."""
        replace_file(self.config, record.to_json().encode())

    def save_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Write model.safetensors."""
        self.save_tensors(self.model, weights, encoder=self.encoder.model)

    @property
    def encoder(self) -> "RunDirectory":
        """Folder of the encoder of images."""
        return RunDirectory(self.path / ENCODER_FOLDER)

    @property
    def selection(self) -> "RunDirectory":
        """Folder of plan selection."""
        return RunDirectory(self.path / SELECTION_FOLDER)

    def save_tensors(self, path: Path, tensors: Mapping[str, Tensor], *, encoder: Path | None = None) -> None:
        """Write a file of tensors atomically.

        If the weight file `encoder` exists, its fingerprint is recorded for `check_encoder`.
        """
        made_with = None
        if encoder is not None and encoder.exists():
            made_with = {ENCODER_FOLDER: fingerprint(self.read_tensors(encoder))}
        copied = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        packed: bytes = save(copied, metadata=made_with)
        replace_file(path, packed)

    def pack(self) -> dict[str, bytes]:
        """Read the files that a policy is loaded from, by their paths in this directory."""
        only_for_training = (self.training.name, FEATURES_FILE)
        return {
            str(file.relative_to(self.path)): read_file(file, MAX_TENSOR_BYTES, error=CheckpointError)
            for folder in (self.path, self.encoder.path, self.selection.path)
            for file in folder.glob("*")
            if file.suffix in (".json", ".safetensors") and file.name not in only_for_training
        }

    def read_metrics(self) -> Iterator[dict[str, float]]:
        """Iterate over the records up to the first incomplete line, which a crash may leave."""
        if not os.path.lexists(self.metrics):
            return
        for line in read_file(self.metrics, MAX_METRICS_BYTES, error=CheckpointError).splitlines():
            try:
                record = decode_json(line, allow_nan=True)
            except ValueError:
                return
            if not (isinstance(record, dict) and isinstance(record.get("step"), int)):
                return
            yield record

    def describe_unfinished(self) -> str | None:
        """Describe in one line where training stopped; None if it finished or left no record."""
        steps = [int(metrics["step"]) for metrics in self.read_metrics()]
        total = self.read_record().config.train.steps
        if not steps or steps[-1] >= total:
            return None
        return f"{self.path} stopped at step {steps[-1]} of {total}: finish it with train --resume"

    def truncate_metrics(self, step: int) -> None:
        """Delete records after `step`, before resuming from that step."""
        lines = [json.dumps(record) for record in self.read_metrics() if record["step"] <= step]
        replace_file(self.metrics, "".join(f"{line}\n" for line in lines).encode())

    def append_metrics(self, record: Mapping[str, float]) -> None:
        """Append one record to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise NsdePolicyError(f"{self.metrics} cannot be written: {error.strerror}") from error

    def read_tensors(self, path: Path) -> dict[str, Tensor]:
        """Read a file of tensors and check that they are finite."""
        try:
            _read_metadata(path)  # refuses a sparse file of gigabytes before it is read
            tensors: dict[str, Tensor] = load(read_file(path, MAX_TENSOR_BYTES, error=CheckpointError))
        except (CheckpointError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}; the run is incomplete") from None
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise CheckpointError(f"{path}: {name} holds values that are not finite; the file is damaged")
        return tensors


def check_encoder(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` if a file of tensors was made with an encoder of other weights."""
    if _read_metadata(path).get(ENCODER_FOLDER) != fingerprint(weights):
        raise CheckpointError(
            f"{path} belongs to another encoder than the one in its run directory: restore the folder "
            f"{ENCODER_FOLDER} of this run, or use train --resume if its training was killed"
        )


def _read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file, whose tensors are not read."""
    open_regular(path, MAX_TENSOR_BYTES, error=CheckpointError).close()
    with safe_open(path, "pt") as file:
        values: dict[str, str] | None = file.metadata()
    return values or {}


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and bytes of weights, without their shapes and types."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(
            weights[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
