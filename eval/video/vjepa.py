"""V-JEPA 2 as a feature network for JEDi: a folder in the layout of Hugging Face, with the extra `vjepa`.

A clip's features are the mean over the tokens of the encoder. Published JEDi scores come from V-JEPA 1, by
default with an attention pooler, and cannot be compared with those of this network.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from nsde_policy.errors import ConfigError, import_optional, summarize_error
from nsde_policy.files import read_json

VJEPA_MEAN, VJEPA_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of pixels from 0 to 1 that V-JEPA expects, those of ImageNet."""


class VJEPAFeatures(nn.Module):
    """Maps clips (n, 3, frames, size, size) with values from -1 to 1 to mean tokens of a `VJEPA2Model`."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", VJEPA_MEAN), ("std", VJEPA_STD)):
            self.register_buffer(name, torch.tensor(values)[:, None, None, None])

    def forward(self, clips: Tensor) -> Tensor:
        """Return the features of clips, (n, width)."""
        pixels = ((clips + 1) / 2 - self.mean) / self.std
        found = self.model(pixel_values_videos=pixels.transpose(1, 2), skip_predictor=True)
        features: Tensor = found.last_hidden_state.mean(1)
        return features


def load_vjepa(folder: Path, *, frames: int) -> tuple[VJEPAFeatures, int]:
    """Load V-JEPA 2 from a folder with config.json and model.safetensors, and return the size of its frames.

    Raises:
        ConfigError: If the folder holds something else, weights are missing or damaged, or the network does
            not take this number of frames.
        MissingDependencyError: If transformers is not installed.
    """
    wanted = "expected a folder with config.json and model.safetensors of V-JEPA 2"
    if not (folder / "config.json").exists():
        raise ConfigError(f"{folder} has no config.json: {wanted}")
    kind = read_json(folder / "config.json", error=ConfigError).get("model_type")
    if kind != "vjepa2":
        raise ConfigError(f"{folder}/config.json has model_type {kind!r:.40}, not 'vjepa2': {wanted}")
    transformers = import_optional("transformers", "vjepa")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)  # what it logs is an error below
    try:
        model, report = transformers.VJEPA2Model.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Exception as error:  # many kinds, depending on what is damaged
        raise ConfigError(f"{folder} cannot be loaded ({summarize_error(error)}): {wanted}") from error
    finally:
        transformers.logging.set_verbosity(before)
    keys = (*report["missing_keys"], *report["mismatched_keys"])  # some versions add both shapes
    if wrong := sorted({key if isinstance(key, str) else key[0] for key in keys}):
        names = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
        raise ConfigError(f"{folder}: missing, or of another shape than config.json says: {names}; {wanted}")
    if frames % model.config.tubelet_size:
        raise ConfigError(f"{folder}: need a multiple of {model.config.tubelet_size} frames, got {frames}")
    return VJEPAFeatures(model.float().eval()), int(model.config.crop_size)
