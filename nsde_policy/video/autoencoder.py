"""Own small convolutional autoencoder of frames, the first stage of training in a latent space."""

import itertools

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import weights_from
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.config import AutoencoderConfig
from nsde_policy.video.spaces import RGB_CHANNELS, to_unit
from nsde_policy.video.uvit import ResidualConv


class FrameAutoencoder(TrainableModel[VideoBatch]):
    """An encoder that halves height and width several times, and a decoder that draws the frame again.

    In training, latents z get noise of a fixed strength, and z² is penalised, so that they cannot outgrow the
    noise: the decoder has to bear small errors of predicted latents. This is a variational autoencoder whose
    posterior has a fixed variance.
    """

    def __init__(self, config: AutoencoderConfig, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        widths, colours = [config.width * 2**level for level in range(config.levels)], 4 * RGB_CHANNELS
        with weights_from(generator):
            inward: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(colours, widths[0], 3, 1, 1)]
            outward: list[nn.Module] = [nn.Conv2d(config.channels, widths[-1], 3, 1, 1)]
            for narrow, wide in itertools.pairwise(widths):
                inward += [ResidualConv(narrow), nn.Conv2d(narrow, wide, 3, 2, 1)]
            for narrow, wide in itertools.pairwise(reversed(widths)):
                outward += [ResidualConv(narrow), nn.Conv2d(narrow, 4 * wide, 1), nn.PixelShuffle(2)]
            inward += [ResidualConv(widths[-1]), nn.Conv2d(widths[-1], config.channels, 1)]
            outward += [ResidualConv(widths[0]), nn.Conv2d(widths[0], colours, 3, 1, 1), nn.PixelShuffle(2)]
        self.encoder, self.decoder = nn.Sequential(*inward), nn.Sequential(*outward)

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("reconstruction", "penalty"), tuple(self.parameters())),)

    def loss(self, batch: VideoBatch, generator: torch.Generator) -> LossParts:
        """Return the square error of the frames that are drawn again, and the penalty on latents."""
        frames = to_unit(batch.frames.flatten(0, 1))
        latents = self.encode(frames).float()
        noise = torch.randn(latents.shape, generator=generator, device=latents.device)
        drawn = self.decode(latents + self.config.noise * noise).float()
        return LossParts(
            {
                "reconstruction": (drawn - frames).square().mean(),
                "penalty": self.config.penalty * latents.square().mean(),
            }
        )

    def encode(self, frames: Tensor) -> Tensor:
        """Map frames (n, 3, size, size) with values from -1 to 1 to latents (n, channels, h, w)."""
        out: Tensor = self.encoder(frames)
        return out

    def decode(self, latents: Tensor) -> Tensor:
        """Draw the frames of latents, (n, 3, size, size)."""
        out: Tensor = self.decoder(latents)
        return out
