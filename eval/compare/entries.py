"""Entry of a comparison: the episodes of one trained run under one setting, and their costs."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from nsde_policy.bounds import Count, Natural
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.rollout import EpisodeResult

DECIMALS = 5
"""Decimal places of numbers in result files."""

Score = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Episodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes of one run in columns, one value per start, in the order of the seeds."""

    seed: tuple[Natural, ...]
    score: tuple[Score, ...]
    """Score of each episode; `Task.score_name` says what it is."""
    success: tuple[bool, ...] | None
    """None if the environment does not report successes."""
    metrics: Mapping[str, tuple[Score, ...]]
    """Further figures of the task, by name."""
    steps: tuple[Natural, ...]

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("seed", "score", "success", "steps")}
        columns |= self.metrics
        sizes = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(sizes.values())) > 1 or not self.seed:
            raise ComparisonError(f"columns must have the same length, at least 1, got {sizes}")
        if any(a >= b for a, b in zip(self.seed, self.seed[1:], strict=False)):
            raise ComparisonError("seeds of episodes must be in ascending order, each once")

    def __len__(self) -> int:
        return len(self.seed)

    @classmethod
    def from_results(cls, results: Iterable[EpisodeResult]) -> "Episodes":
        """Make columns from played episodes, in any order."""
        played = sorted(results, key=lambda result: result.seed)
        common = [name for name in played[0].metrics if all(name in r.metrics for r in played)]
        known = any(r.success is not None for r in played)
        return cls(
            seed=tuple(r.seed for r in played),
            score=tuple(round(float(r.score), DECIMALS) for r in played),
            success=tuple(bool(r.success) for r in played) if known else None,
            metrics={name: tuple(round(float(r.metrics[name]), DECIMALS) for r in played) for name in common},
            steps=tuple(int(r.steps) for r in played),
        )


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time from one observation to eight actions, milliseconds."""

    median: Cost
    p99: Cost


class Setting(NamedTuple):
    """What entries must share to be pooled in one row."""

    name: str
    chunk: int
    demos: int
    latency_steps: int = 0
    obs_noise: float = 0.0
    push: float = 0.0


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trained run, played under one setting."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """Unique name of the row, such as "diffusion, DDIM-10"."""
    title: str
    """Title of the method."""
    method: str
    preset: str
    train_seed: Natural
    demos: Count
    """Number of demonstrations it was trained on."""
    chunk: Count
    """Actions executed before planning again (T_a)."""
    sampling: Mapping[str, Any]
    """Sampling settings of the trained model."""
    condition: Condition
    """Disturbances of the episodes."""
    parameters: Natural
    train_steps: Natural
    train_s: Cost | None
    """Training time in seconds, if the run had the device to itself."""
    calls_per_chunk: Cost
    """Sequential network calls for eight actions."""
    latency_ms: Latency | None
    episodes: Episodes

    @property
    def setting(self) -> Setting:
        """Setting by which entries are pooled."""
        return Setting(self.name, self.chunk, self.demos, **self.condition.to_dict())

    @property
    def label(self) -> str:
        """Name with the method's title: "diffusion, DDIM-10" becomes "Diffusion Policy, DDIM-10"."""
        if not self.name.startswith(self.method):
            return self.name
        detail = self.name.removeprefix(self.method)
        return self.title if self.title.endswith(detail) else self.title + detail

    def to_json(self) -> str:
        """Format as JSON with one line per key and column, which keeps files small and readable."""
        values = msgspec.to_builtins(self) | {"calls_per_chunk": _shorten_floats(self.calls_per_chunk)}
        columns = {key: _shorten_floats(column) for key, column in values.pop("episodes").items()}
        episodes = f'   "episodes": {{\n{format_json_lines(columns, "    ")}\n   }}'
        return f"  {{\n{format_json_lines(values, '   ')},\n{episodes}\n  }}"


def format_json_lines(values: Mapping[str, Any], indent: str) -> str:
    """Format the content of a JSON object with one line per key."""
    return ",\n".join(
        f"{indent}{json.dumps(key)}: {json.dumps(value, allow_nan=False, ensure_ascii=False)}"
        for key, value in values.items()
    )


def _shorten_floats(value: Any) -> Any:
    """Return integral floats as integers, which have fewer digits; also within columns."""
    if isinstance(value, dict):
        return {key: _shorten_floats(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten_floats(each) for each in value]
    return int(value) if type(value) is float and value.is_integer() else value
