"""JSON messages between the page and the server.

A client names the type of its message in "do": `{"do": "reset", "seed": 100003}` is `Reset(seed=100003)`.
Types and ranges are checked during parsing; a mismatch raises `ProtocolError`.
"""

import json
from typing import Annotated, Any, Literal

import msgspec

from nsde_policy.errors import ProtocolError
from nsde_policy.viewer.controls import RANGES

MessageType = Literal["state", "frame", "notice"]
"""Types of messages to clients, in the order in which they are sent."""
MAX_CLIENT_MESSAGE_BYTES = 1024
MAX_START_SEED = 2**32 - 1
"""Largest seed of a start; that of the environment's generator."""
MAX_LANES = 2
"""Policies that run side by side."""

Seed = Annotated[int, msgspec.Meta(ge=0, le=MAX_START_SEED)]
Coordinate = Annotated[float, msgspec.Meta(ge=-1e4, le=1e4)]
"""Pixels of the table; far beyond its edge is an error of the client."""


def next_seed(seed: int) -> int:
    """Return the seed after `seed`; after the largest comes 0."""
    return (seed + 1) % (MAX_START_SEED + 1)


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=str.lower):
    """Something that a client asks for."""

    @property
    def queue_key(self) -> tuple[str, ...]:
        """Of two queued messages with the same key, only the later one is handled."""
        return (type(self).__name__,)


class Pause(ClientMessage, frozen=True):
    """Pause, or continue from the period on display."""

    on: bool


class Step(ClientMessage, frozen=True):
    """Run one control period, then pause."""


class Reset(ClientMessage, frozen=True):
    """Start an episode from a seed."""

    seed: Seed


class Scrub(ClientMessage, frozen=True):
    """Pause and display an earlier control period."""

    period: int


class Set(ClientMessage, frozen=True):
    """Change a control of `controls.py`."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if self.name not in RANGES:
            raise ProtocolError(f"unknown control {self.name!r:.40}; expected one of {', '.join(RANGES)}")

    @property
    def queue_key(self) -> tuple[str, ...]:
        """Return a key for each control, so that one slider does not replace another."""
        return ("Set", self.name)


class Choose(ClientMessage, frozen=True):
    """Run these methods side by side, from the same start."""

    lanes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_LANES)]


class Hold(ClientMessage, frozen=True):
    """Drag the block to a pose, or the agent to a position."""

    lane: Annotated[int, msgspec.Meta(ge=0, lt=MAX_LANES)]
    what: Literal["agent", "block"]
    x: Coordinate
    y: Coordinate
    angle: Coordinate = 0.0


class Release(ClientMessage, frozen=True):
    """End a drag; while recording, pause."""


class Aim(ClientMessage, frozen=True):
    """Move the agent to the pointer, while recording."""

    x: Coordinate
    y: Coordinate


class Take(ClientMessage, frozen=True):
    """Start recording: the agent follows the pointer."""


class Keep(ClientMessage, frozen=True):
    """Append the recorded episode to the store."""


class Discard(ClientMessage, frozen=True):
    """Drop the recorded episode and restart its seed."""


class Undo(ClientMessage, frozen=True):
    """Remove the last kept episode from the store."""


class Refresh(ClientMessage, frozen=True):
    """Send the state to a new client; sent by the server, never by a page."""


_CLIENT_MESSAGES = (
    Pause | Step | Reset | Scrub | Set | Choose | Hold | Release | Aim | Take | Keep | Discard | Undo
)
_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(_CLIENT_MESSAGES)


def parse_message(data: str | bytes) -> ClientMessage:
    """Parse a message of a client that may be damaged or hostile.

    Raises:
        ProtocolError: If it is not a JSON object of a known type with valid fields.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"invalid message: {error}") from None


def encode_message(message: dict[str, Any]) -> str:
    """Encode a message to clients as compact JSON; NaN and infinity raise `ValueError`."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def encode_notice(error: Exception) -> str:
    """Encode an error as a notice, which the page shows for some seconds."""
    return encode_message({"type": "notice", "text": " ".join(str(error).split())})
