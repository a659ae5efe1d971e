"""Settings of video models; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from nsde_policy.bounds import Count, Length, Natural, NonNegative, Size
from nsde_policy.config import BaseConfig, ModelConfig, Preset, Sampling, TrainConfig, require
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import Method, find_method_name
from nsde_policy.registry import Registry

VIDEO_KEY = "img"
"""Array of a store that video models are trained on; of several cameras, this one is predicted."""
VIDEO_METHODS: Registry[Method] = Registry(
    "video method", "nsde_policy.video.methods", group="nsde_policy.video_methods"
)
"""Methods of video prediction by name; see `nsde_policy/methods/registry.py`."""


@dataclass(frozen=True)
class UViTConfig(BaseConfig):
    """Size of the U-ViT: a transformer over image patches with long skip connections."""

    kind: Literal["stem", "plain"] = "stem"
    """`stem` shrinks frames by convolutions to an eighth of their size and draws with convolutions again;
    `plain` cuts frames into patches, as in the original U-ViT."""
    width: Size = 256
    """Size of a token, a multiple of `heads`."""
    depth: Size = 7
    """Number of transformer blocks, odd: half on the way in, one in the middle, half on the way out."""
    heads: Size = 4
    """Number of attention heads."""
    patch: Size = 4
    """Side of a patch of the plain U-ViT, pixels."""
    stem: tuple[Size, Size] = (64, 128)
    """Channels of the stem at a half and at a quarter of the frame's size, multiples of 8."""
    features: Size = 32
    """Feature maps at the size of the frame, from which outputs are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.depth % 2 == 1, f"depth must be odd, got {self.depth}")
        require(
            self, self.width % self.heads == 0, f"width {self.width} must be a multiple of heads {self.heads}"
        )
        require(self, all(c % 8 == 0 for c in self.stem), f"stem needs multiples of 8, got {self.stem}")

    @property
    def stride(self) -> int:
        """Height and width of a frame must be multiples of this."""
        return 8 if self.kind == "stem" else self.patch


@dataclass(frozen=True)
class VideoSampling(Sampling):
    """How frames are sampled from a trained model; changing it needs no training."""

    substeps: Count = 1
    """Solver steps per frame, of one network call each."""


@dataclass(frozen=True)
class VideoModelConfig(ModelConfig):
    """Settings common to all methods of video prediction."""

    history: Length = 4
    """Frames of the state, X = (x_t, x_{t-1}, …)."""
    noise: NonNegative = 0.2
    """Largest standard deviation σ of the noise on the frames of the state in training; pixels range from
    -1 to 1."""
    random_noise: bool = True
    """Draw σ of each video between 0 and `noise`; otherwise σ is always `noise`."""
    network: UViTConfig = field(default_factory=UViTConfig)
    """Size of the network."""
    sampling: VideoSampling = field(default_factory=VideoSampling)
    """How frames are sampled, unless the caller gives other settings."""


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
    gradients: bool = True
    """Let gradients flow through the predicted frames, which then suit this number of substeps. Without, Flow
    Matching and PFI predicted worse after this stage than before it, see docs/results/video.md."""
    train: TrainConfig = field(
        default_factory=lambda: replace(
            FULL_TRAINING, steps=1500, batch_size=96, learning_rate=3e-4, warmup=0.03
        )
    )
    """Optimisation settings of this stage."""


FAST_UNROLL = UnrollConfig(train=replace(FAST_TRAINING, steps=1450, learning_rate=1e-3))
"""Second stage of the preset `fast`."""


@dataclass(frozen=True)
class VideoPreset(Preset):
    """Named settings of a method of video prediction."""

    unroll: UnrollConfig = field(default_factory=UnrollConfig)
    size: int = 64
    """Height and width of the frames."""


def make_joint_presets(model: VideoModelConfig) -> dict[str, VideoPreset]:
    """Return the presets `default` and `fast` of a method that samples from noise.

    It is trained in one stage, with as many training examples as the Neural SDE in two. If `--unroll.frames`
    asks for a second stage, it takes as many substeps as sampling.
    """
    substeps = model.sampling.substeps
    return {
        "default": VideoPreset(
            model, replace(FULL_TRAINING, steps=9500), unroll=UnrollConfig(frames=0, substeps=substeps)
        ),
        "fast": VideoPreset(
            replace(model, network=FAST_NETWORK),
            replace(FAST_TRAINING, steps=9800),
            unroll=replace(FAST_UNROLL, frames=0, substeps=substeps),
            size=32,
        ),
    }


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
    stride: Count = 1
    """Use every n-th frame of a video."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = self.model.network.stride
        require(self, self.size % stride == 0, f"size must be a multiple of {stride}, got {self.size}")

    @property
    def method(self) -> str:
        """Name of the registered method."""
        return find_method_name(self.model)

    @classmethod
    def from_preset(cls, name: str, method: str = "neural_sde") -> Self:
        """Return the settings of a method's preset; raise `ConfigError` if there is none of this name."""
        presets = VIDEO_METHODS.get(method).presets
        if name not in presets:
            raise ConfigError(
                f"the video method {method!r} has no preset {name!r}; available: {', '.join(presets)}"
            )
        preset = presets[name]
        assert isinstance(preset, VideoPreset)
        assert isinstance(preset.model, VideoModelConfig)
        return cls(preset.model, preset.train, preset.unroll, preset.size)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers, with the name of the method."""
        return {"method": self.method, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        rest = dict(values)
        method = VIDEO_METHODS.get(rest.pop("method"))
        return super().from_dict({**rest, "model": method.config.from_dict(values["model"])})
