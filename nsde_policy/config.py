"""Every setting, as frozen dataclasses that refuse what cannot work; to and from JSON.

The text below a field is its help on the command line.
"""

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import msgspec

from nsde_policy.errors import ConfigError


class BaseConfig:
    """JSON conversion for frozen dataclasses of numbers, strings, booleans, tuples and nested configs."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> str:
        """Convert to indented JSON, in the order of the fields."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; missing fields take their defaults.

        Raises:
            ConfigError: If a field is unknown, or its value has the wrong type.
        """
        hints = typing.get_type_hints(cls)
        check_names(cls, values, [f.name for f in dataclasses.fields(cls)])  # type: ignore[arg-type]
        return cls(**{key: _convert(cls, key, hints[key], value) for key, value in values.items()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{cls.__name__} is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)


def check_names(owner: type, given: Iterable[object], known: Iterable[str], *, what: str = "setting") -> None:
    """Raise `ConfigError` for unknown names and suggest the closest match."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
            instead = f"the closest is {near[0]!r} of {', '.join(known)}" if near else "it has none"
            raise ConfigError(f"{owner.__name__} has no {what} {name!r}; {instead}")


def _convert(owner: type, key: str, hint: Any, value: Any) -> Any:
    """Convert the value of one field to its annotated type."""
    if isinstance(value, BaseConfig):
        return value
    if isinstance(hint, type) and issubclass(hint, BaseConfig) and isinstance(value, dict):
        return hint.from_dict(value)
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        wanted = (
            getattr(hint, "__name__", str(hint))
            if isinstance(hint, type)
            else str(hint).replace("typing.", "")
        )
        raise ConfigError(f"{owner.__name__}.{key} must be {wanted}, got {value!r}") from error


def require(owner: object, condition: bool, rule: str) -> None:
    """Raise `ConfigError` if settings break a rule; call it in `__post_init__`."""
    if not condition:
        raise ConfigError(f"{type(owner).__name__}: {rule}")


@dataclass(frozen=True)
class Sampling(BaseConfig):
    """How actions are drawn from a trained model: what a method lets be chosen then, it adds."""


@dataclass(frozen=True)
class ModelConfig(BaseConfig):
    """What the settings of every method say; each method adds its own."""

    method: ClassVar[str] = ""
    """Name of the method, set when the method is registered."""

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
        require(self, self.history >= 1, f"need history >= 1, got {self.history}")


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
        require(
            self,
            self.horizon >= self.history,
            f"horizon counts from the oldest of the {self.history} states seen, got {self.horizon}",
        )


@dataclass(frozen=True)
class NetworkConfig(BaseConfig):
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
        require(
            self,
            self.width >= 1 and self.depth >= 1,
            f"need width, depth >= 1, got {self.width}, {self.depth}",
        )
        require(self, 0 <= self.dropout < 1, f"need 0 <= dropout < 1, got {self.dropout}")


@dataclass(frozen=True)
class TrainConfig(BaseConfig):
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
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        require(self, self.learning_rate > 0, f"need learning_rate > 0, got {self.learning_rate}")
        require(self, 0 <= self.warmup <= 1, f"need 0 <= warmup <= 1, got {self.warmup}")
        require(self, self.weight_decay >= 0, f"need weight_decay >= 0, got {self.weight_decay}")
        require(self, all(0 <= beta < 1 for beta in self.betas), f"need 0 <= betas < 1, got {self.betas}")
        require(self, self.clip > 0, f"need clip > 0, got {self.clip}")
        require(self, 0 <= self.ema < 1, f"need 0 <= ema < 1, got {self.ema}")


@dataclass(frozen=True)
class Preset:
    """Settings of a method; a task adds what it knows of the demonstrations."""

    model: ModelConfig
    train: TrainConfig
    chunk: int = 8
    """Actions executed before planning again (T_a)."""
    demos: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DemoConfig` that the method sets itself."""
