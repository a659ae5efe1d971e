"""One trained run, played under one setting: its episodes in columns, and what it cost; to and from JSON."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.rollout import EpisodeResult

DIGITS = 5
"""Digits kept behind the point."""

T = TypeVar("T")


@dataclass(frozen=True)
class Episodes:
    """Outcomes of one run in columns, one number per start, in the order of the starts' seeds."""

    seed: tuple[int, ...]
    max_reward: tuple[float, ...]
    """Largest clip(coverage / 0.95, 0, 1) along the way."""
    success: tuple[bool, ...]
    """Coverage above 0.95 at some moment."""
    final_coverage: tuple[float, ...]
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = asdict(self)
        sizes = {name: len(column) for name, column in columns.items()}
        need(
            len(set(sizes.values())) == 1 and sizes["seed"] > 0, f"columns of {sizes} numbers are no episodes"
        )
        rising = all(a < b for a, b in zip(self.seed, self.seed[1:], strict=False))
        need(rising, "seeds of episodes must rise, each once")
        for name in ("max_reward", "final_coverage"):
            inside = all(0 <= value <= 1 for value in columns[name])
            need(inside, f"{name} holds numbers outside 0 to 1")

    def __len__(self) -> int:
        return len(self.seed)

    @classmethod
    def of(cls, results: Iterable[EpisodeResult]) -> "Episodes":
        """From played episodes, in any order."""
        played = sorted(results, key=lambda result: result.seed)
        return cls(
            seed=tuple(r.seed for r in played),
            max_reward=tuple(round(float(r.score), DIGITS) for r in played),
            success=tuple(bool(r.success) for r in played),
            final_coverage=tuple(round(float(r.metrics["final_coverage"]), DIGITS) for r in played),
            steps=tuple(int(r.steps) for r in played),
        )

    @classmethod
    def from_dict(cls, values: Any) -> "Episodes":
        """The inverse of `dataclasses.asdict`."""
        check_keys("episodes", values, cls)
        return cls(
            seed=column_of(values, "seed", int),
            max_reward=column_of(values, "max_reward", float),
            success=column_of(values, "success", bool),
            final_coverage=column_of(values, "final_coverage", float),
            steps=column_of(values, "steps", int),
        )


@dataclass(frozen=True)
class Latency:
    """Time from an observation to eight actions, milliseconds, one at a time."""

    median: float
    p99: float

    @classmethod
    def from_dict(cls, values: Any) -> "Latency":
        """The inverse of `dataclasses.asdict`."""
        check_keys("latency_ms", values, cls)
        return cls(number(values, "median"), number(values, "p99"))


class Setting(NamedTuple):
    """What the pooled trainings of a row share."""

    name: str
    chunk: int
    demos: int
    condition: Condition


