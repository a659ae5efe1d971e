"""Settings and presets of the Neural SDE; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from nsde_policy.bounds import MAX_NUMBER, Length, NonNegative, Positive, Size
from nsde_policy.config import ModelConfig, NetworkConfig, Preset, Sampling, TrainConfig, require


@dataclass(frozen=True)
class SamplingConfig(Sampling):
    """How paths are sampled from a trained model; changing it needs no training."""

    alpha: NonNegative = 0.5
    """Strength of the denoiser: fraction of the added noise undone per period; 0 samples without it."""
    diffusion: NonNegative = 1.0
    """Factor on g; 0 samples without noise."""
    substeps: Size = 1
    """Solver steps per policy period."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; in files of version 0.2, `denoiser` "off" stands for `alpha` 0."""
        if isinstance(values, dict) and values.get("denoiser") == "off":
            values = {**values, "denoiser": "constant", "alpha": 0.0}
        return super().from_dict(values)


@dataclass(frozen=True)
class NeuralSDEConfig(ModelConfig):
    """Inputs, training targets, networks and sampling of a Neural SDE."""

    tunable = ("noise", "network.width")

    history: Length = 2
    """Number of states in the input: 1 is the paper's Markov state, 2 adds the one before."""
    dt: Positive = 1.0
    """Δt of one policy period; a convention that does not change sampled paths."""
    flow_loss: Literal["square", "log"] = "square"
    """Square loss, or the paper's log(r² + δ)."""
    delta: Annotated[float, Meta(ge=1e-12, le=MAX_NUMBER)] = 0.1
    """δ of the log loss, in squared standard deviations of the increments."""
    diffusion_loss: Literal["nll", "squared"] = "nll"
    """Gaussian likelihood of the flow's residual, or the paper's squared form."""
    interpolation: Literal["none", "uniform"] = "none"
    """Train at the observed states, or at uniform points between them."""
    noise: NonNegative = 0.7
    """Standard deviation of the noise added to training states."""
    noise_kind: Literal["relative", "absolute"] = "relative"
    """Unit of the noise: each dimension's typical increment, or state units."""
    noise_factors: tuple[Positive, ...] = ()
    """Factor on the noise of each observation column; empty for 1."""
    action_noise: Positive = 1.0
    """Factor on the noise of actions; a large one makes the next action follow from the observation."""
    history_noise: Literal["independent", "shared"] = "independent"
    """Noise on the older states: independent of the newest, or the same."""
    step_inputs: NonNegative = 0.0
    """How strongly the first layer responds to steps between states of the history before training."""
    denoiser: bool = True
    """Whether to train the denoiser."""
    variance_floor: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    """Smallest variance of a step, in squared standard deviations of the increments."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Size and shape of the networks."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How paths are sampled, unless the caller gives other settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = "the denoiser needs noise > 0; set denoiser = False to train without noise"
        require(self, self.noise > 0 or not self.denoiser, problem)
        self.check_sampling(self.sampling)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; some runs of version 0.2 have the history noise "none"."""
        if isinstance(values, dict) and values.get("history_noise") == "none":
            values = {**values, "history_noise": "independent"}
        return super().from_dict(values)

    @property
    def policy_period(self) -> float:
        """Δt of one policy period in the training data."""
        return self.dt

    @property
    def plans_vary(self) -> bool:
        """Whether plans are sampled with noise."""
        return self.sampling.diffusion > 0

    @property
    def gains_from_threads(self) -> bool:
        """Whether training is faster on several threads: with networks wider than 512."""
        return self.network.width > 512

    @property
    def adjustable_sampling(self) -> tuple[str, ...]:
        """All sampling settings, but `alpha` only if the denoiser is trained."""
        return tuple(name for name in super().adjustable_sampling if self.denoiser or name != "alpha")

    def check_sampling(self, sampling: SamplingConfig) -> None:
        """Raise `ConfigError` if sampling needs a part that is not trained."""
        problem = "the denoiser is not trained; sample with sampling.alpha = 0"
        require(self, self.denoiser or sampling.alpha == 0, problem)


_FAST_MODEL = NeuralSDEConfig(sampling=SamplingConfig(alpha=1.0))
_DEFAULT_MODEL = replace(_FAST_MODEL, network=NetworkConfig(depth=6))
_PAPER_MODEL = NeuralSDEConfig(
    history=1,
    flow_loss="log",
    diffusion_loss="squared",
    interpolation="uniform",
    network=NetworkConfig(
        kind="separate", width=1024, depth=2, dropout=0.0, layer_norm=False, activation="relu"
    ),
    sampling=SamplingConfig(alpha=1.0),
)

PRESETS = {
    "default": Preset(_DEFAULT_MODEL, TrainConfig(steps=25_000)),
    "paper": Preset(_PAPER_MODEL, TrainConfig(), demos={"final_action_weight": 0.0, "mirror": False}),
    "fast": Preset(_FAST_MODEL, TrainConfig(batch_size=256)),
}
"""`default` scores best; `fast` trains in five minutes on a two-core CPU; `paper` follows the paper as far as
it is specified: a Markov state of observation and action, separate two-layer networks, the log loss,
interpolation, noise, a denoiser.

Deviation: the policy has to predict "the current action", so the state holds the previous action. The
noise is relative to each dimension's increments, not one σ for all, and δ is 0.1 in their squared units: the
paper states neither σ nor δ for its robot task.
"""
