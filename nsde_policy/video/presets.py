"""Settings of video training by name."""

from dataclasses import replace
from typing import Any

from nsde_policy.config import TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.video.config import BackboneConfig, UnrollConfig, VideoConfig
from nsde_policy.video.registry import get_video_method

VIDEO_PRESETS = ("default", "fast", "paper")
"""`default` needs a GPU; `fast` is for frames of 32 × 32 on a CPU; `paper` follows the paper."""
PAPER_SETTINGS = {
    "flow_loss": "log", "interpolation": "uniform", "noise": "fixed", "context_noise": 0.1, "calls": 2,
    "alpha": 1.0, "diffusion_scale": 1.0,
}  # fmt: skip


def make_video_preset(name: str, method: str = "neural_sde") -> VideoConfig:
    """Return the settings of a preset for a method.

    Deviation: the paper states neither σ nor the size of its network; `paper` takes σ = 0.1 and the plain
    U-ViT of the default size.

    Raises:
        ConfigError: If the method does not have this preset.
    """
    found = get_video_method(method)
    if name in ("default", "fast"):
        config = VideoConfig(model=found.config()) if name == "default" else _make_fast_preset(method)
        return config if method == "neural_sde" else _join_phases(config)
    if name == "paper" and method == "neural_sde":
        model = replace(found.config(backbone=BackboneConfig(kind="plain")), **PAPER_SETTINGS)  # type: ignore[arg-type]
        return VideoConfig(model=model, unroll=UnrollConfig(frames=0))
    raise ConfigError(
        f"the video method {method!r} has no preset {name!r}; available: {', '.join(VIDEO_PRESETS)} "
        "(paper only for neural_sde)"
    )


def _join_phases(config: VideoConfig) -> VideoConfig:
    """Return settings with one phase and as many training examples.

    For methods that sample from noise: a second phase without gradients makes their predictions worse; one
    with gradients raises the PSNR of PFI but lowers its motion (docs/results/video.md). If
    `--unroll.frames` asks for this phase, it takes as many network calls per frame as sampling.
    """
    second = config.unroll.train
    examples = config.train.steps * config.train.batch_size
    examples += config.unroll.frames * second.steps * second.batch_size
    train = replace(config.train, steps=examples // config.train.batch_size)
    return replace(config, train=train, unroll=replace(config.unroll, frames=0, calls=config.model.calls))


def _make_fast_preset(method: str) -> VideoConfig:
    """Return settings for ten minutes on two CPU cores.

    Motion over one frame is local, so that convolutions gain more than attention in this time. A Neural SDE
    leaves out g, which is not used in sampling either.
    """
    found = get_video_method(method)
    backbone = BackboneConfig(width=128, depth=1, stem=(32, 64), features=8)
    train = TrainConfig(
        steps=4000, batch_size=16, learning_rate=3e-3, warmup=0.05, weight_decay=0.01, betas=(0.9, 0.98),
        ema=0.99, log_every=10,
    )  # fmt: skip
    options: dict[str, Any] = {"diffusion": False, "alpha": 1.0} if method == "neural_sde" else {}
    return VideoConfig(
        model=found.config(backbone=backbone, **options),
        train=train,
        unroll=UnrollConfig(train=replace(train, steps=1450, learning_rate=1e-3)),
        size=32,
    )
