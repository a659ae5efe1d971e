"""Settings as frozen, validated dataclasses with conversion to and from JSON.

The text below a field is its help on the command line.
"""

import dataclasses
import difflib
import functools
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from nsde_policy.bounds import Count, Fraction, Length, Natural, NonNegative, Positive, Size
from nsde_policy.errors import ConfigError, suggest
from nsde_policy.files import parse_json

WITHDRAWN = {
    "blur": 1e-4,
    "denoiser": "constant",
    "feature_weight": 4.0,
    "focal_gamma": 2.0,
    "groups": 8,
    "learned_strength": False,
    "objective": ...,
    "offset_scale": 1000.0,
    "quiet_end": True,
    "schedule": "together",
    "window_mb": ...,
}
"""Settings in files of version 0.2 that are no choice any more: the value that is left, or `...` for any."""
RENAMED = {"masked_steps": "occlusion_steps"}
"""Settings that files of earlier versions name differently."""


@dataclass(frozen=True)
class BaseConfig:
    """Bounds check and JSON conversion for frozen dataclasses of plain values, tuples and nested configs."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Convert to indented JSON, in the order of the fields."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def change(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with other values of some settings by their path: `change({"model.noise": 0.5})`.

        Raises:
            ConfigError: If there is no such setting, or the values do not fit together.
        """
        values = self.to_dict()
        for path, value in settings.items():
            *groups, name = path.split(".")
            part: Any = values
            for group in groups:
                part = part.get(group) if isinstance(part, dict) else None
            if not isinstance(part, dict) or name not in part:
                names = part if isinstance(part, dict) else values
                raise ConfigError(
                    f"there is no setting {path!r:.80}{suggest(name, names)}; "
                    "`nsde-policy train --help-all` lists all"
                )
            part[name] = value
        return type(self).from_dict(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; missing fields take their defaults, unknown ones are an error."""
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {values!r:.80}")
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        names = [f.name for f in fields]
        values = {RENAMED.get(name, name): value for name, value in values.items()}
        values = {n: v for n, v in values.items() if n in names or not _is_withdrawn(n, v)}
        check_names(cls, values, names)
        for f in fields:
            if f.default is f.default_factory is dataclasses.MISSING and f.name not in values:
                raise ConfigError(f"{cls.__name__} needs the setting {f.name!r}")
        return cls(**{key: _convert(cls, key, hints[key], value) for key, value in values.items()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned."""
        return cls.from_dict(parse_json(text, name=cls.__name__, error=ConfigError))


def _is_withdrawn(name: str, value: object) -> bool:
    return name in WITHDRAWN and WITHDRAWN[name] in (value, ...)


def check_bounds(settings: object) -> None:
    """Raise `ConfigError` if a field of a dataclass is outside the choices or bounds of its annotation."""
    owner: type = type(settings)
    for name, hint in get_bounded_fields(owner).items():
        check_value(name, getattr(settings, name), hint, owner=owner)


@functools.cache
def get_bounded_fields(cls: type) -> dict[str, object]:
    """Return the types of the fields of a dataclass that have bounds or choices."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hint for name, hint in hints.items() if _is_bounded(hint)}


def _is_bounded(hint: object) -> bool:
    """Return whether a type has bounds or choices; an optional one if its value has, a tuple if all have."""
    if typing.get_origin(hint) is Annotated:
        inner, *annotations = typing.get_args(hint)
        return any(isinstance(annotation, Meta) for annotation in annotations) or _is_bounded(inner)
    if typing.get_origin(hint) is Literal:
        return True
    parts = [part for part in typing.get_args(hint) if part not in (type(None), ...)]
    return bool(parts) and all(map(_is_bounded, parts))


def check_value(name: str, value: object, hint: object, *, owner: type | None = None) -> object:
    """Return a value as its type `hint` has it, integers as floats and lists as tuples, or raise an error.

    The message names the value, a field of the class `owner` or a flag.
    """
    plain = value.item() if hasattr(value, "item") else value  # numbers of numpy
    try:
        return msgspec.convert(plain, hint)
    except msgspec.ValidationError as error:
        expected, _, bound = str(error).removeprefix("Expected `").partition("`")
        if typing.get_origin(hint) is Literal:
            expected = f"one of {', '.join(map(repr, typing.get_args(hint)))}"
        rule = f"need {name}{bound}" if bound.startswith(" ") else f"{name} must be {expected}"
        start = "" if owner is None else f"{owner.__name__}: "
        raise ConfigError(f"{start}{rule}, got {value!r:.80}") from None


def check_names(
    owner: type, names: Iterable[object], choices: Iterable[str], *, what: str = "setting"
) -> None:
    """Raise `ConfigError` for unknown names and suggest the closest match."""
    choices = list(choices)
    for name in names:
        if name not in choices:
            near = difflib.get_close_matches(str(name)[:80], choices, n=1, cutoff=0.0)
            instead = f"the closest is {near[0]!r} of {', '.join(choices)}" if near else "it has no settings"
            raise ConfigError(f"{owner.__name__} has no {what} {name!r:.80}; {instead}")


def _convert(owner: type, key: str, hint: object, value: Any) -> object:
    """Convert the value of one field to its annotated type."""
    if isinstance(value, BaseConfig):
        return value
    if isinstance(hint, type) and issubclass(hint, BaseConfig):
        return hint.from_dict(value)
    return check_value(key, value, hint, owner=owner)


def require(owner: object, condition: bool, rule: str) -> None:
    """Raise `ConfigError` if settings break a rule; call it in `__post_init__`."""
    if not condition:
        raise ConfigError(f"{type(owner).__name__}: {rule}")


@dataclass(frozen=True)
class Sampling(BaseConfig):
    """Settings of sampling from a trained model; each method adds its own."""

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Return these settings with some changed; a method may refuse changes without an effect."""
        return self.from_dict(self.to_dict() | dict(changes))


@dataclass(frozen=True)
class ModelConfig(BaseConfig):
    """Settings common to all methods; each method adds its own."""

    method: ClassVar[str] = ""
    """Name of the method, set when the method is registered."""
    tunable: ClassVar[tuple[str, ...]] = ()
    """Settings that `tune` varies in addition to those of all methods, such as "network.width"."""

    history: Length = 2
    """Number of states in the input, including the current one."""
    sampling: Sampling = field(default_factory=Sampling)
    """Default settings of sampling."""

    @property
    def longest_chunk(self) -> int | None:
        """Most actions of one plan; None for any length."""
        return None

    @property
    def policy_period(self) -> float:
        """Δt of one policy period in the training data."""
        return 1.0

    @property
    def plans_vary(self) -> bool:
        """Whether plans from the same observation differ, so that one can be selected."""
        return True

    @property
    def gains_from_threads(self) -> bool:
        """Whether training on a CPU is faster with several threads."""
        return False

    @property
    def adjustable_sampling(self) -> tuple[str, ...]:
        """Names of the sampling settings that can be changed after training, by default all."""
        return tuple(vars(self.sampling))


@dataclass(frozen=True)
class WindowConfig(ModelConfig):
    """Settings of methods trained on windows of recent states and the actions from the oldest of them on."""

    horizon: Length = 16
    """Actions of a window (T_p), counted from its oldest state."""

    @property
    def longest_chunk(self) -> int:
        """Number of actions from the current state on."""
        return self.horizon - self.history + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.horizon >= self.history
        require(self, enough, f"need horizon >= history ({self.history}), got {self.horizon}")


@dataclass(frozen=True)
class NetworkConfig(BaseConfig):
    """Architecture of the networks."""

    kind: Literal["shared", "separate"] = "shared"
    """One trunk with three heads, or three networks."""
    width: Size = 256
    """Units per hidden layer."""
    depth: Size = 4
    """Number of hidden layers."""
    layer_norm: bool = True
    """Normalise within each hidden layer."""
    dropout: Fraction = 0.1
    """Dropout probability in training."""
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"
    """Nonlinearity of the hidden layers."""


@dataclass(frozen=True)
class TrainConfig(BaseConfig):
    """Optimisation settings of a training run."""

    steps: Count = 30_000
    """Optimiser steps."""
    batch_size: Annotated[int, Meta(ge=1, le=2**20)] = 1024
    """Samples per step (transitions, windows or frames), chosen with replacement."""
    learning_rate: Positive = 1e-3
    """Largest learning rate; cosine decay to 0."""
    warmup: Annotated[float, Meta(ge=0, le=1)] = 0.03
    """Fraction of the steps with a linear warm-up."""
    weight_decay: NonNegative = 1e-3
    """Weight decay of AdamW."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay of AdamW's averages of the gradient and its square."""
    clip: Positive = 1.0
    """Largest gradient norm."""
    ema: Fraction = 0.999
    """Decay of the exponential moving average of the weights, which is saved; 0 saves the last weights."""
    ema_power: NonNegative = 0.0
    """If positive, the decay after n steps is at most 1 − (1 + n)^−power; 0: at most (1 + n)/(10 + n)."""
    precision: Literal["tf32", "bf16"] = "tf32"
    """Precision of matrix products on CUDA; a CPU always uses float32."""
    log_every: Count = 100
    """Steps between records of the losses."""


@dataclass(frozen=True)
class EncoderConfig(BaseConfig):
    """Settings of an encoder; one that is not trained has none."""

    @property
    def is_trained_with_policy(self) -> bool:
        """Whether the policy's loss trains it, together with the policy."""
        return False


@dataclass(frozen=True)
class ImageEncoderConfig(EncoderConfig):
    """Settings of an encoder of images, which is trained together with the policy, by the policy's loss."""

    occlusion_steps: Natural = 0
    """Steps of a second training, on frames that are partly occluded, shifted or in another light. The policy
    is then trained on such frames too."""

    @property
    def is_trained_with_policy(self) -> bool:
        """Whether the policy's loss trains it; with `occlusion_steps`, it is trained before the policy."""
        return not self.occlusion_steps


@dataclass(frozen=True)
class TrainedEncoderConfig(ImageEncoderConfig):
    """Settings common to all encoders that are trained before the policy; each encoder adds its own."""

    train: TrainConfig = field(default_factory=TrainConfig)
    """Optimisation settings of the encoder, which is trained before the policy."""

    @property
    def is_trained_with_policy(self) -> bool:
        """Whether the policy's loss trains it, not its own loss."""
        return False


@dataclass(frozen=True)
class SelectionConfig(BaseConfig):
    """Settings of plan selection and of the dynamics model, which predicts where a plan leads."""

    select: Literal["none", "auto", "goal", "support"] = "none"
    """Rule that picks one of several sampled plans: `goal` the one that ends nearest to where demonstrations
    end, `support` the first that stays near demonstrated observations; `auto` chooses the rule by the
    demonstrations; `none` samples one plan; short --select."""
    horizon: Natural = 0
    """Actions of a plan that the rule judges, `goal` twice as many; at least those that are executed."""
    noise: NonNegative = 0.05
    """Standard deviation of the noise added to training states, in typical increments."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(dropout=0.0))
    """Size and shape of the dynamics model."""
    train: TrainConfig = field(default_factory=lambda: TrainConfig(steps=15_000))
    """Optimisation settings of the dynamics model, which is trained before the policy."""


@dataclass(frozen=True)
class Preset:
    """Named settings of a method; a task adds its settings of the demonstrations."""

    model: ModelConfig
    train: TrainConfig
    chunk: int = 8
    """Actions executed before planning again (T_a)."""
    demos: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DemoConfig` that the method sets."""
    encoder: EncoderConfig | None = None
    """Settings of the encoder; None for its defaults."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Settings of plan selection."""
