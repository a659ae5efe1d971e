"""What a page may ask for: small JSON objects, checked before they are believed.

`{"do": "reset", "seed": 100003}` is `Reset(seed=100003)`. Whatever else comes in is a `ProtocolError`.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from nsde_policy.config import BaseConfig
from nsde_policy.errors import ProtocolError
from nsde_policy.viewer.controls import RANGES

MAX_MESSAGE = 1024
"""Bytes of the largest message taken from a page."""
MAX_SEED = 2**32 - 1
MAX_LANES = 2
_FAR = 1e4
"""Pixels beyond which nothing on a table can be."""


def following(seed: int) -> int:
    """The seed behind one: behind the last, the first."""
    return seed + 1 if seed < MAX_SEED else 0


class Command(BaseConfig):
    """Something a page asks for."""

    @property
    def kind(self) -> tuple[str, ...]:
        """Of two commands of one kind that wait, only the later one counts."""
        return (type(self).__name__,)


def _bounded(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and abs(value) <= _FAR):
            raise ProtocolError(f"{name} must be a number of the table, got {value}")


@dataclass(frozen=True)
class Pause(Command):
    """Stop, or go on from the moment that is looked at."""

    on: bool


@dataclass(frozen=True)
class Step(Command):
    """Run one control period, then stop."""


@dataclass(frozen=True)
class Reset(Command):
    """Start again from a seed."""

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ProtocolError(f"a seed is a whole number from 0 to {MAX_SEED}, got {self.seed}")


@dataclass(frozen=True)
class Scrub(Command):
    """Look at a moment of the past, and stop there."""

    period: int


@dataclass(frozen=True)
class Set(Command):
    """Turn a control: see `controls.py`."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if self.name not in RANGES:
            raise ProtocolError(f"there is no control {self.name!r:.40}; there are: {', '.join(RANGES)}")

    @property
    def kind(self) -> tuple[str, ...]:
        """Each control by itself."""
        return ("Set", self.name)


@dataclass(frozen=True)
class Choose(Command):
    """Which methods run, one or two, side by side from the same start."""

    lanes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.lanes) <= MAX_LANES:
            raise ProtocolError(f"one method or two run at a time, got {len(self.lanes)}")


@dataclass(frozen=True)
class Hold(Command):
    """A hand on the block, which carries it; or on the agent, which sends it."""

    lane: int
    what: Literal["agent", "block"]
    x: float
    y: float
    angle: float = 0.0

    def __post_init__(self) -> None:
        _bounded(x=self.x, y=self.y, angle=self.angle)
        if not 0 <= self.lane < MAX_LANES:
            raise ProtocolError(f"there are at most {MAX_LANES} tables, got a hand on number {self.lane}")


@dataclass(frozen=True)
class Release(Command):
    """The hand lets go."""


@dataclass(frozen=True)
class Aim(Command):
    """Where a person who teleoperates points."""

    x: float
    y: float

    def __post_init__(self) -> None:
        _bounded(x=self.x, y=self.y)


@dataclass(frozen=True)
class Take(Command):
    """Begin to record: the agent follows from now on."""


@dataclass(frozen=True)
class Keep(Command):
    """The recorded episode is good: append it to the store."""


@dataclass(frozen=True)
class Discard(Command):
    """The recorded episode is not: forget it, and start again from the same seed."""


@dataclass(frozen=True)
class Undo(Command):
    """Take the last kept episode out of the store."""


@dataclass(frozen=True)
class Greet(Command):
    """Somebody new looks on: tell everything once more. Said by the server, never by a page."""


_SAID = {
    kind.__name__.lower(): kind
    for kind in (Pause, Step, Reset, Scrub, Set, Choose, Hold, Release, Aim, Take, Keep, Discard, Undo)
}


def parse(data: str | bytes) -> Command:
    """The command in a message."""
    try:
        values = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message is a JSON object, got what is none: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("do"), str):
        raise ProtocolError('a message is a JSON object with "do", such as {"do": "step"}')
    kind = _SAID.get(values.pop("do"))
    if kind is None:
        raise ProtocolError(f"a page can ask for {', '.join(_SAID)}; nothing else")
    try:
        return kind.from_dict(values)
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"{kind.__name__.lower()}: {error}") from None


def encode(message: dict[str, Any]) -> str:
    """A message for pages, without blanks."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def notice(error: Exception) -> str:
    """An error, as pages are told of it."""
    return encode({"type": "notice", "text": " ".join(str(error).split())})


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
