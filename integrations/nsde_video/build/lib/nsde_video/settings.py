"""Settings and presets of video models; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from nsde_policy.bounds import Count, Length, Natural, NonNegative, Size
from nsde_policy.config import BaseConfig, TrainConfig, require
from nsde_policy.errors import ConfigError

VIDEO_KEY = "img"
"""Array of a store that video models are trained on; of several cameras, this one is predicted."""
STRIDE = 8
"""Height and width of a frame must be multiples of this."""


@dataclass(frozen=True)
class UViTConfig(BaseConfig):
    """Size of the U-ViT: a transformer with long skip connections between convolutions.

    A convolutional stem shrinks frames to an eighth of their size, and convolutions enlarge them again.
    """

    width: Size = 256
    """Size of a token, a multiple of `heads`."""
    depth: Size = 7
    """Number of transformer blocks, odd: half on the way in, one in the middle, half on the way out."""
    heads: Size = 4
    """Number of attention heads."""
    stem: tuple[Size, Size] = (64, 128)
    """Channels of the stem at a half and at a quarter of the frame's size, multiples of 8."""
    features: Size = 32
    """Feature maps at the size of the frame, from which outputs are computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.depth % 2 == 1, f"depth must be odd, got {self.depth}")
        require(
            self, self.width % self.heads == 0, f"width {self.width} must be a multiple of heads {self.heads}"
        )
        require(self, all(c % 8 == 0 for c in self.stem), f"stem needs multiples of 8, got {self.stem}")


@dataclass(frozen=True)
class VideoSampling(BaseConfig):
    """How frames are sampled from a trained model; changing it needs no training."""

    substeps: Count = 1
    """Solver steps per frame, of one network call each."""


@dataclass(frozen=True)
class VideoModelConfig(BaseConfig):
    """Settings common to all methods of video prediction."""

    method: ClassVar[str]
    """Name of the method."""

    history: Length = 4
    """Frames of the state, X = (x_t, x_{t-1}, …)."""
    noise: NonNegative = 0.2
    """Largest standard deviation σ of the noise on the frames of the state in training; pixels range from
    -1 to 1."""
    random_noise: bool = True
    """Sample σ of each video between 0 and `noise`; otherwise σ is always `noise`."""
    network: UViTConfig = field(default_factory=UViTConfig)
    """Size of the network."""
    sampling: VideoSampling = field(default_factory=VideoSampling)
    """How frames are sampled, unless the caller asks for other settings."""


@dataclass(frozen=True)
class NeuralSDEVideoSampling(VideoSampling):
    """How frames are sampled from a Neural SDE."""

    alpha: NonNegative = 0.5
    """Denoising strength α: fraction of the noise removed per frame."""
    diffusion: NonNegative = 0.0
    """Factor on g; 0 follows the drift only."""


@dataclass(frozen=True)
class NeuralSDEVideoConfig(VideoModelConfig):
    """Settings of the Neural SDE for video."""

    method = "neural_sde"

    flow_loss: Literal["square", "log"] = "square"
    """Square loss, or the paper's log(r² + δ)."""
    interpolation: Literal["none", "uniform"] = "none"
    """Train on recorded states only, or on states between two frames too, which several substeps need."""
    denoiser: bool = True
    """Whether to train the denoiser d."""
    diffusion: bool = True
    """Whether to train the diffusion g."""
    sampling: NeuralSDEVideoSampling = field(default_factory=NeuralSDEVideoSampling)
    """How frames are sampled, unless the caller asks for other settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.noise > 0 or not self.denoiser, "the denoiser needs noise > 0")


@dataclass(frozen=True)
class FlowMatchingVideoConfig(VideoModelConfig):
    """Settings of Flow Matching for video."""

    method = "flow_matching"

    sampling: VideoSampling = field(default_factory=lambda: VideoSampling(substeps=2))
    """How frames are sampled: by Euler steps."""


@dataclass(frozen=True)
class InterpolantsConfig(VideoModelConfig):
    """Settings of PFI, forecasting with interpolants."""

    method = "interpolants"


FULL_TRAINING = TrainConfig(
    steps=5000, batch_size=128, learning_rate=1.5e-3, warmup=0.02, weight_decay=0.01, betas=(0.9, 0.98),
    ema=0.998, precision="bf16",
)  # fmt: skip
"""First stage of the preset `default`, on a GPU."""
FAST_TRAINING = TrainConfig(
    steps=4000, batch_size=16, learning_rate=3e-3, warmup=0.05, weight_decay=0.01, betas=(0.9, 0.98),
    ema=0.99, log_every=10,
)  # fmt: skip
"""First stage of the preset `fast`: ten minutes on two CPU cores with the second."""
FAST_NETWORK = UViTConfig(width=128, depth=1, stem=(32, 64), features=8)
"""Motion over one frame is local, so convolutions gain more than attention in a short training."""


@dataclass(frozen=True)
class UnrollConfig(BaseConfig):
    """Second stage of training: the model predicts several frames from its own predictions."""

    frames: Natural = 4
    """Predicted frames of a training window; 0 leaves this stage out."""
    substeps: Count = 1
    """Solver steps per predicted frame, of one network call each."""
    train: TrainConfig = field(
        default_factory=lambda: replace(
            FULL_TRAINING, steps=1500, batch_size=96, learning_rate=3e-4, warmup=0.03
        )
    )
    """Optimisation settings of this stage."""


@dataclass(frozen=True)
class VideoConfig(BaseConfig):
    """All settings of a video model and its training."""

    model: VideoModelConfig
    """Settings of method and network."""
    train: TrainConfig = FULL_TRAINING
    """Optimisation settings of the first stage."""
    unroll: UnrollConfig = field(default_factory=UnrollConfig)
    """Settings of the second stage."""
    size: Size = 64
    """Height and width that frames are resized to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.size % STRIDE == 0, f"size must be a multiple of {STRIDE}, got {self.size}")

    @classmethod
    def from_preset(cls, name: str, method: str = "neural_sde") -> "VideoConfig":
        """Return the settings of a method's preset; raise `ConfigError` if there is none of this name."""
        presets = PRESETS[method]
        if name not in presets:
            raise ConfigError(
                f"the video method {method!r} has no preset {name!r}; available: {', '.join(presets)}"
            )
        return presets[name]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers, with the name of the method."""
        return {"method": self.model.method, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        rest = dict(values)
        method = rest.pop("method")
        if method not in PRESETS:
            raise ConfigError(f"unknown video method {method!r}; available: {', '.join(PRESETS)}")
        model = type(PRESETS[method]["default"].model).from_dict(values["model"])
        return super().from_dict({**rest, "model": model})


def _make_one_stage(model: VideoModelConfig) -> dict[str, VideoConfig]:
    """Return the presets of a method that samples from noise, with one stage of training.

    It sees as many training examples as the Neural SDE in two stages. A second stage, which
    `--unroll.frames` asks for, takes as many substeps as sampling.
    """
    unroll = UnrollConfig(frames=0, substeps=model.sampling.substeps)
    fast_unroll = replace(FAST_UNROLL, frames=0, substeps=model.sampling.substeps)
    fast = replace(FAST_TRAINING, steps=9800)
    return {
        "default": VideoConfig(model, replace(FULL_TRAINING, steps=9500), unroll),
        "fast": VideoConfig(replace(model, network=FAST_NETWORK), fast, fast_unroll, size=32),
    }


FAST_UNROLL = UnrollConfig(train=replace(FAST_TRAINING, steps=1450, learning_rate=1e-3))
"""Second stage of the preset `fast`."""
PRESETS: dict[str, dict[str, VideoConfig]] = {
    "neural_sde": {
        "default": VideoConfig(NeuralSDEVideoConfig()),
        "fast": VideoConfig(
            NeuralSDEVideoConfig(
                network=FAST_NETWORK, diffusion=False, sampling=NeuralSDEVideoSampling(alpha=1.0)
            ),
            FAST_TRAINING,
            FAST_UNROLL,
            size=32,
        ),
        "paper": VideoConfig(
            NeuralSDEVideoConfig(
                noise=0.1,
                random_noise=False,
                flow_loss="log",
                interpolation="uniform",
                sampling=NeuralSDEVideoSampling(substeps=2, alpha=1.0, diffusion=1.0),
            ),
            unroll=UnrollConfig(frames=0),
        ),
    },
    "flow_matching": _make_one_stage(FlowMatchingVideoConfig()),
    "interpolants": _make_one_stage(InterpolantsConfig()),
}
"""Settings by method and name: `default` needs a GPU; `fast` is for frames of 32 × 32 on a CPU, without g,
which is not used in sampling; `paper` follows the paper.

Deviation: the paper states neither σ nor the size of its network; here σ = 0.1, and the network is that of
the other presets, which has a convolutional stem.
"""
