"""First stage of training with images: train the encoder, then replace frames by their codes.

    encoder/config.json           settings of the encoder, seed and demonstrations
    encoder/model.safetensors     averaged weights, which a policy loads
    encoder/training.safetensors  checkpoint to resume from
    encoder/metrics.jsonl         losses
    encoder/codes.safetensors     codes of all frames and of their mirror images, brightness, contrast and
                                  detail of each frame, and whether it is equal to the one before

All of it is in the run directory. A run that is resumed after this stage needs no frames any more.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsde_policy.config import TrainedEncoderConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.data import Demonstrations, LazyFrames, Mirror
from nsde_policy.data.frames import FrameFile, check_frames
from nsde_policy.data.images import open_images
from nsde_policy.encoders.base import IMAGE_KEY
from nsde_policy.encoders.base_model import CameraBatch, EncoderModel, StagedEncoderModel, mirror_frames
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.calibration import CameraRange
from nsde_policy.inference.loading import build_encoder
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory
from nsde_policy.training.batches import PrefetchSource
from nsde_policy.training.dataset import get_mirror
from nsde_policy.training.loop import Training

logger = logging.getLogger(__name__)

ENCODE_BATCH = 256
"""Frames that are encoded at once."""
BACKGROUND_FRAMES = 500
"""Most first frames of episodes whose median is the background."""


def open_training_images(config: DemoConfig, path: Path) -> dict[str, LazyFrames]:
    """Open the camera frames of a store that the settings name; nothing is decoded yet.

    Raises:
        ArrayError: If an array does not hold colour images.
    """
    images = {}
    for name in config.images:
        images[name] = open_images(path, key=name, accept_omitted_chunks=config.accept_omitted_chunks)
        check_frames(images[name], name)
    return images


def describe_cameras(images: Mapping[str, LazyFrames]) -> tuple[CameraSpec, ...]:
    """Return name and frame size of each camera."""
    return tuple(
        CameraSpec(IMAGE_KEY + name, height=frames.shape[1], width=frames.shape[2])
        for name, frames in images.items()
    )


class EncoderStage:
    """Training of the encoder of a run, and the codes that it gives.

    Args:
        demos: Demonstrations with their low-dimensional observations.
        images: Frames of each camera, one per frame of the demonstrations.
        config: Settings of the run.
        held_out: Episodes that the encoder is not trained on.
        task: Name of the task, whose mirror symmetry applies to frames as well.
        run: Run directory.
        seed: Seed of weights, batches and augmentation.
        device: Where the encoder is trained.
    """

    def __init__(
        self,
        demos: Demonstrations,
        images: Mapping[str, LazyFrames],
        config: RunConfig,
        held_out: Sequence[int],
        *,
        task: str,
        run: RunDirectory,
        seed: int,
        device: str,
    ) -> None:
        if not isinstance(config.encoder, TrainedEncoderConfig):
            raise ConfigError("the settings name no encoder of images")
        check_frame_count(images, demos)
        self.config, self.directory = config.encoder, RunDirectory(run.path / ENCODER_FOLDER)
        self._demos, self._images, self._seed, self._device = demos, images, seed, device
        self._codes_file = self.directory.path / "codes.safetensors"
        model = build_encoder(config, describe_cameras(images), plain_dim=demos.obs.shape[1], seed=seed)
        assert isinstance(model, StagedEncoderModel)
        self.model = model.to(device)
        mirror = get_frame_mirror(config.demos, task)
        self.model.mirror = mirror.frame if mirror is not None else None
        self._mirror_image = mirror.flip(demos) if mirror is not None else None
        self._episodes = [i for i in range(len(demos)) if i not in set(held_out)]
        self._rows = list_rows(demos, self._episodes)
        image = demos if self._mirror_image is None else self._mirror_image
        self._values, self._mirrored_values = demos.obs, image.obs
        self._settings = {
            "config": self.config.to_dict(),
            "cameras": [camera.to_dict() for camera in describe_cameras(images)],
            "mirror": self.model.mirror,
            "seed": seed,
            "fingerprint": demos.fingerprint,
            "held_out": list(held_out),
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
        logger.info("decoding %d frames of %s", len(self._demos.obs), ", ".join(self._images))
        self._frames = FrameFile(
            list(self._images.values()),
            len(self._demos.obs),
            size=self.model.size,
            folder=self.directory.path,
        )
        both = np.concatenate([self._values, self._mirrored_values])
        low, high = (torch.from_numpy(limit) for limit in (both.min(0), both.max(0)))
        self.model.prepare(low, high, self._find_backgrounds())
        self._source = PrefetchSource(self._load_batch, _build_batch, torch.device(self._device))
        training = Training(self.model, self._source, self.config.train, seed=self._seed)
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
        codes = encode_frames(self.model, frames, self._values, self._mirrored_values, self._device)
        frames.close()
        codes |= {"looks": torch.from_numpy(frames.looks), "repeats": torch.from_numpy(frames.repeats)}
        self.directory.save_tensors(self._codes_file, codes)

    def encode(self) -> Demonstrations:
        """Return the demonstrations with codes after their low-dimensional observations."""
        found = self.directory.read_tensors(self._codes_file)
        n, dim = len(self._demos.obs), self.model.code_dim
        names = {"codes"} | ({"mirrored"} if self._mirror_image is not None else set())
        if any(name not in found or found[name].shape != (n, dim) for name in names):
            raise CheckpointError(
                f"{self._codes_file} does not hold the codes of {n} frames: delete the folder "
                f"{self.directory.path} to encode them again"
            )
        return join_codes(self._demos, self._mirror_image, found)

    def measure_frames(self) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        found = self.directory.read_tensors(self._codes_file)
        shape = (len(self._images), len(self._demos.obs))
        if not {"looks", "repeats"} <= {*found} or found["repeats"].shape != shape:
            return ()  # written by an earlier version
        looks, repeats = found["looks"].numpy(), found["repeats"].numpy()
        return measure_cameras(self._images, looks, repeats, self._demos, self._episodes)

    def _find_backgrounds(self) -> list[Tensor]:
        """Return the median of the first frames of the training episodes, for each camera."""
        assert self._frames is not None
        starts = self._demos.starts[self._episodes][:BACKGROUND_FRAMES]
        return [
            torch.from_numpy(np.median(frames, axis=0).astype(np.uint8))
            for frames in self._frames.read(starts)
        ]

    def _load_batch(self, step: int) -> tuple[Tensor, ...]:
        """Load the frames of a step, chosen by the seed and the step alone."""
        assert self._frames is not None
        rng = np.random.default_rng([self._seed, step])
        index = self._rows[rng.integers(len(self._rows), size=self.config.train.batch_size)]
        return (
            torch.from_numpy(self._values[index]),
            torch.from_numpy(self._mirrored_values[index]),
            *map(torch.from_numpy, self._frames.read(index)),
        )


def check_frame_count(images: Mapping[str, LazyFrames], demos: Demonstrations) -> None:
    """Raise `ConfigError` if a camera has fewer frames than the demonstrations."""
    for name, frames in images.items():
        if len(frames) < len(demos.obs):
            raise ConfigError(f"data/{name} has {len(frames)} frames, but there are {len(demos.obs)}")


def get_frame_mirror(settings: DemoConfig, task: str) -> Mirror | None:
    """Return the mirror symmetry of observations and frames; None if the settings do not ask for it.

    Raises:
        ConfigError: If the task has none, or not for frames.
    """
    mirror = get_mirror(settings, task) if settings.mirror else None
    if mirror is not None and mirror.frame is None:
        raise ConfigError(
            f"it is not known how camera frames of the mirrored task {task!r} look: set demos.mirror to "
            "False, or define Mirror.frame of the task"
        )
    return mirror


@torch.no_grad()
def encode_frames(
    model: EncoderModel, frames: FrameFile, values: np.ndarray, mirrored_values: np.ndarray, device: str
) -> dict[str, Tensor]:
    """Return the `codes` of all frames and, if the model has a mirror symmetry, those `mirrored`."""
    model.eval()

    def encode(given: np.ndarray, cameras: Sequence[Tensor]) -> Tensor:
        codes: Tensor = model(torch.from_numpy(given).to(device), *cameras)
        return codes.cpu()

    parts: dict[str, list[Tensor]] = {"codes": [], "mirrored": []}
    for start in range(0, len(frames), ENCODE_BATCH):
        index = np.arange(start, min(start + ENCODE_BATCH, len(frames)))
        cameras = [torch.from_numpy(camera).to(device) for camera in frames.read(index)]
        parts["codes"].append(encode(values[index], cameras))
        if model.mirror is not None:
            mirrored = [mirror_frames(camera, model.mirror).contiguous() for camera in cameras]
            parts["mirrored"].append(encode(mirrored_values[index], mirrored))
    return {name: torch.cat(rows) for name, rows in parts.items() if rows}


def measure_cameras(
    names: Iterable[str],
    looks: np.ndarray,
    repeats: np.ndarray,
    demos: Demonstrations,
    episodes: Sequence[int],
) -> tuple[CameraRange, ...]:
    """Return the range of the frames of each camera in some episodes; see `FrameFile` for both arrays."""
    spans = [(int(demos.starts[i]), int(demos.episode_ends[i])) for i in episodes]
    return tuple(
        CameraRange.measure(IMAGE_KEY + name, of_camera, repeated, demos.obs, spans, demos.angles)
        for name, of_camera, repeated in zip(names, looks, repeats, strict=True)
    )


def list_rows(demos: Demonstrations, episodes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the indices of all frames of some episodes."""
    return np.concatenate([np.arange(demos.starts[i], demos.episode_ends[i]) for i in np.asarray(episodes)])


def _build_batch(tensors: tuple[Tensor, ...]) -> CameraBatch:
    values, mirrored, *frames = tensors
    return CameraBatch(values, mirrored, tuple(frames))


def join_codes(
    demos: Demonstrations, mirror_image: Demonstrations | None, codes: Mapping[str, Tensor]
) -> Demonstrations:
    """Return the demonstrations with `codes`, and their mirror image, if any, with those `mirrored`."""
    with_codes = _append_codes(demos, codes["codes"])
    if mirror_image is None:
        return with_codes
    return replace(with_codes, mirror_image=_append_codes(mirror_image, codes["mirrored"]))


def _append_codes(demos: Demonstrations, codes: Tensor) -> Demonstrations:
    obs: Any = np.concatenate([demos.obs, codes.numpy()], axis=1)
    return replace(demos, obs=obs, codes=codes.shape[1])
