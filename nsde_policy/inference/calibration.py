"""What a control loop takes from the demonstrations: limits of commands, and what states are familiar.

Statistics only, measured when a run ends and kept in its directory as `calibration.json`; numpy alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nsde_policy.config import BaseConfig, require
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.inference.spec import PolicySpec

FILE = "calibration.json"
QUANTILE = 0.999
"""Of steps, accelerations and distances: what the demonstrations themselves exceed once in a thousand."""
FALLBACK_STEPS = 6.0
"""Largest step and acceleration of a run without calibration, in standard deviations of commands' steps."""
RIDGE = 1e-4
"""Added to the variance of every feature, in squared ranges, so that what never varies has an inverse."""


@dataclass(frozen=True)
class Calibration(BaseConfig):
    """Statistics of the demonstrations, per control period of theirs."""

    rate_hz: float
    """Control periods per second; 0 where the demonstrations do not say."""
    step: tuple[float, ...]
    """Largest change of each command over one period, (act_dim,)."""
    acceleration: tuple[float, ...]
    """Largest change of that change from one period to the next, (act_dim,)."""
    mean: tuple[float, ...]
    """Mean of the features of a state, angles as sine and cosine; empty where it was not measured."""
    precision: tuple[tuple[float, ...], ...]
    """Inverse covariance of the features, regularised."""
    threshold: float
    """Distance of a state from the mean that the demonstrations exceed once in a thousand."""

    def __post_init__(self) -> None:
        require(self, 0 <= self.rate_hz < math.inf, f"need rate_hz >= 0, got {self.rate_hz}")
        for name in ("step", "acceleration"):
            values = getattr(self, name)
            require(self, all(0 < v < math.inf for v in values), f"need {name} > 0, got {values}")
        require(self, len(self.step) == len(self.acceleration), "need as many steps as accelerations")
        square = all(len(row) == len(self.mean) for row in self.precision)
        require(self, square and len(self.precision) == len(self.mean), "precision must be square")
        numbers = [*self.mean, *(value for row in self.precision for value in row), self.threshold]
        require(self, all(map(math.isfinite, numbers)), "every number must be finite")

    @classmethod
    def measure(
        cls,
        spec: PolicySpec,
        states: np.ndarray,
        actions: np.ndarray,
        episode_ends: Sequence[int] | np.ndarray,
        *,
        rate_hz: float,
    ) -> "Calibration":
        """Measure on demonstrations: states (frames, d) as a policy is shown them, actions (frames, act_dim).

        A command starts from rest: the step to an episode's first one counts as an acceleration too.
        """
        steps, turns = [], []
        for start, end in _episodes(episode_ends):
            before = states[start : start + 1, spec.obs_dim :]
            commands = np.concatenate([before, actions[start:end]]).astype(np.float64)
            steps.append(np.diff(commands, axis=0))
            turns.append(np.diff(steps[-1], axis=0, prepend=0.0))
        features = _Features(spec)(states.astype(np.float64))
        precision = np.linalg.inv(np.atleast_2d(np.cov(features.T)) + RIDGE * np.eye(features.shape[1]))
        mean = features.mean(axis=0)
        return cls(
            rate_hz=rate_hz,
            step=_largest(steps, spec),
            acceleration=_largest(turns, spec),
            mean=_rounded(mean),
            precision=tuple(_rounded(row) for row in precision),
            threshold=float(np.quantile(_distances(features - mean, precision), QUANTILE)),
        )

    @classmethod
    def of_spec(cls, spec: PolicySpec) -> "Calibration":
        """What can be said of a run without one: steps from `increment_std`, and no familiar states."""
        largest = tuple(FALLBACK_STEPS * std for std in spec.increment_std[spec.obs_dim :])
        return cls(rate_hz=0.0, step=largest, acceleration=largest, mean=(), precision=(), threshold=0.0)

    @classmethod
    def read(cls, run: Path, spec: PolicySpec) -> "Calibration":
        """Read `calibration.json` of a run directory; a run without one is calibrated by its sizes."""
        path = run / FILE
        if not path.exists():
            return cls.of_spec(spec)
        try:
            found = cls.from_json(path.read_text())
        except (OSError, UnicodeDecodeError, ConfigError, TypeError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise CheckpointError(
                f"{path} cannot be used: {problem}; measure it again or remove it"
            ) from None
        return found.check(spec)

    def check(self, spec: PolicySpec) -> "Calibration":
        """`self`, where it belongs to a policy of these sizes."""
        features = spec.obs_dim + spec.act_dim + len(spec.circular)
        if len(self.step) != spec.act_dim or len(self.mean) not in (0, features):
            raise CheckpointError(
                f"the calibration is for {len(self.step)} commands and {len(self.mean)} features, the policy "
                f"has {spec.act_dim} and {features}: it belongs to another run"
            )
        return self


class Familiarity:
    """How far a state is from the demonstrations: Mahalanobis distance of its features.

    One ellipsoid around all states of the demonstrations: it works for every method and costs a microsecond;
    it sees other units, other places and commands far from where the robot is, not a rare combination of
    familiar numbers.
    """

    def __init__(self, calibration: Calibration, spec: PolicySpec) -> None:
        self._features, self.threshold = _Features(spec), calibration.threshold
        self._mean, self._precision = np.array(calibration.mean), np.array(calibration.precision)

    @property
    def is_known(self) -> bool:
        """Whether the demonstrations were measured."""
        return bool(len(self._mean))

    def distance(self, state: np.ndarray) -> float | None:
        """0 at the mean of the demonstrations, (d,) → number; None where nothing was measured."""
        if not self.is_known:
            return None
        (features,) = self._features(state[None].astype(np.float64)) - self._mean
        return float(np.sqrt(max(features @ self._precision @ features, 0.0)))

    def is_strange(self, distance: float | None) -> bool:
        """Whether the demonstrations hardly ever were so far away."""
        return self.is_known and distance is not None and distance > self.threshold


class _Features:
    """States in ranges of the demonstrations, angles as sine and cosine, (n, d) → (n, d + angles)."""

    def __init__(self, spec: PolicySpec) -> None:
        self._low, self._angles = np.array(spec.low), list(spec.circular)
        self._range = np.array(spec.high) - self._low

    def __call__(self, states: np.ndarray) -> np.ndarray:
        features = (states - self._low) / self._range
        angles = states[:, self._angles]
        features[:, self._angles] = np.sin(angles)
        return np.concatenate([features, np.cos(angles)], axis=1)


def _distances(centred: np.ndarray, precision: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.sqrt(np.maximum(np.einsum("ni,ij,nj->n", centred, precision, centred), 0.0))
    return distances


def _episodes(ends: Sequence[int] | np.ndarray) -> Iterator[tuple[int, int]]:
    start = 0
    for end in ends:
        yield start, int(end)
        start = int(end)


def _largest(parts: list[np.ndarray], spec: PolicySpec) -> tuple[float, ...]:
    quantiles = np.quantile(np.abs(np.concatenate(parts)), QUANTILE, axis=0)
    return _rounded(np.maximum(quantiles, spec.increment_std[spec.obs_dim :]))


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    """Nine significant digits: more than float32 has."""
    return tuple(float(f"{value:.9g}") for value in values)
