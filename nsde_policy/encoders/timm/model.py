"""Keypoints from a pretrained network of timm: the mean positions under linear maps of its features."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.errors import (
    ConfigError,
    MissingDependencyError,
    import_optional,
    suggest,
    summarize_error,
)

from ..keypoints.model import KeypointModel
from ..layers import locate_peaks
from .config import TimmConfig

STRIDE = 16
"""Features are those of the deepest layer with at most this many pixels per cell: of the third of the four
stages of most convolutional networks, and of the last layer of most vision transformers."""


class TimmNetwork(nn.Module):
    """Frames to keypoints: each is the mean position under one map, a linear function of the features.

    The network always computes as in evaluation, also when its weights are trained: its batch normalisation
    keeps the statistics of the pretraining.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        self.backbone, self._layer, channels = build_backbone(config)
        if config.frozen:
            self.backbone.requires_grad_(False)
        for name in ("mean", "std"):
            colour = torch.tensor(self.backbone.pretrained_cfg[name]).view(-1, 1, 1)
            self.register_buffer(name, colour, persistent=False)
        self.maps = nn.Conv2d(channels, config.keypoints + config.anchors, 1)

    def forward(self, rgb: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames (n, 3, size, size) in [-1, 1] to keypoints (n, keypoints, 2) in [-1, 1], as (x, y).

        Also return them as a summary, (n, 2 · keypoints).
        """
        scaled = ((rgb + 1) / 2 - self.mean) / self.std
        (features,) = self.backbone.forward_intermediates(
            scaled,
            indices=[self._layer],
            norm=True,
            stop_early=True,
            output_fmt="NCHW",
            intermediates_only=True,
        )
        with torch.autocast(features.device.type, enabled=False):  # positions need more than bf16
            normed = F.layer_norm(features.float(), features.shape[1:])
            points = locate_peaks(self.maps(normed))
        return points, points.flatten(1)  # means of many features lose too much precision in the summary

    def train(self, mode: bool = True) -> "TimmNetwork":
        """Set the mode of the maps."""
        super().train(mode)
        self.backbone.eval()
        return self


class TimmModel(KeypointModel):
    """Keypoints of every camera, trained as those of `keypoints` are."""

    config: TimmConfig
    build_margin = 100  # timm builds last layers that are removed: of GhostNets, 80 times what is left

    def build_network(self) -> nn.Module:
        """Build the network from the frames of a camera to keypoints and anchors."""
        return TimmNetwork(self.config)

    def trained_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters of the keypoints, without those of a frozen network."""
        return tuple(value for value in super().trained_parameters() if value.requires_grad)

    def load_pretrained(self) -> None:
        """Load the weights of the user's file into the network of every camera.

        Raises:
            ConfigError: If there is no such file, or it does not fit the network.
        """
        backbone, _, _ = build_backbone(self.config, read_weights(self.config))
        for camera in self.autoencoders():
            camera.encoder.get_submodule("backbone").load_state_dict(backbone.state_dict())
        try:
            with torch.no_grad():
                self.autoencoders()[0].encoder.eval()(torch.zeros(1, 3, self.size, self.size))
        except (RuntimeError, AssertionError) as error:
            raise _refuse_size(self.config, error) from None


def read_weights(config: TimmConfig) -> dict[str, Any]:
    """Read the user's file of weights."""
    if not config.weights:
        raise ConfigError(
            "the encoder timm starts from pretrained weights and downloads none: name a file with "
            "--encoder.weights FILE, such as model.safetensors of a model at https://huggingface.co/timm"
        )
    path = Path(config.weights).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; --encoder.weights needs a file of weights")
    weights: Any
    try:
        is_safe = path.suffix == ".safetensors"
        weights = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
        for part in ("state_dict", "model"):  # of a checkpoint
            weights = weights.get(part, weights)
    except Exception as error:  # of many types, by format and damage
        reason = summarize_error(error).partition(". ")[0]
        raise ConfigError(
            f"{path} holds no weights that can be read ({reason}); expected a file .safetensors, or a state "
            "dict that torch.save wrote"
        ) from None
    return dict(weights)


def build_backbone(config: TimmConfig, weights: Mapping[str, Any] | None = None) -> tuple[Any, int, int]:
    """Build a network without its last layers, with given weights or random ones.

    Return it with the index of the layer that gives the features, and their channels.

    Raises:
        ConfigError: If timm has no such network, or the weights do not fit it.
    """
    timm, name = import_timm(), config.model
    if not timm.is_model(name):  # refuses names that load a network from elsewhere
        near = suggest(name, timm.list_models())
        raise ConfigError(f"timm {timm.__version__} has no model {name!r:.80} (--encoder.model){near}")
    classes, overlay = 0, {}
    try:
        usual = timm.models.get_pretrained_cfg(name)
        sized = {"img_size": config.size} if getattr(usual, "fixed_input_size", False) else {}
        if weights is not None:  # with as many classes as the file has, timm accepts no other difference
            heads = getattr(usual, "classifier", None)
            head = weights.get(f"{heads if isinstance(heads, str) else (heads or [''])[0]}.weight")
            classes = 0 if head is None else len(head)
            overlay = {"state_dict": weights, "num_classes": classes}
        network = timm.create_model(
            name,
            pretrained=weights is not None,  # from the overlay: nothing is downloaded
            pretrained_cfg_overlay=overlay,
            num_classes=classes,
            **sized,
        )
        strides = [layer["reduction"] for layer in network.feature_info]
        layer = max(i for i, stride in enumerate(strides) if stride <= max(STRIDE, min(strides)))
        network.prune_intermediate_layers([layer], prune_norm=False, prune_head=True)
    except Exception as error:  # of many types, by network
        if weights is None:
            raise _refuse_size(config, error) from None
        raise ConfigError(
            f"{config.weights} (--encoder.weights) does not fit the timm model {name}: {_shorten(error)}"
        ) from None
    return network, layer, network.feature_info[layer]["num_chs"]


def _refuse_size(config: TimmConfig, error: Exception) -> ConfigError:
    """Return the error of a network that does not take the frames."""
    return ConfigError(
        f"the timm model {config.model} cannot be built for frames of {config.size} × {config.size}: "
        f"{_shorten(error)} (--encoder.model, --encoder.size)"
    )


def _shorten(error: Exception) -> str:
    """Return the first lines of a message, each shortened: torch lists all names that differ."""
    lines = str(error).splitlines()[:4]
    return " ".join(textwrap.shorten(line, 200, placeholder=" …") for line in lines)


def import_timm() -> ModuleType:
    """Import timm; raise `MissingDependencyError` if it is missing, or torchvision is for another torch."""
    try:
        return import_optional("timm", "timm")
    except RuntimeError as error:
        raise MissingDependencyError(
            f"timm cannot be imported ({summarize_error(error)}): install the torchvision that is built for "
            f"torch {torch.__version__}"
        ) from None
