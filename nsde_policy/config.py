"""Every setting, as frozen dataclasses that refuse what cannot work; to and from JSON.

The text below a field is its help on the command line.
"""

import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from nsde_policy.errors import ConfigError


class Jsonable:
    """To and from JSON, for a frozen dataclass of numbers, strings, truth values and its like."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> str:
        """Indented, in the order of the fields."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; missing fields take their defaults, unknown ones are refused."""
        hints = typing.get_type_hints(cls)
        check_names(cls, values, hints)
        return cls(**{key: _read(cls, key, hints[key], value) for key, value in values.items()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{cls.__name__} is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)


def check_names(owner: type, given: Iterable[object], known: Iterable[str], *, what: str = "setting") -> None:
    """Refuse names that there are none of; the message names the nearest one there is."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
            instead = f"the nearest is {near[0]!r} of {', '.join(known)}" if near else "it has none"
            raise ConfigError(f"{owner.__name__} has no {what} {name!r}; {instead}")


def _read(owner: type, key: str, hint: Any, value: Any) -> Any:
    """One field's value, checked against its annotation."""
    if isinstance(hint, type) and issubclass(hint, Jsonable) and isinstance(value, dict):
        return hint.from_dict(value)
    if hint is float and type(value) is int:
        return float(value)
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_read(owner, key, typing.get_args(hint)[0], item) for item in value)
    if typing.get_origin(hint) is Literal:
        if value in typing.get_args(hint):
            return value
        raise ConfigError(f"{owner.__name__}.{key} must be one of {typing.get_args(hint)}, got {value!r}")
    if type(value) is not hint:
        wanted = getattr(hint, "__name__", hint)
        raise ConfigError(f"{owner.__name__}.{key} must be {wanted}, got {value!r}")
    return value


def need(owner: object, condition: bool, rule: str) -> None:
    """Refuse settings that break a rule; for use in `__post_init__`."""
    if not condition:
        raise ConfigError(f"{type(owner).__name__}: {rule}")


@dataclass(frozen=True)
class Sampling(Jsonable):
    """How actions are drawn from a trained model: what a method lets be chosen then, it adds."""


@dataclass(frozen=True)
class ModelConfig(Jsonable):
    """What the settings of every method say; each method adds its own."""

    history: int = 2
    """States the method sees, the present one included."""
    sampling: Sampling = field(default_factory=Sampling)
    """How actions are drawn, unless said otherwise when they are."""

    @property
    def longest_chunk(self) -> int | None:
        """Most actions one plan holds; None where it can be continued at will."""
        return None

    @property
    def gains_from_threads(self) -> bool:
        """Whether a training step is long enough to be shared by a CPU's threads."""
        return False

    def __post_init__(self) -> None:
        need(self, self.history >= 1, f"need history >= 1, got {self.history}")


@dataclass(frozen=True)
class WindowConfig(ModelConfig):
    """A method that learns windows: states seen lately, and the actions from the oldest of them on."""

    horizon: int = 16
    """Actions of a window (T_p), counted from the oldest state it sees."""

    @property
    def longest_chunk(self) -> int:
        """The actions from the present on."""
        return self.horizon - self.history + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            self,
            self.horizon >= self.history,
            f"horizon counts from the oldest of the {self.history} states seen, got {self.horizon}",
        )


@dataclass(frozen=True)
class NetworkConfig(Jsonable):
    """Size and shape of the networks."""

    kind: Literal["shared", "separate"] = "shared"
    """One trunk with three heads, or three networks."""
    width: int = 256
    """Units per hidden layer."""
    depth: int = 4
    """Hidden layers."""
    residual: bool = False
    """Add each hidden layer to its input."""
    layer_norm: bool = True
    """Normalise within each hidden layer."""
    dropout: float = 0.1
    """Fraction of hidden units left out in training."""
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"
    """Nonlinearity of the hidden layers."""

    def __post_init__(self) -> None:
        need(
            self,
            self.width >= 1 and self.depth >= 1,
            f"need width, depth >= 1, got {self.width}, {self.depth}",
        )
        need(self, 0 <= self.dropout < 1, f"need 0 <= dropout < 1, got {self.dropout}")


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
        need(self, 0 <= self.alpha < math.inf, f"need alpha >= 0, got {self.alpha}")
        need(self, 0 <= self.diffusion < math.inf, f"need diffusion >= 0, got {self.diffusion}")
        need(self, self.substeps >= 1, f"need substeps >= 1, got {self.substeps}")


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
        need(self, 0 < self.dt < math.inf, f"need dt > 0, got {self.dt}")
        need(self, 1e-12 <= self.delta < math.inf, f"need delta >= 1e-12, got {self.delta}")
        need(self, 0 <= self.noise < math.inf, f"need noise >= 0, got {self.noise}")
        need(self, 0 < self.variance_floor < 1, f"need 0 < variance_floor < 1, got {self.variance_floor}")
        need(self, self.noise > 0 or not self.denoiser, "a denoiser needs noise > 0: it has no blur to undo")
        need(self, self.denoiser or not self.learned_strength, "learned_strength needs the denoiser")
        joint_in_turn = self.objective == "joint" and self.schedule == "sequential"
        need(self, not joint_in_turn, "the joint objective trains flow and diffusion together")
        starved = self.schedule == "sequential" and self.network.kind == "shared"
        need(
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
        need(
            self,
            self.denoiser or sampling.denoiser == "off",
            "no denoiser is trained; sample with sampling.denoiser = 'off'",
        )
        need(
            self,
            self.learned_strength or sampling.denoiser != "learned",
            "sampling.denoiser = 'learned' needs learned_strength",
        )


@dataclass(frozen=True)
class TrainConfig(Jsonable):
    """How a model is fitted."""

    steps: int = 30_000
    """Optimiser steps, shared evenly between the stages of a schedule."""
    batch_size: int = 1024
    """Transitions per step, drawn with replacement."""
    learning_rate: float = 1e-3
    """Largest rate; falls to 0 along a cosine."""
    warmup: float = 0.03
    """Fraction of the steps in which the rate rises to its largest."""
    weight_decay: float = 1e-3
    """AdamW's."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's memory of the gradient and of its square."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.999
    """Decay of the running average of the weights, which is what is kept; 0 keeps the last weights."""
    precision: Literal["tf32", "bf16"] = "tf32"
    """Of matrix products on CUDA; a CPU always works in float32."""
    log_every: int = 100
    """Steps between two records of the losses."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every"):
            need(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        need(self, self.learning_rate > 0, f"need learning_rate > 0, got {self.learning_rate}")
        need(self, 0 <= self.warmup <= 1, f"need 0 <= warmup <= 1, got {self.warmup}")
        need(self, self.weight_decay >= 0, f"need weight_decay >= 0, got {self.weight_decay}")
        need(self, all(0 <= beta < 1 for beta in self.betas), f"need 0 <= betas < 1, got {self.betas}")
        need(self, self.clip > 0, f"need clip > 0, got {self.clip}")
        need(self, 0 <= self.ema < 1, f"need 0 <= ema < 1, got {self.ema}")


@dataclass(frozen=True)
class Preset:
    """Settings of a method that work, whatever the task."""

    model: ModelConfig
    train: TrainConfig
    chunk: int = 8
    """Actions executed before planning again (T_a)."""
