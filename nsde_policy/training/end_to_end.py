"""Training of an encoder together with the policy, by the policy's loss, on the frames of each batch.

Batches hold the frames of their states, whose codes are computed anew at every step. A small set of frames is
kept on the training device; a larger one is read ahead from a file.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.config import WindowConfig
from nsde_policy.core.targets import Windows
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.base_model import EncoderModel, mirror_frames
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import LossParts, PolicyModel, Stage, TrainableModel
from nsde_policy.methods.registry import get_method
from nsde_policy.planner.calibration import CameraRange
from nsde_policy.training.batches import BatchSource, PrefetchSource
from nsde_policy.training.dataset import augment, build_training_data, find_window_frames
from nsde_policy.training.encoder import ImageTraining, list_rows

logger = logging.getLogger(__name__)

MEMORY_BYTES = 2**30
"""Most bytes of frames that are kept in memory without a GPU; of a GPU's free memory, half may be used."""
READ_BLOCK = 1024
"""Frames that are copied to the device at once."""


@dataclass(frozen=True)
class FrameWindows:
    """Windows of demonstrations with the frames of their states; the codes in the states are 0."""

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


class EndToEndModel(TrainableModel[FrameWindows]):
    """A policy and its encoder, trained by the losses of the policy."""

    def __init__(self, policy: PolicyModel[Any], encoder: EncoderModel) -> None:
        super().__init__()
        self.policy, self.encoder = policy, encoder

    def stages(self) -> tuple[Stage, ...]:
        """Train the encoder in every stage of the policy."""
        encoder = tuple(self.encoder.parameters())
        return tuple(Stage(stage.losses, (*stage.parameters, *encoder)) for stage in self.policy.stages())

    def prepare(self, data: FrameWindows) -> None:
        """Prepare the policy with all training data."""
        self.policy.prepare(Windows(data.states, data.actions))

    def allocate_for(self, weights: Mapping[str, Tensor]) -> None:
        """Allocate the policy's buffers whose sizes depend on the training data."""
        self.policy.allocate_for(self.split_weights(weights)[0])

    def loss(self, batch: FrameWindows, generator: torch.Generator) -> LossParts:
        """Encode the frames, cropped at random in training, and return the losses of the policy."""
        frames = [self._gather(camera, batch.index.flatten()) for camera in batch.frames]
        if self.training:
            frames = [self.encoder.augment(camera, generator) for camera in frames]
        states, codes = batch.states, self.encoder.code_dim
        obs_dim = states.shape[-1] - batch.actions.shape[-1]
        values, previous = states[..., : obs_dim - codes], states[..., obs_dim:]
        found: Tensor = self.encoder(values.flatten(0, 1), *frames)
        states = torch.cat([values, found.view(*states.shape[:2], codes), previous], dim=-1)
        return self.policy.loss(Windows(states, batch.actions), generator)

    def _gather(self, table: Tensor, index: Tensor) -> Tensor:
        """Return frames of a table, with mirror images, (len(index), size, size, 3)."""
        frames = table[index % len(table)]
        if self.encoder.mirror is None:
            return frames
        mirrored = (index >= len(table))[:, None, None, None]
        return torch.where(mirrored, mirror_frames(frames, self.encoder.mirror), frames)

    @staticmethod
    def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Divide a state dict into that of the policy and that of the encoder."""
        policy, encoder = (
            {name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)}
            for part in ("policy.", "encoder.")
        )
        return policy, encoder


class EndToEndStage:
    """Frames and windows of a run whose encoder is trained together with the policy."""

    def __init__(self, given: ImageTraining) -> None:
        method, encoder = given.config.method, given.config.demos.encoder
        if get_method(method).model_class().training_view != "windows":
            raise ConfigError(
                f"the method {method!r} predicts future observations, so that it cannot train the encoder "
                f"{encoder!r}, whose codes would change; use --encoder keypoints"
            )
        self._given = given
        self._known, self._unseen = (
            list_rows(given.demos, episodes) for episodes in (given.episodes, given.held_out)
        )
        self._code_dim = given.build_encoder().code_dim
        self._file: FrameFile | None = None
        self._source: PrefetchSource[FrameWindows] | None = None

    def build_model(self, policy: PolicyModel[Any]) -> EndToEndModel:
        """Return a policy with an encoder of initial weights.

        Raises:
            ConfigError: If the method has no parameters to train.
        """
        if not policy.stages():
            config = self._given.config
            raise ConfigError(
                f"the method {config.method!r} is not trained, so that it cannot train the encoder "
                f"{config.demos.encoder!r}; use --encoder keypoints"
            )
        return EndToEndModel(policy, self._given.build_encoder())

    def add_blank_codes(self) -> Demonstrations:
        """Return the demonstrations with 0 for all codes."""
        blank = torch.zeros(len(self._given.demos.obs), self._code_dim)
        return self._given.join_codes({"codes": blank, "mirrored": blank})

    def build_data(self, demos: Demonstrations, *, held_out: bool = False) -> FrameWindows:
        """Build the windows of the demonstrations for training, or of those held out, without frames."""
        config, model = self._given.config, self._given.config.model
        windows = build_training_data(demos, config, task=self._given.task)
        assert isinstance(model, WindowConfig)
        assert isinstance(windows, Windows)
        seen = find_window_frames(
            augment(demos, config, task=self._given.task),
            horizon=model.horizon,
            history=model.history,
            n_action_steps=config.chunk,
        )[:, model.history - 1 :: -1]
        rows = self._unseen if held_out else self._known
        index = rows[seen % len(rows)] + len(self._given.demos.obs) * (seen >= len(rows))
        return FrameWindows(windows.states, windows.actions, torch.from_numpy(index))

    def make_source(self, data: FrameWindows) -> FrameWindows | BatchSource[FrameWindows]:
        """Return all windows and frames on the device if they fit, else a source that reads ahead."""
        frames = self._open_frames()
        device = torch.device(self._given.device)
        needed = frames.total_bytes
        free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MEMORY_BYTES
        if needed <= free:
            return replace(data, frames=self._copy_frames()).to(device)
        logger.info("%.0f MB of frames are read from a file during training", needed / 1e6)

        def load(step: int) -> tuple[Tensor, ...]:
            """Load the windows of a step, chosen by the seed and the step alone."""
            rng = np.random.default_rng([self._given.seed, step])
            rows = rng.integers(len(data), size=self._given.config.train.batch_size)
            batch = self.load_frames(data[torch.from_numpy(rows)])
            return batch.states, batch.actions, batch.index, *batch.frames

        self._source = PrefetchSource(load, _build_frame_windows, device)
        return self._source

    def load_frames(self, windows: FrameWindows) -> FrameWindows:
        """Return windows with a table of their own frames alone."""
        index, total = windows.index.flatten().numpy(), len(self._given.demos.obs)
        frames = self._open_frames().read(index % total)
        place = torch.arange(len(index)) + len(index) * torch.from_numpy(index >= total)
        return replace(
            windows,
            index=place.view_as(windows.index),
            frames=tuple(torch.from_numpy(camera) for camera in frames),
        )

    def _copy_frames(self) -> tuple[Tensor, ...]:
        """Copy the frames of all cameras to the device, block by block."""
        frames = self._open_frames()
        side, total = frames.size, len(frames)
        tables = tuple(
            torch.empty(total, side, side, 3, dtype=torch.uint8, device=self._given.device)
            for _ in self._given.images
        )
        for start in range(0, total, READ_BLOCK):
            index = np.arange(start, min(start + READ_BLOCK, total))
            for table, camera in zip(tables, frames.read(index), strict=True):
                table[start : start + len(index)] = torch.from_numpy(camera)
        return tables

    def _open_frames(self) -> FrameFile:
        """Decode all frames into a temporary file, once."""
        if self._file is None:
            self._file = self._given.decode(self._given.build_encoder().size)
        return self._file

    def measure_frames(self) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        frames = self._open_frames()
        return self._given.measure_cameras(frames.looks, frames.repeats)

    def encode(self, encoder: EncoderModel) -> Demonstrations:
        """Return the demonstrations with the codes of a trained encoder, and delete the temporary file."""
        frames = self._open_frames()
        codes = self._given.encode(encoder, frames)
        if self._source is not None:
            self._source.close()
        frames.close()
        return self._given.join_codes(codes)


def _build_frame_windows(tensors: tuple[Tensor, ...]) -> FrameWindows:
    """Make a batch of the tensors that a thread has loaded."""
    states, actions, index, *frames = tensors
    return FrameWindows(states, actions, index, tuple(frames))
