"""Training of the encoder of camera frames, before the policy or together with it.

An encoder with its own loss (`TrainedEncoderConfig`) is pretrained on the frames; its features then
replace them. Any other one is trained together with the policy, by the policy's loss (`PolicyWithEncoder`).

With `occlusion_steps`, the encoder that was trained in either way is the teacher of another one, which sees
the same frames partly occluded and learns the teacher's features. The policy is then trained on its features
of all frames and of two partly occluded copies.

    encoder/config.json           settings of the encoder, seed and demonstrations
    encoder/model.safetensors     averaged weights, which a policy loads
    encoder/training.safetensors  checkpoint to resume from, if the encoder is pretrained
    encoder/metrics.jsonl         losses, if the encoder is pretrained
    encoder/codes.safetensors     features of all frames and of their mirror images; brightness, contrast and
                                  detail of each frame, and whether it is equal to the one before
    encoder/visibility.safetensors  how much of the frames is visible
    encoder/teacher/              the same of the teacher; a separate run if a policy trained it

All of it is in the run directory. A run that is resumed after pretraining needs no frames any more.
"""

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

from nsde_policy.config import TrainConfig, TrainedEncoderConfig, WindowConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.frames import FrameFile
from nsde_policy.data.source import get_short_name
from nsde_policy.data.types import Demonstrations, Ints
from nsde_policy.encoders.encoder import IMAGE_KEY
from nsde_policy.encoders.encoder_model import (
    MIN_STD,
    VISIBILITY_FILE,
    CameraBatch,
    EncoderModel,
    RecordedFrames,
    VisibilityHead,
    mirror_frames,
)
from nsde_policy.encoders.occlusion import EpisodeOcclusion, RandomOccluder, disturb_frames
from nsde_policy.errors import ConfigError
from nsde_policy.interface.calibration import CameraRange
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import build_encoder
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import FEATURES_FILE, RunDirectory, check_encoder
from nsde_policy.torch_threads import count_threads, use_threads

from .dataset import TrainingSet, build_training_data, find_window_frames
from .distributed import get_rank, split_batch
from .fit import fit
from .frames import FrameTable, PolicyWithEncoder, PrefetchSource, split_rows
from .options import TrainOptions
from .recorder import RunRecorder
from .resume import record_or_check_settings

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)

FEATURES, MIRRORED = "codes", "mirrored"
"""Names of the tensors in the file of features; those of copies have a prefix."""
COPIES, COPY_OCCLUDER, COPY_GAIN = 2, RandomOccluder(1.0, (0.03, 0.15)), 0.15
"""Copies of each demonstration with partly occluded frames, what occludes them, and the largest change of
their brightness; both stay the same in an episode."""
FITTED_FRAMES, UNSEEN_FRAMES = 2048, 1024
"""Most frames that the visible fraction is fitted on, and most frames of other episodes that calibrate it."""
WRONG = 0.25
"""Error beyond which a feature is wrong, in standard deviations of the feature in demonstrations."""
SMOOTHING = 1e-2
"""Weight of the penalty of the ridge regression."""


