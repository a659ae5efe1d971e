"""How a run is trained: what is neither a setting of the policy nor part of its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Losses = Mapping[str, float]


@dataclass(frozen=True)
class TrainingProgress:
    """State of a training run at one record of the metrics."""

    step: int
    steps: int
    title: str
    """What is trained: "training" for the policy, "encoder" for its encoder."""
    seconds: float
    """Seconds since this process started training."""
    losses: Losses


Monitor = Callable[[TrainingProgress], object]
"""Callback for every record of the metrics."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training, which all fits of a run have in common."""

    seed: int = 0
    """Seed of weights, batches and noise."""
    device: str = "cpu"
    """Device of torch, as `pick_device` returns it."""
    resume: bool = False
    """Continue from the last checkpoint if there is one."""
    monitor: Monitor | None = None
    """Called at every record of the losses; it ends the fit with `KeyboardInterrupt`."""
    save_every_s: float = 15.0
    """Seconds between checkpoints."""
    validation: float = 0.0
    """Fraction of the episodes that is held out; losses and the fit of σ on them are recorded."""
    std_factors: tuple[float, ...] = ()
    """Factors of σ, see `measure_std_factors`; not applied if episodes are held out, which measure others."""
