"""The latent space of an autoencoder, in which video models can predict instead of pixels."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError
from nsde_policy.video.spaces import RGB_CHANNELS, FrameSpace, psnr, to_unit

SMALLEST_LATENT_STD = 1e-6
"""Smallest standard deviation that latents are divided by; channels that never change are below it."""


class Autoencoder(Protocol):
    """A network from frames to latents and back."""

    def encode(self, frames: Tensor) -> Tensor:
        """Map frames (n, 3, height, width) with values from -1 to 1 to latents (n, channels, h, w)."""

    def decode(self, latents: Tensor) -> Tensor:
        """Draw the frames of latents."""


@dataclass(frozen=True)
class LatentScale(BaseConfig):
    """Statistics of the latents of training frames, and how well the autoencoder draws these frames."""

    mean: tuple[float, ...]
    """Mean of each channel."""
    std: tuple[float, ...]
    """Standard deviation of each channel."""
    psnr: float
    """Mean PSNR of the frames after encoding and decoding, dB."""

    @classmethod
    @torch.no_grad()
    def measure(cls, autoencoder: Autoencoder, frames: Tensor) -> Self:
        """Measure on frames (n, height, width, 3) uint8 on the device of the autoencoder."""
        given = to_unit(frames)
        latents = autoencoder.encode(given)
        quality = psnr(autoencoder.decode(latents).clamp(-1, 1), given)
        values = latents.double().transpose(0, 1).flatten(1)
        std = values.std(dim=1).clamp_min(SMALLEST_LATENT_STD)
        return cls(tuple(values.mean(dim=1).tolist()), tuple(std.tolist()), float(quality.mean()))


class LatentSpace(FrameSpace):
    """Latents of a frozen autoencoder, each channel scaled to mean 0 and standard deviation 1.

    Args:
        autoencoder: Autoencoder in evaluation mode.
        scale: Mean and standard deviation of its latents.
        size: Height and width of the recorded frames.
        device: Where the autoencoder is.
    """

    def __init__(
        self, autoencoder: Autoencoder, scale: LatentScale, size: int, device: torch.device | str
    ) -> None:
        self.autoencoder, self._device = autoencoder, device
        self.channels, self.size = measure_latents(autoencoder, size, device)
        self._mean, self._std = (
            torch.tensor(values, device=device)[:, None, None] for values in (scale.mean, scale.std)
        )

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames, always in float32."""
        rows = to_unit(frames.to(self._device).flatten(0, -4))
        with torch.autocast(rows.device.type, enabled=False):
            latents = (self.autoencoder.encode(rows) - self._mean) / self._std
        return latents.view(*frames.shape[:-3], *latents.shape[1:])

    @torch.no_grad()
    def decode(self, frames: Tensor) -> Tensor:
        """Draw the frames of latents."""
        drawn = self.autoencoder.decode(frames.flatten(0, -4) * self._std + self._mean)
        return drawn.clamp(-1, 1).view(*frames.shape[:-3], *drawn.shape[1:])


@torch.no_grad()
def measure_latents(
    autoencoder: Autoencoder, size: int, device: torch.device | str = "cpu"
) -> tuple[int, int]:
    """Return the channels and the height and width of the latents of frames of size × size.

    Raises:
        ConfigError: If frames of this size cannot be encoded and decoded.
    """
    frames = torch.zeros(1, RGB_CHANNELS, size, size, device=device)
    try:
        latents = autoencoder.encode(frames)
        fits = autoencoder.decode(latents).shape == frames.shape
    except RuntimeError:  # too small for a convolution
        fits = False
    if not fits:
        raise ConfigError(
            f"the autoencoder cannot encode and decode frames of {size} × {size}: choose another --size, "
            "such as a multiple of 8"
        )
    return int(latents.shape[1]), int(latents.shape[2])
