"""First stage of training with images: train the encoder, then replace frames by their codes.

    encoder/config.json           settings of the encoder, seed and demonstrations
    encoder/model.safetensors     averaged weights, which a policy loads
    encoder/training.safetensors  checkpoint to resume from
    encoder/metrics.jsonl         losses
    encoder/frames.json           fingerprint of all frames
    encoder/codes.safetensors     codes of all frames and of their mirror images, brightness, contrast and
                                  detail of each frame, and whether it is equal to the one before

All of it is in the run directory. A run that is resumed after this stage needs no frames any more.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsde_policy.config import TrainedEncoderConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.augmentation import Mirror
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.base import IMAGE_KEY
from nsde_policy.encoders.base_model import CameraBatch, EncoderModel, StagedEncoderModel, mirror_frames
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import build_encoder, limit_parameters
from nsde_policy.planner.calibration import CameraRange
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, check_encoder
from nsde_policy.training.batches import PrefetchSource
from nsde_policy.training.dataset import get_mirror
from nsde_policy.training.loop import Training

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)

ENCODE_BATCH = 256
"""Frames that are encoded at once."""
BACKGROUND_FRAMES = 500
"""Most first frames of episodes whose median is the background."""


def describe_cameras(images: Mapping[str, "LazyFrames"]) -> tuple[CameraSpec, ...]:
    """Return name and frame size of each camera."""
    return tuple(
        CameraSpec(IMAGE_KEY + name, height=frames.shape[1], width=frames.shape[2])
        for name, frames in images.items()
    )


@dataclass(frozen=True)
class ImageTraining:
    """What a run with camera frames is trained on, and how."""

    demos: Demonstrations
    """Demonstrations with their low-dimensional observations."""
    images: Mapping[str, "LazyFrames"]
    """Frames of each camera, one per frame of the demonstrations."""
    config: RunConfig
    """Settings of the run."""
    held_out: Sequence[int]
    """Episodes that are not trained on."""
    task: str
    """Name of the task, whose mirror symmetry applies to frames as well."""
    run: RunDirectory
    seed: int
    """Seed of weights, batches and augmentation."""
    device: str
    """Where models are trained."""

    def __post_init__(self) -> None:
        for name, frames in self.images.items():
            if len(frames) < len(self.demos.obs):
                raise ConfigError(
                    f"data/{name} has {len(frames)} frames, but there are {len(self.demos.obs)}"
                )

    @property
    def folder(self) -> RunDirectory:
        """Part of the run directory that belongs to the encoder."""
        return self.run.encoder

    @property
    def episodes(self) -> list[int]:
        """Episodes that are trained on."""
        return [i for i in range(len(self.demos)) if i not in set(self.held_out)]

    @cached_property
    def mirror(self) -> Mirror | None:
        """Mirror symmetry of observations and frames; None if the settings do not ask for it.

        Raises:
            ConfigError: If the task has none, or not for frames.
        """
        settings = self.config.demos
        mirror = get_mirror(settings, self.task) if settings.mirror else None
        if mirror is not None and mirror.frame is None:
            raise ConfigError(
                f"it is not known how camera frames of the mirrored task {self.task!r} look: set "
                "demos.mirror to False, or define Mirror.frame of the task"
            )
        return mirror

    @cached_property
    def mirror_image(self) -> Demonstrations | None:
        """Demonstrations of the mirrored scene; None without a mirror symmetry."""
        return None if self.mirror is None else self.mirror.flip(self.demos)

    @property
    def mirrored_values(self) -> npt.NDArray[np.float32]:
        """Low-dimensional observations of the mirrored scene, or the recorded ones without a symmetry."""
        return (self.mirror_image or self.demos).obs

    def build_encoder(self) -> EncoderModel:
        """Return the encoder with its initial weights; raise `ConfigError` if they would be too many."""
        cameras, plain_dim = describe_cameras(self.images), self.demos.obs.shape[1]
        with limit_parameters(error=ConfigError):
            encoder = build_encoder(self.config, cameras, plain_dim=plain_dim, seed=self.seed)
        encoder.mirror = self.mirror.frame if self.mirror is not None else None
        return encoder

    def decode(self, size: int) -> FrameFile:
        """Decode all frames into a temporary file in the folder of the encoder.

        Raises:
            CheckpointError: If the run was begun with other frames.
        """
        total = len(self.demos.obs)
        logger.info("decoding %d frames of %s", total, ", ".join(self.images))
        frames = FrameFile(list(self.images.values()), total, size=size, folder=self.folder.path)
        file, found = self.folder.path / "frames.json", {"fingerprint": frames.fingerprint}
        if file.exists() and read_json(file, error=CheckpointError) != found:
            raise CheckpointError(
                f"{self.demos.source} holds other camera frames than when {self.run.path} was begun: resume "
                "with the same frames, or choose another --out"
            )
        replace_file(file, json.dumps(found).encode())
        return frames

    @torch.no_grad()
    def encode(self, model: EncoderModel, frames: FrameFile) -> dict[str, Tensor]:
        """Return the `codes` of all frames and, if the model has a mirror symmetry, those `mirrored`."""
        logger.info("encoding %d frames", len(frames))
        model.eval()

        def encode(values: np.ndarray, cameras: Sequence[Tensor]) -> Tensor:
            codes: Tensor = model(torch.from_numpy(values).to(self.device), *cameras)
            return codes.cpu()

        parts: dict[str, list[Tensor]] = {"codes": [], "mirrored": []}
        for start in range(0, len(frames), ENCODE_BATCH):
            index = np.arange(start, min(start + ENCODE_BATCH, len(frames)))
            cameras = [torch.from_numpy(camera).to(self.device) for camera in frames.read(index)]
            parts["codes"].append(encode(self.demos.obs[index], cameras))
            if model.mirror is not None:
                mirrored = [mirror_frames(camera, model.mirror).contiguous() for camera in cameras]
                parts["mirrored"].append(encode(self.mirrored_values[index], mirrored))
        return {name: torch.cat(rows) for name, rows in parts.items() if rows}

    def join_codes(self, codes: Mapping[str, Tensor]) -> Demonstrations:
        """Return the demonstrations with `codes`, and their mirror image, if any, with those `mirrored`."""
        with_codes = _append_codes(self.demos, codes["codes"])
        if self.mirror_image is None:
            return with_codes
        return replace(with_codes, mirror_image=_append_codes(self.mirror_image, codes["mirrored"]))

    def measure_cameras(self, looks: np.ndarray, repeats: np.ndarray) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera; see `FrameFile` for both arrays."""
        demos = self.demos
        spans = [(int(demos.starts[i]), int(demos.episode_ends[i])) for i in self.episodes]
        return tuple(
            CameraRange.measure(IMAGE_KEY + name, of_camera, repeated, demos.obs, spans, demos.angles)
            for name, of_camera, repeated in zip(self.images, looks, repeats, strict=True)
        )


