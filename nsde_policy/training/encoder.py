"""Training of the encoder of camera frames, before the policy or together with it.

An encoder with a loss of its own (`TrainedEncoderConfig`) is pretrained on the frames; its features then
replace them. Any other one is trained together with the policy, by the policy's loss (`PolicyWithEncoder`).

    encoder/config.json           settings of the encoder, seed and demonstrations
    encoder/model.safetensors     averaged weights, which a policy loads
    encoder/training.safetensors  checkpoint to resume from, if the encoder is pretrained
    encoder/metrics.jsonl         losses, if the encoder is pretrained
    encoder/frames.json           fingerprint of all frames
    encoder/codes.safetensors     features of all frames and of their mirror images; brightness, contrast and
                                  detail of each frame, and whether it is equal to the one before
    encoder/visibility.safetensors  how much of the frames is visible
    encoder/teacher/              the same of the first training, if a second one has occluded frames;
                                  a run of its own if a policy trained the encoder

All of it is in the run directory. A run that is resumed after pretraining needs no frames any more.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nsde_policy.config import ImageEncoderConfig, TrainedEncoderConfig, WindowConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.core.targets import Windows
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.source import get_short_name
from nsde_policy.data.types import Floats
from nsde_policy.encoders.encoder import IMAGE_KEY
from nsde_policy.encoders.encoder_model import VISIBILITY_FILE, CameraBatch, mirror_frames
from nsde_policy.encoders.occlusion import EpisodeOcclusion
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.interface.calibration import CameraRange
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import build_encoder, limit_parameters
from nsde_policy.policy.torch_threads import count_threads, use_threads
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, check_encoder

from .batches import PrefetchSource
from .checkpoints import build_refusal
from .dataset import build_training_data, find_window_frames
from .distributed import get_rank, split_batch
from .frames import (
    FEATURES_FILE,
    EncoderPhase,
    FrameTable,
    PolicyWithEncoder,
    look_ahead,
    sample_occlusion,
    split_rows,
)
from .recorder import FitOptions, fit_run
from .training_set import TrainingSet

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)

TEACHER_FOLDER = "teacher"
BACKGROUND_FRAMES = 500
"""Most first frames of episodes whose median is the background."""


class EncoderTraining:
    """Training of the encoder of a run, and the features that it gives.

    The run directory holds the decoded frames while this process runs. Episodes in `held_out` are not trained
    on.

    Raises:
        ConfigError: If the frames do not fit the demonstrations or their mirror symmetry, the method cannot
            train the encoder, or the encoder has too many parameters.
    """

    def __init__(
        self,
        data: TrainingSet,
        images: Mapping[str, "LazyFrames"],
        config: RunConfig,
        run: RunDirectory,
        options: FitOptions,
        *,
        held_out: Sequence[int],
    ) -> None:
        demos, mirror = data.demos, data.mirror
        for name, frames in images.items():
            if len(frames) < len(demos.obs):
                raise ConfigError(f"data/{name} has {len(frames)} frames, but there are {len(demos.obs)}")
        if mirror is not None and mirror.frame is None:
            raise ConfigError(
                "it is not known how camera frames of the mirrored task look: set demos.mirror to False, or "
                "define Mirror.frame of the task"
            )
        self.cameras = tuple(
            CameraSpec(IMAGE_KEY + get_short_name(name), height=frames.shape[1], width=frames.shape[2])
            for name, frames in images.items()
        )
        """Name and frame size of each camera."""
        self._data = data
        self._images = images
        self._config = config
        self._run = run
        self._values = demos.obs
        self._mirrored_values = demos.obs if mirror is None else mirror.flip(demos).obs
        self._held_out = held_out
        self._episodes = [i for i in range(len(demos)) if i not in held_out]
        self._options = options
        self._seed = options.seed
        self._device = torch.device(options.device)
        with limit_parameters(error=ConfigError):
            self.model = build_encoder(config, self.cameras, plain_dim=demos.obs.shape[1], seed=options.seed)
        self.model.mirror = mirror.frame if mirror is not None else None
        assert isinstance(config.encoder, ImageEncoderConfig)
        self._occluded_steps = config.encoder.occlusion_steps
        self._is_joint = not isinstance(config.encoder, TrainedEncoderConfig)
        self.teacher = RunDirectory(run.encoder.path / TEACHER_FOLDER)
        """Files of the first of two trainings; a whole run if a policy is trained as well."""
        if self._is_joint and get_method(config.method).model_class().training_view != "windows":
            raise ConfigError(
                f"the method {config.method!r} predicts future observations, so that it cannot train the "
                f"encoder {config.demos.encoder!r}, whose features would change; use --encoder keypoints"
            )

    @property
    def is_joint(self) -> bool:
        """Whether the encoder is trained together with the policy, and not once more before it."""
        return self._is_joint and not self._occluded_steps

    @property
    def needs_teacher(self) -> bool:
        """Whether `teacher` has to be trained first, together with a policy."""
        return self._is_joint and self._occluded_steps > 0 and not self.phases[0].is_finished()

    @cached_property
    def _frames(self) -> FrameFile:
        """All frames, decoded into a temporary file by the first use; refused if others began the run."""
        folder, total = self._run.encoder.path, len(self._values)
        logger.info("decoding %d frames of %s", total, ", ".join(self._images))
        frames = FrameFile(list(self._images.values()), total, size=self.model.size, folder=folder)
        file = folder / "frames.json"
        recorded = {"fingerprint": frames.fingerprint}
        if file.exists() and read_json(file, error=CheckpointError) != recorded:
            raise CheckpointError(
                f"{self._data.demos.source} holds other camera frames than when {folder.parent} was begun: "
                "resume with the same frames, or choose another --out"
            )
        replace_file(file, json.dumps(recorded).encode())
        return frames

    def check_settings(self) -> None:
        """Write the settings; to resume, raise `CheckpointError` if others were written before."""
        file = self._run.encoder.config
        settings = {
            "config": self._config.encoder.to_dict(),
            "cameras": [camera.to_dict() for camera in self.cameras],
            "mirror": self.model.mirror,
            "seed": self._seed,
            "fingerprint": self._data.demos.fingerprint,
            "held_out": list(self._held_out),
        }
        if not (self._options.resume and file.exists()):
            replace_file(file, json.dumps(settings, indent=2).encode())
            return
        written = read_json(file, error=CheckpointError)
        encoder = type(self._config.encoder).from_dict(written.get("config", {}))  # also of earlier versions
        written["config"] = encoder.to_dict()
        if json.dumps(written) != json.dumps(settings):
            raise build_refusal(file.parent, written, settings)

    @property
    def phases(self) -> tuple[EncoderPhase, ...]:
        """The trainings of an encoder that is pretrained; the files of the last one are the encoder's."""
        config, final = self._config, self._run.encoder
        train = config.encoder.train if isinstance(config.encoder, TrainedEncoderConfig) else config.train
        if not self._occluded_steps:
            return (EncoderPhase("encoder", final, train),)
        teacher = EncoderPhase("encoder", self.teacher.encoder if self._is_joint else self.teacher, train)
        occluded = replace(train, steps=self._occluded_steps)
        return teacher, EncoderPhase("occlusion", final, occluded, is_occluded=True)

    def train_phases(self) -> None:
        """Train the phases that are not finished, and write the features of all frames after each."""
        for phase in self.phases:
            if phase.is_finished():
                continue
            self._prepare_model(phase)
            with use_threads(count_threads()), closing(self._sample_frames(phase)) as source:
                fit_run(phase.directory, self.model, source, phase.config, self._options, title=phase.title)
                self.write_features(phase.directory, is_occluded=phase.is_occluded)
        self.close()

    def _prepare_model(self, phase: EncoderPhase) -> None:
        """Set what the model needs to know about all frames, and about its teacher if there is one."""
        demos, mirrored = self._data.demos.obs, self._mirrored_values
        if phase.is_occluded:
            self.model.load_state_dict(self.phases[0].directory.read_weights())
            self.model.learn_from_teacher(
                torch.from_numpy(np.concatenate(self._read_targets(phase)).std(axis=0))
            )
        both = np.concatenate([demos, mirrored])
        first = self._frames.read(self._data.demos.starts[self._episodes][:BACKGROUND_FRAMES])
        backgrounds = [torch.from_numpy(np.median(camera, axis=0).astype(np.uint8)) for camera in first]
        self.model.set_scene(torch.from_numpy(both.min(0)), torch.from_numpy(both.max(0)), backgrounds)

    def _read_targets(self, phase: EncoderPhase) -> tuple[Floats, ...]:
        """Return what each frame, and its mirror image, predicts: later states, or a teacher's features."""
        if not phase.is_occluded:
            return tuple(
                look_ahead(table, self._data.demos) for table in (self._values, self._mirrored_values)
            )
        teacher = self.phases[0]
        features = teacher.directory.read_tensors(teacher.features)
        return features["codes"].numpy(), features.get("mirrored", features["codes"]).numpy()

    def _sample_frames(self, phase: EncoderPhase) -> PrefetchSource[CameraBatch]:
        """Return batches of random frames."""
        rows, batch_size = self._data.demos.find_rows(self._episodes), split_batch(phase.config.batch_size)
        targets = self._read_targets(phase)

        def load(step: int) -> tuple[Tensor, ...]:
            """Load the frames of a step, sampled by the seed, the step and the rank."""
            rng = np.random.default_rng([self._seed, step, get_rank()])
            index = rows[rng.integers(len(rows), size=batch_size)]
            values = (table[index] for table in (self._values, self._mirrored_values, *targets))
            return tuple(map(torch.from_numpy, (*values, *self._frames.read(index))))

        def build(tensors: tuple[Tensor, ...]) -> CameraBatch:
            values, mirrored, *others = tensors
            count = len(targets)
            return CameraBatch(values, mirrored, tuple(others[count:]), tuple(others[:count]))

        return PrefetchSource(load, build, self._device)

    @torch.no_grad()
    def write_features(self, directory: RunDirectory, *, is_occluded: bool = False) -> None:
        """Encode all frames and their mirror images; with `is_occluded` also partly occluded copies."""
        frames, demos = self._frames, self._data.demos
        logger.info("encoding %d frames", len(frames))
        generator, size = torch.Generator(self._device).manual_seed(self._seed), self.model.size
        copies = sample_occlusion(len(demos), len(self.cameras), size, generator) if is_occluded else []
        stored = self._encode(copies)
        if directory.path == self._run.encoder.path:
            from .visibility import fit_visibility

            head = fit_visibility(self.model, frames, demos, stored["codes"], self._held_out, seed=self._seed)
            file = directory.path / VISIBILITY_FILE
            directory.save_tensors(file, head.state_dict(), encoder=directory.model)
        stored["looks"] = torch.from_numpy(frames.looks)
        stored["repeats"] = torch.from_numpy(frames.repeats)
        directory.save_tensors(directory.path / FEATURES_FILE, stored, encoder=directory.model)

    @torch.no_grad()
    def _encode(self, copies: Sequence[list[EpisodeOcclusion]]) -> dict[str, Tensor]:
        """Encode all frames, their mirror images, and copies that are partly occluded."""
        model, ends = self.model.eval(), self._data.demos.episode_ends
        parts: dict[str, list[Tensor]] = {}
        for rows in split_rows(len(self._values), self._device):
            cameras = [torch.from_numpy(camera).to(self._device) for camera in self._frames.read(rows)]
            tables = (self._values, self._mirrored_values)
            values, mirrored_values = (torch.from_numpy(table[rows]).to(self._device) for table in tables)
            episode = torch.from_numpy(np.searchsorted(ends, rows, side="right")).to(self._device)
            shown = {"": cameras}
            for k, covers in enumerate(copies):
                pairs = zip(covers, cameras, strict=True)
                shown[f"copy_{k}_"] = [cover.apply(camera, episode) for cover, camera in pairs]
            for name, pictures in shown.items():
                parts.setdefault(f"{name}codes", []).append(model(values, *pictures).cpu())
                if model.mirror is not None:
                    flipped = [mirror_frames(picture, model.mirror).contiguous() for picture in pictures]
                    features = model(mirrored_values, *flipped).cpu()
                    parts.setdefault(f"{name}mirrored", []).append(features)
        return {name: torch.cat(features) for name, features in parts.items()}

    def close(self) -> None:
        """Delete the temporary file of frames."""
        if "_frames" in vars(self):
            self._frames.close()

    def read_features(self) -> TrainingSet:
        """Return the demonstrations with features after their low-dimensional observations, and their copies.

        Raises:
            CheckpointError: If the features, or the policy of a resumed run, belong to another encoder.
        """
        directory = self._run.encoder
        file, weights = directory.path / FEATURES_FILE, directory.read_weights()
        features = directory.read_tensors(file)
        check_encoder(file, weights)
        if self._run.model.exists():
            check_encoder(self._run.model, weights)
        names = sorted(name[: -len("codes")] for name in features if re.fullmatch(r"copy_\d+_codes", name))
        copies = tuple(self._add_features(features, name) for name in names)
        return replace(self._add_features(features), copies=copies)

    def make_blank_features(self) -> TrainingSet:
        """Return the demonstrations with 0 for all features, to be trained together with the encoder."""
        blank = torch.zeros(len(self._values), self.model.feature_dim)
        return self._add_features({"codes": blank, "mirrored": blank})

    def _add_features(self, features: Mapping[str, Tensor], prefix: str = "") -> TrainingSet:
        """Return the demonstrations with features by the prefix of their names."""
        mirrored = features.get(f"{prefix}mirrored")
        return self._data.add_features(
            features[f"{prefix}codes"].numpy(), None if mirrored is None else mirrored.numpy()
        )

    def measure_frames(self) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        features = self._run.encoder.read_tensors(self._run.encoder.path / FEATURES_FILE)
        looks, repeats = features["looks"].numpy(), features["repeats"].numpy()
        demos = self._data.demos
        spans = [(int(demos.starts[i]), int(demos.episode_ends[i])) for i in self._episodes]
        return tuple(
            CameraRange.measure(camera.name, of_camera, repeated, demos.obs, spans, demos.angles)
            for camera, of_camera, repeated in zip(self.cameras, looks, repeats, strict=True)
        )

    def build_model(self, policy: PolicyModel[Windows]) -> PolicyWithEncoder:
        """Return a policy with this encoder, to be trained together.

        Raises:
            ConfigError: If the method has no parameters to train.
        """
        if policy.objective() is None:
            raise ConfigError(
                f"the method {self._config.method!r} is not trained, so that it cannot train the encoder "
                f"{self._config.demos.encoder!r}; use --encoder keypoints"
            )
        demos = self._config.demos
        return PolicyWithEncoder(policy, self.model, cameras=len(demos.images), dropout=demos.images_dropout)

    def build_windows(self, data: TrainingSet, *, held_out: bool = False) -> FrameTable:
        """Build the windows of the demonstrations for training, or of those held out, with their frames."""
        model = self._config.model
        windows = build_training_data(data, self._config)
        assert isinstance(model, WindowConfig)
        assert isinstance(windows, Windows)
        frames = find_window_frames(
            data.with_mirror_images,
            horizon=model.horizon,
            history=model.history,
            n_action_steps=self._config.chunk,
        )[:, model.history - 1 :: -1]
        rows = self._data.demos.find_rows(self._held_out if held_out else self._episodes)
        index = rows[frames % len(rows)] + len(self._values) * (frames >= len(rows))
        return FrameTable(windows, index, self._frames)
