"""Settings of a control session."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal, Self

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Count, NonNegative, Positive
from nsde_policy.config import BaseConfig, check_names, require
from nsde_policy.errors import ConfigError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import PolicySpec, check_array

from .faults import FaultKind, OnFault
from .limits import Limits

MAX_AGE_PERIODS = 1.5
MAX_GAP_POLICY_PERIODS = 3.0
MAX_GAP_CONTROL_PERIODS = 5.0


@dataclass(frozen=True, eq=False)
class SessionConfig(BaseConfig):
    """Settings of a session; None means a default derived from the demonstrations and the rates."""

    rate_hz: Annotated[float, Meta(ge=1e-3, le=1e6)] = 10.0
    """Commands per second."""
    deadline_s: Positive = 0.05
    """Longest time that encoding frames and planning may block the loop."""
    limits: Literal["from_demos"] | Limits = "from_demos"
    """Limits of position, speed and acceleration of every command."""
    on_fault: OnFault = "hold"
    """Reaction to faults: hold, stop or a callback; or a mapping from kinds of faults to reactions."""
    policy_hz: Positive | None = None
    """Rate of the demonstrations; None for the rate in the calibration."""
    plan_ahead: bool = False
    """Plan while the current plan is executed, instead of waiting for a plan when the current one ends."""
    max_age_s: Positive | None = None
    """Oldest observation that is used; None for 1.5 policy periods."""
    max_gap_s: Positive | None = None
    """Longest time between two calls that is not a clock jump; None for 3 policy periods or 5 control
    periods, whichever is longer."""
    blend: NonNegative = 2.0
    """Policy periods over which commands blend into a new plan."""
    chunk: Count | None = None
    """Commands executed before planning again; None for the policy's default."""
    candidates: Count | None = None
    """Most plans that plan selection compares; None for the policy's number. A slow computer needs fewer, so
    that plans are not late."""
    initial_command: np.ndarray | None = None
    """Command at which the robot rests before the first one, (act_dim,); changes per period rest at zero,
    whatever is given. None for the policy's default, which needs an observation: until the first valid one,
    `step` raises."""
    fault_when_ood: bool = False
    """Report a fault if a state is out of distribution, see `calibration.OODDetector`, or an observation is
    far outside the demonstrated range."""
    min_visible: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Report a fault if a smaller fraction of what the policy relies on is visible; 0 for never.
    `calibration.usually_visible` is the fraction in undisturbed frames."""
    freeze_gc: bool = True
    """Within `with`, exclude objects that existed before from garbage collection (`gc.freeze`)."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the noise in all plans."""

    def __new__(cls, *_: object, **settings: object) -> Self:
        """Raise `ConfigError` for unknown settings, before Python raises a `TypeError`."""
        check_names(cls, settings, (field.name for field in fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = self.limits == "from_demos" or isinstance(self.limits, Limits)
        require(self, is_valid, f"limits must be 'from_demos' or Limits, got {self.limits!r}")
        by_kind = self.on_fault if isinstance(self.on_fault, Mapping) else {}
        check_names(type(self), by_kind, [kind.value for kind in FaultKind], what="fault")
        for reaction in by_kind.values() if isinstance(self.on_fault, Mapping) else [self.on_fault]:
            is_valid = reaction in ("hold", "stop") or callable(reaction)
            require(self, is_valid, f"on_fault must be 'hold', 'stop' or a callback, got {reaction!r}")

    def resolve(self, spec: PolicySpec, calibration: Calibration) -> "ResolvedConfig":
        """Replace every None by its value for one policy."""
        policy_hz = self.policy_hz or calibration.rate_hz
        if not policy_hz:
            raise ConfigError(
                "the rate of the policy's demonstrations is unknown: set policy_hz, in commands per second, "
                "or train with --rate HZ"
            )
        if self.rate_hz < policy_hz * (1 - 1e-9):
            raise ConfigError(
                f"rate_hz is {self.rate_hz:g}, the policy's rate is {policy_hz:g}: a session cannot be "
                f"slower than its policy; set rate_hz to {policy_hz:g} or more, or train again with "
                f"--resample {self.rate_hz:g}"
            )
        deltas = calibration.delta_columns
        if deltas and self.rate_hz > policy_hz * (1 + 1e-9):
            raise ConfigError(
                f"rate_hz is {self.rate_hz:g}, but actions {', '.join(map(str, deltas))} of this policy are "
                f"changes per period at {policy_hz:g} Hz, and repeating them would move the robot too far: "
                f"set rate_hz to {policy_hz:g}, or train again with --resample {self.rate_hz:g}"
            )
        limits = self.limits
        if not isinstance(limits, Limits):
            limits = Limits.from_demos(spec, calibration, policy_hz=policy_hz)
        if len(limits.low) != spec.act_dim:
            raise ConfigError(
                f"limits are for commands of {len(limits.low)} numbers, the policy's have {spec.act_dim}"
            )
        initial = self.initial_command
        if initial is not None:
            initial = check_array(initial, (spec.act_dim,), "initial_command")
        longest = spec.longest_chunk or math.inf
        if self.chunk and self.chunk > longest:
            raise ConfigError(f"chunk is {self.chunk}, a plan of this policy has at most {longest} commands")
        gap_s = max(MAX_GAP_POLICY_PERIODS / policy_hz, MAX_GAP_CONTROL_PERIODS / self.rate_hz)
        return ResolvedConfig(
            policy_hz=policy_hz,
            limits=limits,
            max_age_s=self.max_age_s or MAX_AGE_PERIODS / policy_hz,
            max_gap_s=self.max_gap_s or gap_s,
            chunk=int(self.chunk or min(spec.chunk, longest)),
            delta_columns=deltas,
            initial_command=initial,
        )


@dataclass(frozen=True, eq=False)
class ResolvedConfig:
    """Values of the settings that `SessionConfig` leaves open, for one policy."""

    policy_hz: float
    limits: Limits
    max_age_s: float
    max_gap_s: float
    chunk: int
    delta_columns: tuple[int, ...] = ()
    initial_command: np.ndarray | None = None
