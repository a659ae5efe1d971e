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

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Score = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Episodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes of one run in columns, one value per start, in the order of the seeds."""

    seed: tuple[Natural, ...]
    max_reward: tuple[Score, ...]
    """Score of each episode; `Task.score_name` says what it is."""
    success: tuple[bool, ...]
    final_coverage: tuple[Share, ...] | None
    """Progress at the end of each episode; None if the task does not report it."""
    steps: tuple[Natural, ...]

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
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
        coverage = [r.metrics["final_coverage"] for r in played if "final_coverage" in r.metrics]
        return cls(
            seed=tuple(r.seed for r in played),
            max_reward=tuple(round(float(r.score), DECIMALS) for r in played),
            success=tuple(bool(r.success) for r in played),
            final_coverage=tuple(round(float(value), DECIMALS) for value in coverage) or None,
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
        values = msgspec.to_builtins(self) | {"calls_per_chunk": _shorten_float(self.calls_per_chunk)}
        columns = {
            key: column and [_shorten_float(value) for value in column]
            for key, column in values.pop("episodes").items()
        }
        episodes = f'   "episodes": {{\n{format_json_lines(columns, "    ")}\n   }}'
        return f"  {{\n{format_json_lines(values, '   ')},\n{episodes}\n  }}"


def format_json_lines(values: Mapping[str, Any], indent: str) -> str:
    """Format the content of a JSON object with one line per key."""
    return ",\n".join(
        f"{indent}{json.dumps(key)}: {json.dumps(value, allow_nan=False, ensure_ascii=False)}"
        for key, value in values.items()
    )


def _shorten_float(value: Any) -> Any:
    """Return integral floats as integers, which have fewer digits."""
    return int(value) if type(value) is float and value.is_integer() else value
