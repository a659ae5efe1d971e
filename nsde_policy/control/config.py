"""How a control session runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from nsde_policy.config import check_names, require
from nsde_policy.control.faults import FaultKind, OnFault
from nsde_policy.control.limits import Limits
from nsde_policy.errors import ConfigError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import PolicySpec

AGE_IN_PERIODS = 1.5
GAP_IN_PERIODS = 3.0


@dataclass(frozen=True, eq=False)
class SessionConfig:
    """Settings of a session; None stands for what the demonstrations and the rates suggest."""

    rate_hz: float = 10.0
    """Commands per second."""
    deadline_s: float = 0.05
    """Longest that planning may keep the loop waiting."""
    limits: Literal["from_demos"] | Limits = "from_demos"
    """What every command keeps to."""
    on_fault: OnFault = "hold"
    """What a fault leads to: hold, stop or a callback; or a mapping from kinds of faults to those."""
    policy_hz: float | None = None
    """Rate of the demonstrations; None for what the calibration says."""
    plan_ahead: bool = False
    """Plan in a worker while the current plan is executed."""
    max_age_s: float | None = None
    """Oldest observation that is used; None for 1.5 periods of the policy."""
    max_gap_s: float | None = None
    """A clock that moves on by more than this between two calls has jumped; None for 3 periods of
    the policy or 5 of control, whichever is longer."""
    blend: float = 2.0
    """Policy periods over which a new plan takes over from where the command is."""
    chunk: int | None = None
    """Commands executed before planning again; None for the policy's own."""
    in_force: np.ndarray | None = None
    """The command in force before the first, (act_dim,); None for what the policy takes for it."""
    fault_when_ood: bool = False
    """Treat a state farther from the demonstrations than their threshold as a fault."""
    spare_gc: bool = True
    """Within `with`, keep Python's garbage collector from looking through all that was there before."""
    seed: int = 0
    """What the plans' randomness is drawn from."""
    log: Path | str | None = None
    """File for one line of JSON per command."""

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Refuse a setting that there is none of, before Python does with an error of its own."""
        check_names(cls, settings, (field.name for field in fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("rate_hz", "deadline_s", "policy_hz", "max_age_s", "max_gap_s"):
            value = getattr(self, name)
            is_open = value is None and name not in ("rate_hz", "deadline_s")
            require(self, is_open or 0 < _number(value) < math.inf, f"need {name} > 0, got {value!r}")
        require(self, 0 <= _number(self.blend) < math.inf, f"need blend >= 0, got {self.blend!r}")
        for name, least in (("chunk", 1), ("seed", 0)):
            value = getattr(self, name)
            is_open = value is None and name == "chunk"
            is_whole = isinstance(value, Integral) and int(value) >= least
            require(self, is_open or is_whole, f"need a whole {name} >= {least}, got {value!r}")
        known = self.limits == "from_demos" or isinstance(self.limits, Limits)
        require(self, known, f"limits are 'from_demos' or Limits, got {self.limits!r}")
        known = self.log is None or isinstance(self.log, Path | str)
        require(self, known, f"log is the path of a file, got {self.log!r:.60}")
        by_kind = self.on_fault if isinstance(self.on_fault, Mapping) else {}
        check_names(type(self), by_kind, [kind.value for kind in FaultKind], what="fault")
        for reaction in by_kind.values() if isinstance(self.on_fault, Mapping) else [self.on_fault]:
            known = reaction in ("hold", "stop") or callable(reaction)
            require(self, known, f"on_fault is 'hold', 'stop' or a callback, got {reaction!r}")

    def filled_in(self, spec: PolicySpec, calibration: Calibration) -> "Settled":
        """Every None replaced."""
        policy_hz = self.policy_hz or calibration.rate_hz
        if not policy_hz:
            raise ConfigError(
                "nothing says at which rate this policy was demonstrated: give policy_hz, commands per second"
            )
        if self.rate_hz < policy_hz * (1 - 1e-9):
            raise ConfigError(
                f"a session is no slower than its policy: {self.rate_hz:g} Hz, the policy has {policy_hz:g}"
            )
        limits = self.limits
        if not isinstance(limits, Limits):
            limits = Limits.from_demos(spec, calibration, policy_hz=policy_hz)
        if len(limits.low) != spec.act_dim:
            raise ConfigError(f"limits are for {len(limits.low)} commands, the policy has {spec.act_dim}")
        longest = spec.longest_chunk or math.inf
        if self.chunk and self.chunk > longest:
            raise ConfigError(
                f"a plan of this policy holds at most {longest} commands, got chunk={self.chunk}"
            )
        return Settled(
            policy_hz=policy_hz,
            limits=limits,
            max_age_s=self.max_age_s or AGE_IN_PERIODS / policy_hz,
            max_gap_s=self.max_gap_s or max(GAP_IN_PERIODS / policy_hz, 5 / self.rate_hz),
            chunk=int(self.chunk or min(spec.chunk, longest)),
        )


@dataclass(frozen=True, eq=False)
class Settled:
    """What `SessionConfig` leaves open, settled for one policy."""

    policy_hz: float
    limits: Limits
    max_age_s: float
    max_gap_s: float
    chunk: int


def _number(value: Any) -> float:
    """A number as such; NaN, which no rule lets pass, for what is none."""
    return float(value) if isinstance(value, Real) else math.nan