class EncoderTraining:
    """Training of the encoder of a run, and the features that it gives.

    The run directory holds the decoded frames while this process runs. Episodes in `held_out` are not trained
    on.

    Raises:
        ConfigError: If the frames do not fit the demonstrations or their mirror symmetry, the method cannot
            train the encoder, the encoder has too many parameters, or its pretrained weights do not fit.
    """

    def __init__(
        self,
        data: TrainingSet,
        images: Mapping[str, "LazyFrames"],
        config: RunConfig,
        run: RunDirectory,
        options: TrainOptions,
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
        is_joint = not isinstance(config.encoder, TrainedEncoderConfig)
        if is_joint and get_method(config.method).model_class().training_view != "windows":
            raise ConfigError(
                f"the method {config.method!r} predicts future observations, so that it cannot train the "
                f"encoder {config.demos.encoder!r}, whose features would change; use --encoder keypoints"
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
        self._device = torch.device(options.device)
        self.model = build_encoder(config, self.cameras, plain_dim=demos.obs.shape[1], seed=options.seed)
        self.model.mirror = mirror.frame if mirror is not None else None
        if not self.is_finished(run.encoder):
            self.model.load_pretrained()

    @cached_property
    def _frames(self) -> FrameFile:
        """All frames, decoded into a temporary file by the first use."""
        logger.info("decoding %d frames of %s", len(self._values), ", ".join(self._images))
        cameras = list(self._images.values())
        return FrameFile(cameras, len(self._values), size=self.model.size, folder=self._run.encoder.path)

    def close(self) -> None:
        """Delete the temporary file of frames."""
        if "_frames" in vars(self):
            self._frames.close()

    def record_or_check_settings(self, run: RunDirectory, config: RunConfig) -> None:
        """Write the settings; to resume, raise `CheckpointError` if others were written before."""
        settings = {
            "config": config.encoder.to_dict(),
            "cameras": [camera.to_dict() for camera in self.cameras],
            "mirror": self.model.mirror,
            "seed": self._options.seed,
            "fingerprint": self._data.demos.fingerprint,
            "held_out": list(self._held_out),
        }
        record_or_check_settings(run, run.encoder, settings, resume=self._options.resume)

    def is_finished(self, directory: RunDirectory) -> bool:
        """Return whether an encoder was trained into a directory and the features of all frames written."""
        return (directory.path / FEATURES_FILE).exists() and directory.model.exists()

    def pretrain(self, directory: RunDirectory) -> None:
        """Train the encoder by its own loss into a directory, and write the features of all frames."""
        assert isinstance(self._config.encoder, TrainedEncoderConfig)
        if not self.is_finished(directory):
            demos = self._data.demos
            spans = zip(demos.starts[self._episodes], demos.episode_ends[self._episodes], strict=True)
            episodes = tuple(range(start, end) for start, end in spans)
            frames = RecordedFrames(self._values, self._mirrored_values, episodes, self._frames)
            targets = self.model.study(frames)
            self._fit(directory, self._config.encoder.train, targets, title="encoder")
            self.write_features(directory)

    def learn_occlusion(self, directory: RunDirectory, teacher: RunDirectory, config: TrainConfig) -> None:
        """Train a copy of a teacher on partly occluded frames into a directory, and write its features."""
        if not self.is_finished(directory):
            self.model.load_state_dict(teacher.read_weights())
            features = teacher.read_tensors(teacher.path / FEATURES_FILE)
            targets = [features[FEATURES], features.get(MIRRORED, features[FEATURES])]
            self.model.learn_from_teacher(torch.cat(targets).std(0, correction=0))
            self._fit(directory, config, targets, title="occlusion")
            self.write_features(directory, occluded_copies=COPIES)

    def _fit(
        self, directory: RunDirectory, config: TrainConfig, targets: Sequence[Tensor], *, title: str
    ) -> None:
        """Train the model on random frames; each of the `targets` has a row for every frame."""
        rows, batch_size = self._data.demos.find_rows(self._episodes), split_batch(config.batch_size)

        def load(step: int) -> CameraBatch:
            """Load the frames of a step, sampled by the seed, the step and the rank."""
            rng = np.random.default_rng([self._options.seed, step, get_rank()])
            index = rows[rng.integers(len(rows), size=batch_size)]
            values, mirrored_values = (
                torch.from_numpy(table[index]) for table in (self._values, self._mirrored_values)
            )
            frames = map(torch.from_numpy, self._frames.read(index))
            return CameraBatch(
                values, mirrored_values, tuple(frames), tuple(target[index] for target in targets)
            )

        with (
            use_threads(count_threads()),
            closing(PrefetchSource(load, self._device)) as source,
        ):
            recorder = RunRecorder(directory, self._options, title=title)
            fit(self.model.to(self._device), source, config, seed=self._options.seed, recorder=recorder)

    @torch.no_grad()
    def write_features(self, directory: RunDirectory, *, occluded_copies: int = 0) -> None:
        """Encode all frames, their mirror images and partly occluded copies, and fit the visible fraction."""
        frames, demos = self._frames, self._data.demos
        logger.info("encoding %d frames", len(frames))
        generator = torch.Generator(self._device).manual_seed(self._options.seed)
        copies = [
            [
                EpisodeOcclusion(len(demos), self.model.size, COPY_OCCLUDER, COPY_GAIN, generator)
                for _ in self.cameras
            ]
            for _ in range(occluded_copies)
        ]
        with use_threads(count_threads()):
            tensors = self._encode(copies)
            seed = self._options.seed
            head = fit_visibility(self.model, frames, demos, tensors[FEATURES], self._held_out, seed=seed)
        tensors["looks"] = torch.from_numpy(frames.looks)
        tensors["repeats"] = torch.from_numpy(frames.repeats)
        visibility = directory.path / VISIBILITY_FILE
        directory.save_tensors(visibility, head.state_dict(), encoder=directory.model)
        directory.save_tensors(directory.path / FEATURES_FILE, tensors, encoder=directory.model)

    def _encode(self, copies: Sequence[list[EpisodeOcclusion]]) -> dict[str, Tensor]:
        """Encode all frames, their mirror images, and copies that are partly occluded."""
        model, ends = self.model.eval(), self._data.demos.episode_ends
        blocks: dict[str, list[Tensor]] = {}
        for rows in split_rows(np.arange(len(self._values))):
            cameras = [torch.from_numpy(camera).to(self._device) for camera in self._frames.read(rows)]
            values = torch.from_numpy(self._values[rows]).to(self._device)
            mirrored_values = torch.from_numpy(self._mirrored_values[rows]).to(self._device)
            episode = torch.from_numpy(np.searchsorted(ends, rows, side="right")).to(self._device)
            views = {"": cameras}
            for k, occlusions in enumerate(copies):
                pairs = zip(occlusions, cameras, strict=True)
                views[f"copy_{k}_"] = [occlusion.apply(camera, episode) for occlusion, camera in pairs]
            for prefix, frames in views.items():
                blocks.setdefault(prefix + FEATURES, []).append(model(values, *frames).cpu())
                if model.mirror is not None:
                    flipped = [mirror_frames(camera, model.mirror).contiguous() for camera in frames]
                    features = model(mirrored_values, *flipped).cpu()
                    blocks.setdefault(prefix + MIRRORED, []).append(features)
        return {name: torch.cat(features) for name, features in blocks.items()}

    def read_features(self, run: RunDirectory) -> TrainingSet:
        """Return the demonstrations with features after their low-dimensional observations, and their copies.

        Raises:
            CheckpointError: If the features, or the policy of a resumed run, belong to another encoder.
        """
        file, weights = run.encoder.path / FEATURES_FILE, run.encoder.read_weights()
        tensors = run.encoder.read_tensors(file)
        check_encoder(file, weights)
        if run.model.exists():
            check_encoder(run.model, weights)
        prefixes = sorted(
            {name[: -len(FEATURES)] for name in tensors if re.fullmatch(rf"copy_\d+_{FEATURES}", name)}
        )
        copies = tuple(self._add_features(tensors, prefix) for prefix in prefixes)
        return replace(self._add_features(tensors), copies=copies)

    def make_blank_features(self) -> TrainingSet:
        """Return the demonstrations with 0 for all features, to be trained together with the encoder."""
        blank = torch.zeros(len(self._values), self.model.feature_dim)
        return self._add_features({FEATURES: blank, MIRRORED: blank})

    def _add_features(self, tensors: Mapping[str, Tensor], prefix: str = "") -> TrainingSet:
        """Return the demonstrations with the features whose names have a prefix."""
        mirrored = tensors.get(prefix + MIRRORED)
        return self._data.add_features(
            tensors[prefix + FEATURES].numpy(), None if mirrored is None else mirrored.numpy()
        )

    def measure_frames(self, directory: RunDirectory) -> tuple[CameraRange, ...]:
        """Return the range of the training frames of each camera, for the calibration."""
        tensors = directory.read_tensors(directory.path / FEATURES_FILE)
        demos = self._data.demos
        spans = [(int(demos.starts[i]), int(demos.episode_ends[i])) for i in self._episodes]
        return tuple(
            CameraRange.measure(camera.name, looks, repeats, demos.obs, spans, demos.angles)
            for camera, looks, repeats in zip(
                self.cameras, tensors["looks"].numpy(), tensors["repeats"].numpy(), strict=True
            )
        )

    def join_policy(self, policy: PolicyModel[Windows]) -> PolicyWithEncoder:
        """Return a policy with this encoder, to be trained together.

        Raises:
            ConfigError: If the method has no parameters to train.
        """
        if not policy.trained_parameters():
            raise ConfigError(
                f"the method {self._config.method!r} is not trained, so that it cannot train the encoder "
                f"{self._config.demos.encoder!r}; use --encoder keypoints"
            )
        demos = self._config.demos
        return PolicyWithEncoder(policy, self.model, cameras=len(demos.images), dropout=demos.images_dropout)

    def build_windows(self, data: TrainingSet, config: RunConfig, *, held_out: bool = False) -> FrameTable:
        """Build the windows of the demonstrations for training, or of those held out, with their frames."""
        model = config.model
        windows = build_training_data(data, config)
        assert isinstance(model, WindowConfig)
        assert isinstance(windows, Windows)
        frames = find_window_frames(
            data.with_mirror_images,
            horizon=model.horizon,
            history=model.history,
            n_action_steps=config.chunk,
        )[:, model.history - 1 :: -1]
        rows = self._data.demos.find_rows(self._held_out if held_out else self._episodes)
        index = rows[frames % len(rows)] + len(self._values) * (frames >= len(rows))
        return FrameTable(windows, index, self._frames)


@torch.no_grad()
def fit_visibility(
    model: EncoderModel,
    frames: FrameFile,
    demos: Demonstrations,
    features: Tensor,
    held_out: Sequence[int],
    *,
    seed: int,
) -> VisibilityHead:
    """Fit the fraction of right features in partly occluded frames, and calibrate it on other episodes.

    Those are the held-out ones, or every fifth if there are none. `features` are those of all frames,
    (frames, feature_dim); the seed determines which frames are used and what occludes them.
    """
    device, rng = next(model.parameters()).device, np.random.default_rng(seed)
    generator = torch.Generator(device).manual_seed(seed)
    wrong = WRONG * features.std(0, correction=0).clamp(min=MIN_STD)

    def look(rows: Ints, *, is_disturbed: bool = True) -> tuple[Tensor, Tensor]:
        """Return the summaries of frames and the fraction of their features that are right, in float64."""
        summaries, fractions = [], []
        for block in split_rows(rows):
            cameras = [torch.from_numpy(camera).to(device) for camera in frames.read(block)]
            if is_disturbed:
                cameras = [disturb_frames(camera, generator) for camera in cameras]
            encoded, summary = model.summarize(torch.from_numpy(demos.obs[block]).to(device), *cameras)
            summaries.append(summary.float().cpu())
            fractions.append(((encoded.cpu() - features[block]).abs() <= wrong).double().mean(1))
        return torch.cat(summaries), torch.cat(fractions)

    others = [*held_out] or [*range(len(demos))][4::5] or [0]
    fitted = demos.find_rows([i for i in range(len(demos)) if i not in others] or others)
    unseen = rng.permutation(demos.find_rows(others))[:UNSEEN_FRAMES]
    summary, fraction = look(rng.permutation(fitted)[:FITTED_FRAMES])
    head = VisibilityHead(summary.shape[1])
    head.mean.copy_(summary.mean(0))
    head.std.copy_(summary.std(0, correction=0).clamp(min=MIN_STD))
    x = head.expand(summary).double()
    gram = torch.cov(x.T, correction=0) + SMOOTHING * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram, (x - x.mean(0)).T @ fraction / len(x))
    summary, fraction = look(unseen)  # the fit is too sure of frames that it has not seen
    x = head.expand(summary).double()
    spread = torch.cov(torch.stack([x @ weight, fraction]))
    weight *= (spread[0, 1] / spread[0, 0]).nan_to_num(0.0)
    head.weight.copy_(weight[None])
    head.bias.fill_(fraction.mean() - x.mean(0) @ weight)
    head.usual.fill_(head(look(unseen, is_disturbed=False)[0]).quantile(0.01))
    agreement = torch.corrcoef(torch.stack([head(summary), fraction.float()]))[0, 1].nan_to_num()
    where = f"{len(unseen)} frames of {len(others)} other episodes"
    logger.info(
        "visible fraction: correlation %.2f with the fraction of right features in %s", agreement, where
    )
    return head
