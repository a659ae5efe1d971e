"""The settings of a whole run: which demonstrations, which model, how it is trained and executed."""

from dataclasses import dataclass, field

from nsde_policy.config import Jsonable, NeuralSDEConfig, TrainConfig
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class DemoConfig(Jsonable):
    """What is taken from the demonstrations, and what a state is made of."""

    obs_keys: tuple[str, ...] = ("state",)
    """Arrays below data/ that make up an observation, side by side."""
    act_key: str = "action"
    """Array below data/ that holds the actions."""
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
        if not self.obs_keys:
            raise ConfigError("obs_keys must name at least one array")


@dataclass(frozen=True)
class RunConfig(Jsonable):
    """Everything that decides what a training run does, but for its seed and its data."""

    demos: DemoConfig = field(default_factory=DemoConfig)
    """What is taken from the demonstrations."""
    model: NeuralSDEConfig = field(default_factory=NeuralSDEConfig)
    """The Neural SDE."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How it is fitted."""
    chunk: int = 8
    """Actions executed before planning again (T_a)."""

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1, got {self.chunk}")
