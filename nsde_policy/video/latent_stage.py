"""First stage of a video run in a latent space: train an autoencoder, or copy a given one into the run.

    autoencoder/latents.json          mean and standard deviation of the latents, PSNR of drawn frames
    autoencoder/model.safetensors     weights of the own autoencoder, with its losses and checkpoint beside
    autoencoder/config.json, …        a given autoencoder, in the format of diffusers

A run is complete in itself: a given autoencoder is not read again from where it came.
"""

import logging
from pathlib import Path

import torch

from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import check_weights
from nsde_policy.run_directory import RunDirectory
from nsde_policy.video.autoencoder import FrameAutoencoder
from nsde_policy.video.config import OWN_LATENTS, VideoConfig
from nsde_policy.video.latents import LatentScale, LatentSpace, measure_latents
from nsde_policy.video.phases import PhaseTrainer
from nsde_policy.video.pretrained import PretrainedAutoencoder, load_pretrained_autoencoder
from nsde_policy.video.spaces import FrameSpace, PixelSpace

logger = logging.getLogger(__name__)

AUTOENCODER_FOLDER = "autoencoder"
"""Folder of a run directory that holds the autoencoder."""
SCALE_FILE = "latents.json"
"""Statistics of the latents; the last file that this stage writes."""


def build_autoencoder(
    config: VideoConfig, run: RunDirectory, *, seed: int
) -> FrameAutoencoder | PretrainedAutoencoder | None:
    """Return the autoencoder of a run, with initial or given weights; None for a model of pixels.

    Raises:
        ConfigError: If the settings name a folder that does not hold one, or it does not fit the frames.
    """
    if config.latents is None:
        return None
    if config.latents == OWN_LATENTS:
        return FrameAutoencoder(config.autoencoder, generator=torch.Generator().manual_seed(seed))
    folder = run.path / AUTOENCODER_FOLDER
    given = load_pretrained_autoencoder(
        folder if (folder / SCALE_FILE).exists() else Path(config.latents).expanduser()
    )
    _, size = measure_latents(given, config.size)
    stride = config.model.backbone.stride
    if size % stride:
        raise ConfigError(
            f"frames of {config.size} × {config.size} have latents of {size} × {size} in {config.latents}, "
            f"which cannot be cut into patches of {stride}: choose another --size, or "
            "--model.backbone.kind plain --model.backbone.patch 1"
        )
    return given


def make_space(
    autoencoder: FrameAutoencoder | PretrainedAutoencoder | None,
    config: VideoConfig,
    run: RunDirectory,
    trainer: PhaseTrainer,
    *,
    seed: int,
) -> FrameSpace:
    """Train the own autoencoder of a run, or copy a given one into it, and return the space to predict in."""
    if autoencoder is None:
        return PixelSpace(config.size)
    folder = RunDirectory(run.path / AUTOENCODER_FOLDER)
    file = folder.path / SCALE_FILE
    autoencoder.to(trainer.device)
    if isinstance(autoencoder, FrameAutoencoder):
        trainer.train(folder, autoencoder, config.autoencoder.train, window=1, seed=seed)
    elif not file.exists():
        autoencoder.save(folder.path)
    if not file.exists():
        frames = trainer.videos.sample_frames().to(trainer.device)
        scale = LatentScale.measure(autoencoder, frames)
        logger.info("the autoencoder draws %d frames with a PSNR of %.1f dB", len(frames), scale.psnr)
        replace_file(file, scale.to_json().encode())
    return _open_space(autoencoder, folder, config.size, trainer.device)


def load_space(config: VideoConfig, run: RunDirectory, *, device: str) -> FrameSpace:
    """Load the space that the model of a run predicts in."""
    if config.latents is None:
        return PixelSpace(config.size)
    folder = RunDirectory(run.path / AUTOENCODER_FOLDER)
    read_json(folder.path / SCALE_FILE, error=CheckpointError)  # or the path in the settings would be opened
    if config.latents == OWN_LATENTS:
        weights = folder.read_weights()
        with check_weights(folder, weights):
            with torch.device("meta"):  # sizes of a damaged config.json take no memory
                autoencoder = build_autoencoder(config, run, seed=0)
            assert autoencoder is not None
            autoencoder.load_state_dict(weights, assign=True)
    else:
        autoencoder = build_autoencoder(config, run, seed=0)
    assert autoencoder is not None
    return _open_space(autoencoder.to(device), folder, config.size, device)


def _open_space(
    autoencoder: FrameAutoencoder | PretrainedAutoencoder, folder: RunDirectory, size: int, device: str
) -> LatentSpace:
    scale = LatentScale.from_dict(read_json(folder.path / SCALE_FILE, error=CheckpointError))
    return LatentSpace(autoencoder.eval().requires_grad_(False), scale, size, device)
