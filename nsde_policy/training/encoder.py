"""Training of the encoder of camera frames, before the policy or together with it.

An encoder with a loss of its own (`StagedEncoderModel`) is pretrained on the frames; its features then
replace them. Any other one is trained together with the policy, by the policy's loss (`PolicyWithEncoder`).

    encoder/config.json           settings of the encoder, seed and demonstrations
    encoder/model.safetensors     averaged weights, which a policy loads
    encoder/training.safetensors  checkpoint to resume from, if the encoder is pretrained
    encoder/metrics.jsonl         losses, if the encoder is pretrained
    encoder/frames.json           fingerprint of all frames
    encoder/codes.safetensors     features of all frames and of their mirror images; brightness, contrast and
                                  detail of each frame, and whether it is equal to the one before

All of it is in the run directory. A run that is resumed after pretraining needs no frames any more.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nsde_policy.config import TrainedEncoderConfig, WindowConfig
from nsde_policy.core.targets import Windows
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.base_model import CameraBatch, EncoderModel, StagedEncoderModel, mirror_frames
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import build_encoder, limit_parameters
from nsde_policy.methods.base import LossParts, PolicyModel, Stage, TrainableModel
from nsde_policy.methods.registry import get_method
from nsde_policy.planner.calibration import CameraRange
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, check_encoder
from nsde_policy.training.batches import BatchSource, PrefetchSource
from nsde_policy.training.dataset import augment, build_training_data, find_window_frames
from nsde_policy.training.frames import FrameData, FrameWindows, copy_frames, list_rows, load_frames
from nsde_policy.training.loop import Training

logger = logging.getLogger(__name__)

MEMORY_BYTES = 2**30
"""Most bytes of frames that are kept in memory without a GPU; of a GPU's free memory, half may be used."""
BACKGROUND_FRAMES = 500
"""Most first frames of episodes whose median is the background."""