class EncoderStage:
    """Training of the encoder of a run, and the codes that it gives."""

    def __init__(self, given: ImageTraining) -> None:
        if not isinstance(given.config.encoder, TrainedEncoderConfig):
            raise ConfigError("the settings name no encoder of images")
        self._given, self.config, self.directory = given, given.config.encoder, given.folder
        self._codes_file = self.directory.path / "codes.safetensors"
        model = given.build_encoder()
        assert isinstance(model, StagedEncoderModel)
        self.model = model.to(given.device)
        self._rows = list_rows(given.demos, given.episodes)
        self._settings = {
            "config": self.config.to_dict(),
            "cameras": [camera.to_dict() for camera in describe_cameras(given.images)],
            "mirror": self.model.mirror,
            "seed": given.seed,
            "fingerprint": given.demos.fingerprint,
            "held_out": list(given.held_out),
        }
        self._frames: FrameFile | None = None
        self._source: PrefetchSource[CameraBatch] | None = None

    def is_finished(self) -> bool:
        """Return whether an encoder of these settings was trained and all codes were written."""
        self._check_settings(resume=True)
        return self._codes_file.exists() and self.directory.model.exists()

    def _check_settings(self, resume: bool) -> None:
        """Write the settings; to resume, raise `CheckpointError` if others were written before."""
        file = self.directory.config
        if not (resume and file.exists()):
            replace_file(file, json.dumps(self._settings, indent=2).encode())
        elif read_json(file, error=CheckpointError) != json.loads(json.dumps(self._settings)):
            raise CheckpointError(
                f"{self.directory.path} was trained with other settings, another seed or other "
                "demonstrations; resume with the same ones or choose another --out"
            )

    def start(self, *, resume: bool) -> Training[CameraBatch]:
        """Decode the frames and return the training of the encoder, at its last checkpoint if resumed."""
        self._check_settings(resume)
        self._frames = self._given.decode(self.model.size)
        both = np.concatenate([self._given.demos.obs, self._given.mirrored_values])
        low, high = (torch.from_numpy(limit) for limit in (both.min(0), both.max(0)))
        self.model.prepare(low, high, self._find_backgrounds())
        self._source = PrefetchSource(self._load_batch, _build_batch, torch.device(self._given.device))
        training = Training(self.model, self._source, self.config.train, seed=self._given.seed)
        if resume and self.directory.training.exists():
            training.restore(self.directory.read_training_state())
        self.directory.truncate_metrics(training.step if resume else -1)
        return training

    def finish(self) -> None:
        """Encode all frames and their mirror images, and write the codes."""
        if self._source is not None:
            self._source.close()
        frames = self._frames
        if frames is None:
            raise CheckpointError("the encoder was not trained: call start first")
        codes = self._given.encode(self.model, frames)
        frames.close()
        codes |= {"looks": torch.from_numpy(frames.looks), "repeats": torch.from_numpy(frames.repeats)}
        self.directory.save_tensors(self._codes_file, codes, encoder=self.directory.model)

    def encode(self) -> Demonstrations:
        """Return the demonstrations with codes after their low-dimensional observations.

        Raises:
            CheckpointError: If the codes, or the policy of a resumed run, belong to another encoder.
        """
        found, weights = self.directory.read_tensors(self._codes_file), self.directory.read_weights()
        check_encoder(self._codes_file, weights)
        if self._given.run.model.exists():
            check_encoder(self._given.run.model, weights)
        n, dim = len(self._given.demos.obs), self.model.code_dim
        names = {"codes"} | ({"mirrored"} if self._given.mirror_image is not None else set())
        if any(name not in found or found[name].shape != (n, dim) for name in names):
            raise CheckpointError(
                f"{self._codes_file} does not hold the codes of {n} frames: delete the folder "
                f"{self.directory.path} to encode them again"
            )
        return self._given.join_codes(found)

    def measure_frames(self) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        found = self.directory.read_tensors(self._codes_file)
        shape = (len(self._given.images), len(self._given.demos.obs))
        if not {"looks", "repeats"} <= {*found} or found["repeats"].shape != shape:
            return ()  # written by an earlier version
        looks, repeats = found["looks"].numpy(), found["repeats"].numpy()
        return self._given.measure_cameras(looks, repeats)

    def _find_backgrounds(self) -> list[Tensor]:
        """Return the median of the first frames of the training episodes, for each camera."""
        assert self._frames is not None
        starts = self._given.demos.starts[self._given.episodes][:BACKGROUND_FRAMES]
        return [
            torch.from_numpy(np.median(frames, axis=0).astype(np.uint8))
            for frames in self._frames.read(starts)
        ]

    def _load_batch(self, step: int) -> tuple[Tensor, ...]:
        """Load the frames of a step, chosen by the seed and the step alone."""
        assert self._frames is not None
        rng = np.random.default_rng([self._given.seed, step])
        index = self._rows[rng.integers(len(self._rows), size=self.config.train.batch_size)]
        return (
            torch.from_numpy(self._given.demos.obs[index]),
            torch.from_numpy(self._given.mirrored_values[index]),
            *map(torch.from_numpy, self._frames.read(index)),
        )


def list_rows(demos: Demonstrations, episodes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the indices of all frames of some episodes."""
    spans = [np.arange(demos.starts[i], demos.episode_ends[i]) for i in np.asarray(episodes)]
    return np.concatenate(spans) if spans else np.arange(0)


def _build_batch(tensors: tuple[Tensor, ...]) -> CameraBatch:
    values, mirrored, *frames = tensors
    return CameraBatch(values, mirrored, tuple(frames))


def _append_codes(demos: Demonstrations, codes: Tensor) -> Demonstrations:
    obs: Any = np.concatenate([demos.obs, codes.numpy()], axis=1)
    return replace(demos, obs=obs, codes=codes.shape[1])
