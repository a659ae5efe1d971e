"""Interfaces of models: losses for the trainer, plans for the policy."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from nsde_policy.bounds import Length
from nsde_policy.config import ModelConfig, NetworkConfig, Preset, Sampling, TrainConfig, WindowConfig
from nsde_policy.errors import ConfigError

Batch = TypeVar("Batch", contravariant=True)
SamplingT = TypeVar("SamplingT", bound=Sampling)
TrainingView = Literal["transitions", "windows"]


@dataclass(frozen=True)
class ChunkConfig(WindowConfig):
    """Settings of methods whose network has the trunk of the Neural SDE and predicts actions."""

    tunable: ClassVar[tuple[str, ...]] = ("network.width",)

    horizon: Length = 9
    """Predicted actions (T_p), counted from the oldest state in the input."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(depth=6))
    """Architecture of the network."""

    def make_presets(self) -> dict[str, Preset]:
        """Return the presets `default`, with these settings, and `fast`, for a CPU."""
        small = replace(self, horizon=9, network=NetworkConfig())
        return {
            "default": Preset(self, TrainConfig(steps=100_000)),
            "fast": Preset(small, TrainConfig(steps=30_000, batch_size=256)),
        }


class TrainableModel(nn.Module, abc.ABC, Generic[Batch]):
    """A model that the trainer can fit."""

    @abc.abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of a batch by name, each a scalar; training minimises their sum.

        They are computed without host synchronisation or data-dependent control flow. All randomness comes
        from `generator`, on the batch's device.
        """

    def trained_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters to train, by default all; none for methods that only keep data."""
        return tuple(self.parameters())

    def prepare(self, data: Batch) -> None:
        """Prepare the model with all training data before the first step, for example to place bins."""


class StepPrediction(NamedTuple):
    """Normal distribution of the next state x' = (next observation, action), one per row."""

    mean: Tensor
    """Expected next state, (rows, d)."""
    std: Tensor
    """Standard deviation σ of each dimension, (rows, d)."""


class StepLogProb(NamedTuple):
    """Log-density of one recorded step per row, in nats and native units."""

    action: Tensor
    """log p(action | states), (rows,)."""
    state: Tensor | None = None
    """log p(next observation, action | states), (rows,); None for methods that predict actions only."""


class BatchRng:
    """Random numbers for a batch in which each row has its own generator."""

    def __init__(self, generators: Sequence[torch.Generator], device: torch.device | str = "cpu") -> None:
        self._generators, self._device = tuple(generators), device

    def __len__(self) -> int:
        return len(self._generators)

    def repeat(self, rows: Sequence[int], times: int) -> "BatchRng":
        """Return the generators of some rows, each several times in succession."""
        generators = [self._generators[row] for row in rows for _ in range(times)]
        return BatchRng(generators, self._device)

    def normal(self, *shape: int) -> Tensor:
        """Sample standard normal numbers, (rows, *shape)."""
        rows = [torch.randn(shape, generator=generator) for generator in self._generators]
        return torch.stack(rows).to(self._device)

    def uniform(self, *shape: int) -> Tensor:
        """Sample uniform numbers in [0, 1), (rows, *shape)."""
        rows = [torch.rand(shape, generator=generator) for generator in self._generators]
        return torch.stack(rows).to(self._device)


class PolicyModel(TrainableModel[Batch]):
    """A method that plans actions; register it with `methods.registry.register_method`.

    Its input are states x = (observation, previous action) in their own units, newest first. Its constructor
    takes `(config, spec, *, generator)`.
    """

    config: ModelConfig
    training_view: ClassVar[TrainingView] = "windows"
    """Training data: `transitions` (pairs of successive states) or `windows` (states and action chunks)."""
    predicts_states: ClassVar[bool] = False
    """Whether `sample_futures` predicts states as well as actions."""
    reports_std: ClassVar[bool] = False
    """Whether `futures_std` and `predict_step` report the standard deviation of its predictions."""
    has_likelihood: ClassVar[bool] = False
    """Whether `log_prob_step` returns the log-density of a recorded step."""

    samples: ClassVar[bool] = True
    """Whether plans from the same states differ, so that one of several can be selected."""

    @abc.abstractmethod
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Plan actions in their own units, (rows, steps, act_dim), from states (rows, history, d).

        A row's plan depends on that row and its own generator alone. `sampling` replaces `config.sampling`.
        `Policy` calls `sample_futures` instead if `predicts_states` is set.
        """

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Count the sequential network calls that `plan` makes for a number of actions; by default one."""
        return 1

    def sample_futures(
        self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None
    ) -> Tensor:
        """Sample one path of states per row, the present state first, (rows, steps + 1, d)."""
        raise self._lacks("predict states", "predicts_states")

    def futures_std(self, states: Tensor, paths: Tensor, *, sampling: Sampling | None = None) -> Tensor:
        """Return the learned standard deviation of each step of sampled paths, (rows, steps, d).

        The paths are those of `sample_futures`, (rows, steps + 1, d), from states (rows, history, d).
        """
        raise self._lacks("report a standard deviation", "reports_std")

    def predict_step(self, states: Tensor, *, sampling: Sampling | None = None) -> StepPrediction:
        """Predict the next state from states (rows, history, d), newest first, as a normal distribution."""
        raise self._lacks("report a standard deviation", "reports_std")

    def scale_std(self, factor: Tensor) -> None:
        """Multiply the standard deviation of each dimension of a state, and its noise, by a factor (d,)."""
        raise self._lacks("report a standard deviation", "reports_std")

    def log_prob_step(
        self, states: Tensor, x_next: Tensor, *, sampling: Sampling | None = None
    ) -> StepLogProb:
        """Return the log-density of the next observation and the action that led to it, (rows, d)."""
        raise self._lacks("give a likelihood", "has_likelihood")

    def learned_sampling(self, sampling: Sampling | None = None) -> Sampling:
        """Return sampling settings under which samples have the learned spread.

        Policies often sample with less noise than was learned. Likelihoods and the scale of σ are
        measured with these settings instead.
        """
        return self.config.sampling if sampling is None else sampling

    def widen_sampling(self, factor: float) -> Sampling:
        """Return sampling settings with `factor` times the usual noise, if the method can scale it."""
        return self.config.sampling

    def fold_for_export(self, sampling: Sampling) -> nn.Module | None:
        """Return a module that plans faster than `plan` once exported; None to export `plan`.

        Its inputs are states (rows, history, d) and the tensors that `plan` samples. Its outputs are the
        actions and, from methods that predict states, the paths and the standard deviation of each action.
        """
        return None

    def allocate_for(self, weights: Mapping[str, Tensor]) -> None:
        """Allocate buffers whose sizes depend on the training data, before `weights` are loaded."""

    def _lacks(self, ability: str, capability: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} does not {ability} (it does not declare `{capability}`)")


def choose_sampling(own: SamplingT, other: Sampling | None) -> SamplingT:
    """Return `other`, or a model's own settings if None; raise `ConfigError` for those of another method."""
    if other is None:
        return own
    if not isinstance(other, type(own)):
        raise ConfigError(f"this model is sampled with {type(own).__name__}, got {type(other).__name__}")
    return other