class PolicyWithEncoder(TrainableModel[FrameWindows]):
    """A policy and its encoder, trained by the losses of the policy."""

    def __init__(self, policy: PolicyModel[Windows], encoder: EncoderModel) -> None:
        super().__init__()
        self.policy = policy
        self.encoder = encoder

    def stages(self) -> tuple[Stage, ...]:
        """Train the encoder in every stage of the policy."""
        encoder = tuple(self.encoder.parameters())
        return tuple(Stage(stage.losses, (*stage.parameters, *encoder)) for stage in self.policy.stages())

    def prepare(self, data: FrameWindows) -> None:
        """Prepare the policy with all training data."""
        self.policy.prepare(Windows(data.states, data.actions))

    def loss(self, batch: FrameWindows, generator: torch.Generator) -> LossParts:
        """Encode the frames, cropped at random in training, and return the losses of the policy."""
        frames = [self.gather(camera, batch.index.flatten()) for camera in batch.frames]
        if self.training:
            frames = [self.encoder.augment(camera, generator) for camera in frames]
        states = batch.states
        obs_dim = states.shape[-1] - batch.actions.shape[-1]
        values = states[..., : obs_dim - self.encoder.feature_dim]
        previous = states[..., obs_dim:]
        found: Tensor = self.encoder(values.flatten(0, 1), *frames)
        states = torch.cat([values, found.view(*states.shape[:2], -1), previous], dim=-1)
        return self.policy.loss(Windows(states, batch.actions), generator)

    def gather(self, table: Tensor, index: Tensor) -> Tensor:
        """Return frames of a table, with mirror images, (len(index), size, size, 3)."""
        frames = table[index % len(table)]
        if self.encoder.mirror is None:
            return frames
        mirrored = (index >= len(table))[:, None, None, None]
        return torch.where(mirrored, mirror_frames(frames, self.encoder.mirror), frames)

    @staticmethod
    def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Split a state dict into the weights of the policy and of the encoder."""
        policy, encoder = (
            {name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)}
            for part in ("policy.", "encoder.")
        )
        return policy, encoder


class EncoderTraining:
    """Training of the encoder of a run, and the features that it gives.

    Args:
        data: Demonstrations with their frames.
        config: Settings of the run.
        run: Its directory.
        seed: Seed of weights, batches and augmentation.
        device: Where the encoder is trained.

    Raises:
        ConfigError: If the method cannot train the encoder, or the encoder has too many parameters.
    """

    def __init__(
        self, data: FrameData, config: RunConfig, run: RunDirectory, *, seed: int, device: str
    ) -> None:
        self.data = data
        self._config = config
        self._run = run
        self._seed = seed
        self._device = torch.device(device)
        self._features_file = run.encoder.path / "codes.safetensors"
        with limit_parameters(error=ConfigError):
            self.model = build_encoder(config, data.cameras, plain_dim=data.demos.obs.shape[1], seed=seed)
        self.model.mirror = data.mirror.frame if data.mirror is not None else None
        self._source: PrefetchSource[CameraBatch] | PrefetchSource[FrameWindows] | None = None
        if self.is_joint and get_method(config.method).model_class().training_view != "windows":
            raise ConfigError(
                f"the method {config.method!r} predicts future observations, so that it cannot train the "
                f"encoder {config.demos.encoder!r}, whose features would change; use --encoder keypoints"
            )

    @property
    def is_joint(self) -> bool:
        """Whether the encoder is trained together with the policy."""
        return not isinstance(self.model, StagedEncoderModel)

    @cached_property
    def frames(self) -> FrameFile:
        """All frames, decoded into a temporary file by the first use."""
        return self.data.decode(self.model.size)

    def check_settings(self, *, resume: bool) -> None:
        """Write the settings; to resume, raise `CheckpointError` if others were written before."""
        data, file = self.data, self._run.encoder.config
        settings = {
            "config": self._config.encoder.to_dict(),
            "cameras": [camera.to_dict() for camera in data.cameras],
            "mirror": self.model.mirror,
            "seed": self._seed,
            "fingerprint": data.demos.fingerprint,
            "held_out": list(data.held_out),
        }
        if not (resume and file.exists()):
            replace_file(file, json.dumps(settings, indent=2).encode())
        elif read_json(file, error=CheckpointError) != json.loads(json.dumps(settings)):
            raise CheckpointError(
                f"{file.parent} was trained with other settings, another seed or other demonstrations; "
                "resume with the same ones or choose another --out"
            )

    def is_pretrained(self) -> bool:
        """Return whether pretraining was finished and all features were written."""
        return self._features_file.exists() and self._run.encoder.model.exists()

    def start_pretraining(self, *, resume: bool) -> Training:
        """Decode the frames and return the pretraining, at its last checkpoint if resumed."""
        data, model, config, directory = self.data, self.model, self._config.encoder, self._run.encoder
        assert isinstance(model, StagedEncoderModel)
        assert isinstance(config, TrainedEncoderConfig)
        frames = self.frames
        both = np.concatenate([data.demos.obs, data.mirrored_values])
        first = frames.read(data.demos.starts[data.episodes][:BACKGROUND_FRAMES])
        backgrounds = [torch.from_numpy(np.median(camera, axis=0).astype(np.uint8)) for camera in first]
        model.set_scene(torch.from_numpy(both.min(0)), torch.from_numpy(both.max(0)), backgrounds)
        rows = list_rows(data.demos, data.episodes)

        def load(step: int) -> tuple[Tensor, ...]:
            """Load the frames of a step, chosen by the seed and the step alone."""
            rng = np.random.default_rng([self._seed, step])
            index = rows[rng.integers(len(rows), size=config.train.batch_size)]
            arrays = (data.demos.obs[index], data.mirrored_values[index], *frames.read(index))
            return tuple(map(torch.from_numpy, arrays))

        def build(tensors: tuple[Tensor, ...]) -> CameraBatch:
            return CameraBatch(tensors[0], tensors[1], tensors[2:])

        self._source = PrefetchSource(load, build, self._device)
        training = Training(model.to(self._device), self._source, config.train, seed=self._seed)
        if resume and directory.training.exists():
            training.restore(directory.read_training_state())
        directory.truncate_metrics(training.step if resume else -1)
        return training

    def write_features(self) -> None:
        """Encode all frames and their mirror images, write the features, and delete the temporary file."""
        if self._source is not None:
            self._source.close()
        features = self.data.encode(self.model, self.frames, self._device)
        stored = dict(zip(("codes", "mirrored"), features, strict=False))
        stored["looks"] = torch.from_numpy(self.frames.looks)
        stored["repeats"] = torch.from_numpy(self.frames.repeats)
        self.frames.close()
        self._run.encoder.save_tensors(self._features_file, stored, encoder=self._run.encoder.model)

    def read_features(self) -> Demonstrations:
        """Return the demonstrations with features after their low-dimensional observations.

        Raises:
            CheckpointError: If the features, or the policy of a resumed run, belong to another encoder.
        """
        directory = self._run.encoder
        found, weights = directory.read_tensors(self._features_file), directory.read_weights()
        check_encoder(self._features_file, weights)
        if self._run.model.exists():
            check_encoder(self._run.model, weights)
        return self.data.add_features([found[name] for name in ("codes", "mirrored") if name in found])

    def make_blank_features(self) -> Demonstrations:
        """Return the demonstrations with 0 for all features, to be trained together with the encoder."""
        blank = torch.zeros(len(self.data.demos.obs), self.model.feature_dim)
        return self.data.add_features([blank, blank])

    def measure_frames(self) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        found = self._run.encoder.read_tensors(self._features_file)
        return self.data.measure_ranges(found["looks"].numpy(), found["repeats"].numpy())

    def build_model(self, policy: PolicyModel[Windows]) -> PolicyWithEncoder:
        """Return a policy with this encoder, to be trained together.

        Raises:
            ConfigError: If the method has no parameters to train.
        """
        if not policy.stages():
            raise ConfigError(
                f"the method {self._config.method!r} is not trained, so that it cannot train the encoder "
                f"{self._config.demos.encoder!r}; use --encoder keypoints"
            )
        return PolicyWithEncoder(policy, self.model)

    def build_windows(self, demos: Demonstrations, *, held_out: bool = False) -> FrameWindows:
        """Build the windows of the demonstrations for training, or of those held out, without frames."""
        data, model = self.data, self._config.model
        windows = build_training_data(demos, self._config, data.mirror)
        assert isinstance(model, WindowConfig)
        assert isinstance(windows, Windows)
        seen = find_window_frames(
            augment(demos, data.mirror),
            horizon=model.horizon,
            history=model.history,
            n_action_steps=self._config.chunk,
        )[:, model.history - 1 :: -1]
        rows = list_rows(data.demos, data.held_out if held_out else data.episodes)
        index = rows[seen % len(rows)] + len(data.demos.obs) * (seen >= len(rows))
        return FrameWindows(windows.states, windows.actions, torch.from_numpy(index))

    def make_source(self, windows: FrameWindows) -> FrameWindows | BatchSource[FrameWindows]:
        """Return all windows and frames on the device if they fit, else a source that reads ahead."""
        needed = self.frames.total_bytes
        free = MEMORY_BYTES
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0] // 2
        if needed <= free:
            tables = copy_frames(self.frames, len(self.data.images), self._device)
            return replace(windows, frames=tables).to(self._device)
        logger.info("%.0f MB of frames are read from a file during training", needed / 1e6)

        def load(step: int) -> tuple[Tensor, ...]:
            """Load the windows of a step, chosen by the seed and the step alone."""
            rng = np.random.default_rng([self._seed, step])
            rows = rng.integers(len(windows), size=self._config.train.batch_size)
            batch = load_frames(windows[torch.from_numpy(rows)], self.frames)
            return batch.states, batch.actions, batch.index, *batch.frames

        def build(tensors: tuple[Tensor, ...]) -> FrameWindows:
            return FrameWindows(tensors[0], tensors[1], tensors[2], tensors[3:])

        self._source = PrefetchSource(load, build, self._device)
        return self._source
