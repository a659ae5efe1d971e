"""Windows of demonstrations with camera frames, and a policy that is trained on them with its encoder."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nsde_policy.core.batches import TensorRows, Windows
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Ints
from nsde_policy.encoders.encoder_model import EncoderModel
from nsde_policy.methods.base import PolicyModel, TrainableModel

from .distributed import get_rank, split_batch
from .fit import BatchSource

Batch = TypeVar("Batch", bound=TensorRows)

BATCHES_AHEAD = 3
"""Batches that are loaded ahead of time."""
READ_BLOCK = 256
"""Frames that are read or encoded at once."""


class PrefetchSource(BatchSource[Batch]):
    """Copies batches that a thread loads ahead of time into buffers on the device.

    `load` returns the batch of a step, always the same one, so that a resumed run continues with the batches
    that it would have had.
    """

    def __init__(self, load: Callable[[int], Batch], device: torch.device) -> None:
        self._device = device
        self._load = load if device.type == "cpu" else lambda step: load(step).map(torch.Tensor.pin_memory)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._loading: dict[int, Future[Batch]] = {}
        self._buffers: Batch | None = None

    def load(self, step: int) -> None:
        """Wait for the batch of this step, copy it to the device and start to load later ones."""
        for later in range(step, step + 1 + BATCHES_AHEAD):
            if later not in self._loading:
                self._loading[later] = self._executor.submit(self._load, later)
        batch = self._loading.pop(step).result()
        if self._buffers is None:
            self._buffers = batch.to(self._device)
        for buffer, tensor in zip(self._buffers.tensors(), batch.tensors(), strict=True):
            buffer.copy_(tensor, non_blocking=True)

    def sample(self, generator: torch.Generator) -> Batch:
        """Return the batch in the buffers."""
        assert self._buffers is not None
        return self._buffers

    def close(self) -> None:
        """Stop loading batches and wait for the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class FrameWindows(TensorRows):
    """Windows of demonstrations with the frames of their states; the features in the states are 0."""

    states: Tensor
    """States x = (observation, the action before it), newest first, (n, history, d)."""
    actions: Tensor
    """Actions in time, (n, horizon, act_dim)."""
    is_mirrored: Tensor
    """Whether a mirror image of its frames belongs to each state, (n, history)."""
    frames: tuple[Tensor, ...]
    """Frames of each camera, (n, history, size, size, 3) uint8."""


@dataclass(frozen=True)
class FrameTable:
    """All windows of some demonstrations, whose frames are read from a file."""

    windows: Windows
    rows: Ints
    """Row of `file` that belongs to each state, (n, history); plus the number of rows for mirror images."""
    file: FrameFile

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> FrameWindows:
        rows, count = self.rows[index.numpy()], len(self.file)
        frames = self.file.read((rows % count).ravel())
        return FrameWindows(
            self.windows.states[index],
            self.windows.actions[index],
            torch.from_numpy(rows >= count),
            tuple(torch.from_numpy(camera).view(*rows.shape, *camera.shape[1:]) for camera in frames),
        )

    def sample(self, batch_size: int, seed: int, device: torch.device) -> PrefetchSource[FrameWindows]:
        """Return batches of random windows, determined by the seed, the step and the rank."""

        def load(step: int) -> FrameWindows:
            rng = np.random.default_rng([seed, step, get_rank()])
            return self[torch.from_numpy(rng.integers(len(self), size=split_batch(batch_size)))]

        return PrefetchSource(load, device)


class PolicyWithEncoder(TrainableModel[FrameWindows]):
    """A policy and its encoder, trained by the losses of the policy."""

    def __init__(
        self,
        policy: PolicyModel[Windows],
        encoder: EncoderModel,
        *,
        cameras: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.encoder = encoder
        self._cameras = cameras
        self._dropout = dropout

    def prepare(self, data: Windows | FrameWindows) -> None:
        """Prepare the policy with all training data."""
        self.policy.prepare(Windows(data.states, data.actions))

    def loss(self, batch: FrameWindows, generator: torch.Generator) -> dict[str, Tensor]:
        """Encode the frames, cropped at random in training, and return the losses of the policy."""
        is_mirrored = batch.is_mirrored.flatten()
        frames = [self.encoder.flip(camera.flatten(0, 1), is_mirrored) for camera in batch.frames]
        if self.training:
            frames = [self.encoder.augment(camera, generator) for camera in frames]
        states = batch.states
        obs_dim = states.shape[-1] - batch.actions.shape[-1]
        values = states[..., : obs_dim - self.encoder.feature_dim]
        previous = states[..., obs_dim:]
        features: Tensor = self.encoder(values.flatten(0, 1), *frames).view(*states.shape[:2], -1)
        if self.training and self._dropout:
            features = self._lose_cameras(features, generator)
        states = torch.cat([values, features, previous], dim=-1)
        return self.policy.loss(Windows(states, batch.actions), generator)

    def _lose_cameras(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Set the features of a random camera to 0 in some of the windows, (n, history, feature_dim)."""
        n, device = len(features), features.device
        is_lost = torch.rand(n, device=device, generator=generator) < self._dropout
        camera = torch.randint(self._cameras, (n,), device=device, generator=generator)
        others = camera[:, None] != torch.arange(self._cameras, device=device)
        mask = (others | ~is_lost[:, None]).repeat_interleave(features.shape[-1] // self._cameras, dim=1)
        return features * mask[:, None]

    @staticmethod
    def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Split a state dict into the weights of the policy and of the encoder."""
        policy, encoder = (
            {name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)}
            for part in ("policy.", "encoder.")
        )
        return policy, encoder


def split_rows(rows: Ints) -> list[Ints]:
    """Divide the indices of frames into blocks that are read at once."""
    return np.split(rows, range(READ_BLOCK, len(rows), READ_BLOCK))
