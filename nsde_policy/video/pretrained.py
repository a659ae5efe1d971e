"""Autoencoders of images in the format of diffusers, from a local folder."""

from pathlib import Path

import torch
from torch import Tensor, nn

from nsde_policy.errors import ConfigError
from nsde_policy.files import read_json
from nsde_policy.video.spaces import RGB_CHANNELS

AUTOENCODER_CLASSES = ("AutoencoderKL", "AutoencoderTiny")
"""Classes of diffusers that can be used."""


class PretrainedAutoencoder(nn.Module):
    """An `AutoencoderKL` or `AutoencoderTiny` of diffusers, without randomness."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        self.model, self._kind = model, kind

    def encode(self, frames: Tensor) -> Tensor:
        """Map frames (n, 3, size, size) with values from -1 to 1 to latents; of a distribution, its mode."""
        found = self.model.encode(frames)  # type: ignore[operator]
        latents: Tensor = found.latents if self._kind == "AutoencoderTiny" else found.latent_dist.mode()
        return latents

    def decode(self, latents: Tensor) -> Tensor:
        """Draw the frames of latents, (n, 3, size, size)."""
        frames: Tensor = self.model.decode(latents).sample  # type: ignore[operator]
        return frames

    def save(self, folder: Path) -> None:
        """Write it in the format of diffusers."""
        self.model.save_pretrained(folder)  # type: ignore[operator]


def load_pretrained_autoencoder(folder: Path) -> PretrainedAutoencoder:
    """Load an autoencoder that `save_pretrained` of diffusers wrote, with weights in safetensors format.

    Raises:
        ConfigError: If the folder does not hold one, or its weights are missing or damaged.
    """
    kind = find_autoencoder_class(folder)
    import diffusers
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # what it logs is an error below
    try:
        model, report = getattr(diffusers, kind).from_pretrained(
            folder, local_files_only=True, use_safetensors=True, low_cpu_mem_usage=False,
            torch_dtype=torch.float32, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # many kinds, depending on what is damaged
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{folder}: the weights of this {kind} cannot be read (need "
            f"diffusion_pytorch_model.safetensors): {reason:.200}"
        ) from None
    finally:
        logging.set_verbosity(before)
    if wrong := [*report["missing_keys"], *report["mismatched_keys"]]:
        raise ConfigError(f"{folder}: {len(wrong)} weights of this {kind} are missing, such as {wrong[0]}")
    channels = model.config.in_channels, model.config.out_channels
    if channels != (RGB_CHANNELS, RGB_CHANNELS):
        raise ConfigError(
            f"{folder}: this {kind} maps {channels[0]} to {channels[1]} channels, expected {RGB_CHANNELS} to "
            f"{RGB_CHANNELS}, colours"
        )
    return PretrainedAutoencoder(model, kind)


def find_autoencoder_class(folder: Path) -> str:
    """Return the class that the config.json of a folder names.

    Raises:
        ConfigError: If the folder is missing, or the class is not one of `AUTOENCODER_CLASSES`.
    """
    wanted = f"a folder of diffusers with an {' or '.join(AUTOENCODER_CLASSES)}"
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"--latents {folder} {found}: expected `own`, or {wanted}")
    file = folder / "config.json"
    if not file.exists():
        is_pipeline = (folder / "vae" / "config.json").exists()
        hint = f"; try {folder / 'vae'}" if is_pipeline else ""
        raise ConfigError(f"--latents {folder} has no config.json: expected {wanted}{hint}")
    values = read_json(file, error=ConfigError)
    kind = values.get("_class_name")
    if values.get("quantization_config"):
        raise ConfigError(f"--latents {folder} holds quantised weights: expected plain ones")
    if kind not in AUTOENCODER_CLASSES:
        raise ConfigError(f"--latents {folder} holds {kind or 'another model'}: expected {wanted}")
    return str(kind)
