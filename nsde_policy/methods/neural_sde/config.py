"""Settings of the Neural SDE, and its presets; no torch, so that the command line can read them."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from nsde_policy.config import ModelConfig, NetworkConfig, Preset, Sampling, TrainConfig, require


@dataclass(frozen=True)
class SamplingConfig(Sampling):
    """How paths are drawn from a trained model; nothing here needs training again."""

    denoiser: Literal["constant", "cancelling", "learned", "off"] = "constant"
    """What sets the denoiser's strength: a constant, ½ g gᵀ, a learned function; or no denoiser."""
    alpha: float = 0.5
    """Factor on that strength. Constant: fraction of the blur undone per control period."""
    diffusion: float = 1.0
    """Factor on g; 0 follows the flow alone."""
    substeps: int = 1
    """Solver steps per control period."""

    def __post_init__(self) -> None:
        require(self, 0 <= self.alpha < math.inf, f"need alpha >= 0, got {self.alpha}")
        require(self, 0 <= self.diffusion < math.inf, f"need diffusion >= 0, got {self.diffusion}")
        require(self, self.substeps >= 1, f"need substeps >= 1, got {self.substeps}")


@dataclass(frozen=True)
class NeuralSDEConfig(ModelConfig):
    """A Neural SDE: what it sees, what it is trained on, how it is sampled."""

    history: int = 2
    """States the network sees: 1 is the paper's Markov state, 2 adds the one before."""
    dt: float = 1.0
    """Δt of one control period; a convention, which changes no sampled path."""
    objective: Literal["decoupled", "joint"] = "decoupled"
    """Flow and diffusion by losses of their own, or by one likelihood."""
    flow_loss: Literal["square", "log"] = "square"
    """Square loss, or the paper's log(r² + δ)."""
    delta: float = 0.1
    """δ of the log loss, in squared standard deviations of the increments."""
    diffusion_loss: Literal["nll", "squared"] = "nll"
    """Gaussian likelihood of the flow's residual, or the paper's squared form."""
    interpolation: Literal["none", "uniform"] = "none"
    """Train at the observed states, or at uniform points between them."""
    noise: float = 0.7
    """Blur of the training states; 0 for none."""
    noise_kind: Literal["relative", "absolute"] = "relative"
    """Unit of the blur: each dimension's typical increment, or state units."""
    history_noise: Literal["independent", "shared", "none"] = "independent"
    """Blur of the older states: independent of the newest, moved alike, or none."""
    denoiser: bool = True
    """Train the denoiser."""
    learned_strength: bool = False
    """Train a network for the denoiser's strength."""
    schedule: Literal["together", "sequential"] = "together"
    """Train all parts at once, or the flow, then the denoiser, then the diffusion."""
    variance_floor: float = 1e-6
    """Smallest variance of a step, in squared standard deviations of the increments."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Size and shape of the networks."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How paths are drawn, unless said otherwise when they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, 0 < self.dt < math.inf, f"need dt > 0, got {self.dt}")
        require(self, 1e-12 <= self.delta < math.inf, f"need delta >= 1e-12, got {self.delta}")
        require(self, 0 <= self.noise < math.inf, f"need noise >= 0, got {self.noise}")
        require(self, 0 < self.variance_floor < 1, f"need 0 < variance_floor < 1, got {self.variance_floor}")
        require(
            self, self.noise > 0 or not self.denoiser, "a denoiser needs noise > 0: it has no blur to undo"
        )
        require(self, self.denoiser or not self.learned_strength, "learned_strength needs the denoiser")
        joint_in_turn = self.objective == "joint" and self.schedule == "sequential"
        require(self, not joint_in_turn, "the joint objective trains flow and diffusion together")
        starved = self.schedule == "sequential" and self.network.kind == "shared"
        require(
            self,
            not starved,
            "training in sequence needs network.kind = 'separate': no part may own the trunk",
        )
        self.check_sampling(self.sampling)

    @property
    def gains_from_threads(self) -> bool:
        """Networks up to a width of 512 train faster on one thread."""
        return self.network.width > 512

    def check_sampling(self, sampling: SamplingConfig) -> None:
        """Refuse to sample with a part that is not trained."""
        require(
            self,
            self.denoiser or sampling.denoiser == "off",
            "no denoiser is trained; sample with sampling.denoiser = 'off'",
        )
        require(
            self,
            self.learned_strength or sampling.denoiser != "learned",
            "sampling.denoiser = 'learned' needs learned_strength",
        )


_DEFAULT = NeuralSDEConfig(
    history=2,
    noise=0.7,
    network=NetworkConfig(kind="shared", width=256, depth=6, dropout=0.1),
    sampling=SamplingConfig(alpha=1.0, diffusion=0.5),
)
_FAST = replace(_DEFAULT, network=NetworkConfig(kind="shared", width=256, depth=4, dropout=0.1))
_PAPER = NeuralSDEConfig(
    history=1,
    flow_loss="log",
    diffusion_loss="squared",
    interpolation="uniform",
    network=NetworkConfig(
        kind="separate", width=1024, depth=2, dropout=0.0, layer_norm=False, activation="relu"
    ),
    sampling=SamplingConfig(alpha=1.0, diffusion=1.0),
)

PRESETS = {
    "default": Preset(
        _DEFAULT, TrainConfig(steps=100_000, batch_size=1024), demos={"final_action_weight": 10.0}
    ),
    "paper": Preset(
        _PAPER,
        TrainConfig(steps=30_000, batch_size=1024),
        demos={"final_action_weight": 0.0, "mirror": False},
    ),
    "fast": Preset(_FAST, TrainConfig(steps=30_000, batch_size=256), demos={"final_action_weight": 10.0}),
}
"""`default` scores best; `fast` is the best that a two-core CPU trains in five minutes; `paper` is the paper's own
design as far as it says: a Markov state of observation and action, separate two-layer networks, the log loss,
interpolation, noise, a denoiser.

Deviation: "the current action" is what the policy is asked for, so the state holds the previous action. The
blur is relative to each dimension's increments, not one σ for all, and δ is 0.1 in their squared units: the
paper states neither σ nor δ for its robot task.
"""
