"""Camera frames of a run: decoded once into a file, read in batches and encoded into features."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.augmentation import Mirror
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Demonstrations, Ints
from nsde_policy.encoders.base import IMAGE_KEY
from nsde_policy.encoders.base_model import EncoderModel, mirror_frames
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.planner.calibration import CameraRange

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)

READ_BLOCK = 256
"""Frames that are encoded, or copied to the device, at once."""


@dataclass(frozen=True)
class FrameWindows:
    """Windows of demonstrations with the frames of their states; the features in the states are 0."""

    states: Tensor
    """States x = (observation, the action before it), newest first, (n, history, d)."""
    actions: Tensor
    """Actions in time, (n, horizon, act_dim)."""
    index: Tensor
    """Row of `frames` that belongs to each state, (n, history); plus the number of rows for mirror images."""
    frames: tuple[Tensor, ...] = ()
    """Frames of each camera, (rows, size, size, 3) uint8; shared by all windows."""

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Tensor) -> Self:
        return replace(self, states=self.states[index], actions=self.actions[index], index=self.index[index])

    def to(self, device: torch.device | str) -> Self:
        """Copy all windows and frames to a device."""
        states, actions, index = (tensor.to(device) for tensor in (self.states, self.actions, self.index))
        return type(self)(states, actions, index, tuple(camera.to(device) for camera in self.frames))


@dataclass(frozen=True)
class FrameData:
    """Demonstrations with their camera frames."""

    demos: Demonstrations
    """Demonstrations with their low-dimensional observations."""
    images: Mapping[str, "LazyFrames"]
    """Frames of each camera, one per frame of the demonstrations."""
    mirror: Mirror | None
    """Mirror symmetry of observations and frames; None for no mirror images."""
    held_out: Sequence[int]
    """Episodes that are not trained on."""
    folder: Path
    """Where the decoded frames are kept while this process runs."""

    def __post_init__(self) -> None:
        total = len(self.demos.obs)
        for name, frames in self.images.items():
            if len(frames) < total:
                raise ConfigError(f"data/{name} has {len(frames)} frames, but there are {total}")
        if self.mirror is not None and self.mirror.frame is None:
            raise ConfigError(
                "it is not known how camera frames of the mirrored task look: set demos.mirror to False, or "
                "define Mirror.frame of the task"
            )

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """Name and frame size of each camera."""
        return tuple(
            CameraSpec(IMAGE_KEY + name, height=frames.shape[1], width=frames.shape[2])
            for name, frames in self.images.items()
        )

    @property
    def episodes(self) -> list[int]:
        """Episodes that are trained on."""
        return [i for i in range(len(self.demos)) if i not in self.held_out]

    @cached_property
    def mirror_image(self) -> Demonstrations | None:
        """Demonstrations of the mirrored scene; None without a mirror symmetry."""
        return None if self.mirror is None else self.mirror.flip(self.demos)

    @property
    def mirrored_values(self) -> npt.NDArray[np.float32]:
        """Low-dimensional observations of the mirrored scene, or the recorded ones without a symmetry."""
        return (self.mirror_image or self.demos).obs

    def decode(self, size: int) -> FrameFile:
        """Decode all frames into a temporary file, resized to `size`.

        Raises:
            CheckpointError: If the run was begun with other frames.
        """
        total = len(self.demos.obs)
        logger.info("decoding %d frames of %s", total, ", ".join(self.images))
        frames = FrameFile(list(self.images.values()), total, size=size, folder=self.folder)
        file = self.folder / "frames.json"
        found = {"fingerprint": frames.fingerprint}
        if file.exists() and read_json(file, error=CheckpointError) != found:
            raise CheckpointError(
                f"{self.demos.source} holds other camera frames than when {self.folder.parent} was begun: "
                "resume with the same frames, or choose another --out"
            )
        replace_file(file, json.dumps(found).encode())
        return frames

    @torch.no_grad()
    def encode(self, model: EncoderModel, frames: FrameFile, device: torch.device) -> list[Tensor]:
        """Return the features of all frames and, with a mirror symmetry, those of the mirrored frames."""
        logger.info("encoding %d frames", len(frames))
        model.eval()
        plain: list[Tensor] = []
        mirrored: list[Tensor] = []
        for index in _split_rows(len(frames)):
            cameras = [torch.from_numpy(camera).to(device) for camera in frames.read(index)]
            plain.append(model(torch.from_numpy(self.demos.obs[index]).to(device), *cameras).cpu())
            if model.mirror is not None:
                flipped = [mirror_frames(camera, model.mirror).contiguous() for camera in cameras]
                values = torch.from_numpy(self.mirrored_values[index]).to(device)
                mirrored.append(model(values, *flipped).cpu())
        return [torch.cat(rows) for rows in (plain, mirrored) if rows]

    def add_features(self, features: Sequence[Tensor]) -> Demonstrations:
        """Return the demonstrations, and their mirror image if there is one, with what `encode` returned."""
        plain = _append_features(self.demos, features[0])
        if self.mirror_image is None:
            return plain
        return replace(plain, mirror_image=_append_features(self.mirror_image, features[1]))

    def measure_ranges(
        self, looks: npt.NDArray[np.float32], repeats: npt.NDArray[np.bool_]
    ) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera; see `FrameFile` for both arrays."""
        demos = self.demos
        spans = [(int(demos.starts[i]), int(demos.episode_ends[i])) for i in self.episodes]
        return tuple(
            CameraRange.measure(camera.name, of_camera, repeated, demos.obs, spans, demos.angles)
            for camera, of_camera, repeated in zip(self.cameras, looks, repeats, strict=True)
        )


def copy_frames(frames: FrameFile, cameras: int, device: torch.device) -> tuple[Tensor, ...]:
    """Copy the frames of all cameras to a device, block by block, (frames, size, size, 3) each."""
    shape = (len(frames), frames.size, frames.size, 3)
    tables = tuple(torch.empty(shape, dtype=torch.uint8, device=device) for _ in range(cameras))
    for index in _split_rows(len(frames)):
        for table, camera in zip(tables, frames.read(index), strict=True):
            table[int(index[0]) : int(index[-1]) + 1] = torch.from_numpy(camera)
    return tables


def load_frames(windows: FrameWindows, frames: FrameFile) -> FrameWindows:
    """Return windows with a table of their own frames alone."""
    index, total = windows.index.flatten().numpy(), len(frames)
    found = frames.read(index % total)
    place = torch.arange(len(index)) + len(index) * torch.from_numpy(index >= total)
    tables = tuple(torch.from_numpy(camera) for camera in found)
    return replace(windows, index=place.view_as(windows.index), frames=tables)


def list_rows(demos: Demonstrations, episodes: Sequence[int]) -> Ints:
    """Return the indices of all frames of some episodes."""
    spans = [np.arange(demos.starts[i], demos.episode_ends[i]) for i in episodes]
    return np.concatenate(spans) if spans else np.arange(0)


def _split_rows(count: int) -> list[Ints]:
    """Divide the indices from 0 to `count` into blocks."""
    return np.split(np.arange(count), range(READ_BLOCK, count, READ_BLOCK))


def _append_features(demos: Demonstrations, features: Tensor) -> Demonstrations:
    obs = np.concatenate([demos.obs, features.numpy()], axis=1)
    return replace(demos, obs=obs, image_features=features.shape[1])