@dataclass(frozen=True)
class Entry:
    """One trained run, played under one setting."""

    name: str
    """Unique label of the row, such as "diffusion, DDIM-10"."""
    title: str
    """The method, for people."""
    method: str
    preset: str
    train_seed: int
    demos: int
    """Demonstrations it was trained on."""
    chunk: int
    """Actions executed before planning again (T_a)."""
    sampling: Mapping[str, Any]
    """How actions were drawn from the trained model."""
    condition: Condition
    """What episodes had to cope with."""
    parameters: int
    train_steps: int
    train_s: float | None
    """Training time in seconds, where the run had the device to itself."""
    calls_per_chunk: float
    """Network calls, one after the other, for eight actions."""
    latency_ms: Latency | None
    episodes: Episodes

    def __post_init__(self) -> None:
        need(bool(self.name), "an entry needs a name")
        for name in ("train_seed", "parameters", "train_steps", "calls_per_chunk"):
            need(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        need(self.demos >= 1 and self.chunk >= 1, f"need demos, chunk >= 1, got {self.demos}, {self.chunk}")

    @property
    def setting(self) -> Setting:
        """Which row it belongs to."""
        return Setting(self.name, self.chunk, self.demos, self.condition)

    @property
    def label(self) -> str:
        """The row's name, for people: "diffusion, DDIM-10" is "Diffusion Policy, DDIM-10"."""
        if not self.name.startswith(self.method):
            return self.name
        detail = self.name.removeprefix(self.method)
        return self.title if self.title.endswith(detail) else self.title + detail

    def to_json(self) -> str:
        """A line for each key and each column, so that a file of many stays small and can be read."""
        values = {**asdict(self), "calls_per_chunk": _short([self.calls_per_chunk])[0]}
        if self.train_s is not None:
            values["train_s"] = round(self.train_s, DIGITS)
        if self.latency_ms is not None:
            values["latency_ms"] = {k: round(v, DIGITS) for k, v in asdict(self.latency_ms).items()}
        columns = {key: _short(column) for key, column in values.pop("episodes").items()}
        columns_text = f'   "episodes": {{\n{_lines(columns, "    ")}\n   }}'
        return f"  {{\n{_lines(values, '   ')},\n{columns_text}\n  }}"

    @classmethod
    def from_dict(cls, values: Any) -> "Entry":
        """From the object that `to_json` writes."""
        check_keys("an entry", values, cls)
        try:
            condition = Condition.from_dict(typed(values, "condition", dict))
        except ConfigError as error:
            raise ComparisonError(str(error)) from None
        return cls(
            name=typed(values, "name", str),
            title=typed(values, "title", str),
            method=typed(values, "method", str),
            preset=typed(values, "preset", str),
            train_seed=typed(values, "train_seed", int),
            demos=typed(values, "demos", int),
            chunk=typed(values, "chunk", int),
            sampling=typed(values, "sampling", dict),
            condition=condition,
            parameters=typed(values, "parameters", int),
            train_steps=typed(values, "train_steps", int),
            train_s=None if values["train_s"] is None else number(values, "train_s"),
            calls_per_chunk=number(values, "calls_per_chunk"),
            latency_ms=None if values["latency_ms"] is None else Latency.from_dict(values["latency_ms"]),
            episodes=Episodes.from_dict(values["episodes"]),
        )


def need(condition: bool, message: str) -> None:
    """Refuse what cannot be compared."""
    if not condition:
        raise ComparisonError(message)


def located(where: str, read: Callable[[Any], T], value: Any) -> T:
    """Read something; where that fails, say where."""
    try:
        return read(value)
    except ComparisonError as error:
        raise ComparisonError(f"{where}: {error}") from None


def check_keys(what: str, values: Any, owner: type) -> None:
    """Refuse an object that lacks a key, or has one too many."""
    need(isinstance(values, dict), f"{what} must be an object, got {type(values).__name__}")
    wanted = list(owner.__dataclass_fields__)  # type: ignore[attr-defined]
    for key in wanted:
        need(key in values, f"{what} lacks {key!r}")
    for key in values:
        need(key in wanted, f"{what} has {key!r}, which means nothing here")


def typed(values: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """A value of exactly that type."""
    value = values[key]
    if type(value) is not kind:
        raise ComparisonError(f"{key} must be {kind.__name__}, got {value!r:.40}")
    return value


def number(values: Mapping[str, Any], key: str) -> float:
    """A finite number that is not negative."""
    value = values[key]
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ComparisonError(f"{key} must be a number from 0 on, got {value!r:.40}")
    return float(value)


def column_of(values: Mapping[str, Any], key: str, kind: type[T]) -> tuple[T, ...]:
    """A list with values of one type."""
    column = typed(values, key, list)
    allowed = (int, float) if kind is float else (kind,)
    for value in column:
        if type(value) not in allowed:
            raise ComparisonError(f"{key} must hold {kind.__name__} only, got {value!r:.40}")
    return tuple(kind(value) for value in column)  # type: ignore[call-arg]


def _lines(values: Mapping[str, Any], indent: str) -> str:
    return ",\n".join(
        f"{indent}{json.dumps(key)}: {json.dumps(value, allow_nan=False, ensure_ascii=False)}"
        for key, value in values.items()
    )


def _short(column: Iterable[Any]) -> list[Any]:
    """Whole floats as integers, which are shorter."""
    return [int(value) if type(value) is float and value.is_integer() else value for value in column]
