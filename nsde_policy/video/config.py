"""Settings of video models; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from nsde_policy.bounds import Count, Natural, NonNegative
from nsde_policy.config import BaseConfig, TrainConfig, require


@dataclass(frozen=True)
class BackboneConfig(BaseConfig):
    """Size of the U-ViT: a transformer over image patches with long skip connections."""

    kind: Literal["stem", "plain"] = "stem"
    """`stem` shrinks frames by convolutions to an eighth of their size and draws with convolutions again;
    `plain` cuts frames into patches, as in the original U-ViT."""
    width: Count = 256
    """Size of a token, a multiple of `heads`."""
    depth: Count = 7
    """Number of transformer blocks, odd: half on the way in, one in the middle, half on the way out."""
    heads: Count = 4
    """Number of attention heads."""
    patch: Count = 4
    """Side of a patch of the plain U-ViT, pixels."""
    stem: tuple[int, int] = (64, 128)
    """Channels of the stem at a half and at a quarter of the frame's size, multiples of 8."""

    features: Count = 32
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
class VideoModelConfig(BaseConfig):
    """Settings common to all methods of video prediction."""

    method: ClassVar[str] = ""
    """Name of the method, set when it is registered."""

    context: Count = 4
    """Frames of the state, X = (x_t, x_{t-1}, …)."""
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    """Size of the network."""
    context_noise: NonNegative = 0.2
    """Largest standard deviation σ of the noise on the frames of the state in training; pixels range from
    -1 to 1."""
    noise: Literal["uniform", "fixed"] = "uniform"
    """Draw σ of each video between 0 and `context_noise`, or always use `context_noise`."""
    calls: Count = 1
    """Network calls per frame when sampling."""


@dataclass(frozen=True)
class UnrollConfig(BaseConfig):
    """Second phase of training: the model predicts several frames from its own predictions."""

    frames: Natural = 4
    """Predicted frames of a training window; 0 leaves this phase out."""
    calls: Count = 1
    """Network calls per predicted frame."""
    gradients: bool = True
    """Let gradients flow through the predicted frames, which then suit this number of calls. Without, Flow
    Matching and PFI predicted worse after this phase than before it, see docs/results/video.md."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1500, batch_size=96, learning_rate=3e-4, weight_decay=0.01, betas=(0.9, 0.98), ema=0.998,
            precision="bf16",
        )
    )  # fmt: skip
    """Optimisation settings of this phase."""


@dataclass(frozen=True)
class VideoConfig(BaseConfig):
    """All settings of a video model and its training."""

    model: VideoModelConfig
    """Settings of method and network."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=5000, batch_size=128, learning_rate=1.5e-3, warmup=0.02, weight_decay=0.01,
            betas=(0.9, 0.98), ema=0.998, precision="bf16",
        )
    )  # fmt: skip
    """Optimisation settings of the first phase."""
    unroll: UnrollConfig = field(default_factory=UnrollConfig)
    """Settings of the second phase."""
    size: Count = 64
    """Height and width that frames are resized to."""
    stride: Count = 1
    """Use every n-th frame of a video."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = self.model.backbone.stride
        require(self, self.size % stride == 0, f"size must be a multiple of {stride}, got {self.size}")
