"""The settings of a whole run: which demonstrations, which model, how it is trained and executed."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from nsde_policy.config import Jsonable, ModelConfig, NeuralSDEConfig, TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import DEFAULT_METHOD, get_method, method_of


@dataclass(frozen=True)
class DemoConfig(Jsonable):
    """What is taken from the demonstrations, and what a state is made of."""

    obs_keys: tuple[str, ...] = ("state",)
    """Arrays below data/ that make up an observation, side by side."""
    act_key: str = "action"
    """Array below data/ that holds the actions."""
    episodes: int = 0
    """Learn from so many demonstrations only, the first ones of the store; 0 for all."""
    angles: tuple[int, ...] = ()
    """Columns of the observation that are angles, radians; empty takes what the store says."""
    first_action_from: tuple[int, ...] = ()
    """Columns of the first observation that stand for the action before it; empty for zeros."""
    final_action_weight: float = 1.0
    """How much the last action of a demonstration counts, whose outcome was not recorded; 0 leaves it out."""
    mirror: bool = False
    """Learn from mirror images too, where the task is symmetric."""

    def __post_init__(self) -> None:
        if self.final_action_weight < 0:
            raise ConfigError(f"final_action_weight must not be negative, got {self.final_action_weight}")
        if self.episodes < 0:
            raise ConfigError(f"episodes must not be negative, got {self.episodes}")
        if not self.obs_keys:
            raise ConfigError("obs_keys must name at least one array")


@dataclass(frozen=True)
class RunConfig(Jsonable):
    """Everything that decides what a training run does, but for its seed and its data."""

    demos: DemoConfig = field(default_factory=DemoConfig)
    """What is taken from the demonstrations."""
    model: ModelConfig = field(default_factory=NeuralSDEConfig)
    """The method's own settings."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How it is fitted."""
    chunk: int = 8
    """Actions executed before planning again (T_a)."""

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1, got {self.chunk}")
        longest = self.model.longest_chunk
        if longest is not None and self.chunk > longest:
            raise ConfigError(f"a plan of this model holds {longest} actions, chunk asks for {self.chunk}")

    @property
    def method(self) -> str:
        """The name of the method."""
        return method_of(self.model)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers; `method` says whose settings `model` are."""
        return {"method": self.method, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        if not isinstance(values, dict) or not isinstance(values.get("model", {}), dict):
            raise ConfigError(f"settings must be JSON objects, got {values!r:.60}")
        rest = {key: value for key, value in values.items() if key not in ("method", "model")}
        method, model = get_method(values.get("method", DEFAULT_METHOD)), values.get("model", {})
        return replace(super().from_dict(rest), model=method.config_class().from_dict(model))
