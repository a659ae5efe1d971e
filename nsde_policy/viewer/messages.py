"""JSON messages between the page and the server.

A client names the type of its message in "do": `{"do": "set_control", "name": "alpha", "value": 1}` is
`SetControl("alpha", 1.0)`. Types and ranges are checked during parsing; a mismatch raises `RemoteError`.

The server sends the state after every change and a frame after every control period:

- "released_at" in each panel of a frame: control period in which the block was last let go, or null.
- "solved_at" in each panel: control period of the first success since then, or null.
- "drags" in the state: what to put into "reset" to see the same episode again.
- "results" in the state: for each method, the success of the last episodes with the current controls.
- "compared" in each panel: paths of the agent along compared plans, the chosen one first; empty if one plan
  was sampled, null if the policy does not select plans or the episode is over.
- "latency", in panels and in the state: null until a plan was made with the current α, diffusion and chunk.
- A notice about a message goes to the client that sent it; a notice about the simulation goes to all.

While recording, the page sends "release" when the pointer leaves the table, the finger is lifted or the page
is hidden, and no "move_agent" until the pointer is back. The phase is then "paused" until the next
"move_agent". A client that disconnects is treated as if it had sent "release".
"""

import functools
import json
import operator
import re
from typing import Annotated, Literal

import msgspec

from nsde_policy.errors import RemoteError

from .controls import RANGES

PageMessage = dict[str, object]
"""A message to clients, for JSON."""
MessageType = Literal["state", "frame", "notice"]
"""Types of messages to clients, in the order in which they are sent."""
MAX_CLIENT_MESSAGE_BYTES = 16_384
MAX_START_SEED = 2**32 - 1
"""Largest seed of a start; that of the environment's generator."""
MAX_PANELS = 2
"""Policies that run side by side."""

Seed = Annotated[int, msgspec.Meta(ge=0, le=MAX_START_SEED)]
Coordinate = Annotated[float, msgspec.Meta(ge=-1e4, le=1e4)]
"""Pixels of the table; far beyond its edge is an error of the client."""
DraggedPose = tuple[int, Coordinate, Coordinate, Coordinate]
"""A control period, and the x, y and angle to which the block is dragged in it."""


def next_seed(seed: int) -> int:
    """Return the seed after `seed`; after the largest comes 0."""
    return (seed + 1) % (MAX_START_SEED + 1)


def _make_tag(class_name: str) -> str:
    """Return a class name in snake case."""
    return re.sub(r"\B(?=[A-Z])", "_", class_name).lower()


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=_make_tag):
    """A request of a client."""

    @property
    def tag(self) -> str:
        """The type as the client names it, such as "set_control"."""
        return _make_tag(type(self).__name__)

    @property
    def queue_key(self) -> tuple[str, ...]:
        """Of two queued messages with the same key, only the later one is handled."""
        return (self.tag,)


class Pause(ClientMessage, frozen=True):
    """Pause, or continue an episode."""

    on: bool


class Step(ClientMessage, frozen=True):
    """Run one control period, then pause."""


class Reset(ClientMessage, frozen=True):
    """Start an episode from a seed, and drag its block as a user did before."""

    seed: Seed
    drags: Annotated[tuple[DraggedPose, ...], msgspec.Meta(max_length=300)] = ()


class SetControl(ClientMessage, frozen=True):
    """Change a control of `controls.py`."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if self.name not in RANGES:
            raise RemoteError(f"unknown control {self.name!r:.40}; expected one of {', '.join(RANGES)}")

    @property
    def queue_key(self) -> tuple[str, ...]:
        """Return a key for each control, so that one slider does not replace another."""
        return (self.tag, self.name)


class SelectMethods(ClientMessage, frozen=True):
    """Run these methods side by side, from the same start."""

    methods: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_PANELS)]


class Drag(ClientMessage, frozen=True):
    """Drag the block of every table to a pose, or its agent to a position."""

    what: Literal["agent", "block"]
    x: Coordinate
    y: Coordinate
    angle: Coordinate = 0.0


class Release(ClientMessage, frozen=True):
    """End a drag; while recording, pause."""


class MoveAgent(ClientMessage, frozen=True):
    """Move the agent to the pointer, while recording."""

    x: Coordinate
    y: Coordinate


class StartRecording(ClientMessage, frozen=True):
    """Start recording: the agent follows the pointer."""


class KeepEpisode(ClientMessage, frozen=True):
    """Append the recorded episode to the store."""


class Discard(ClientMessage, frozen=True):
    """Drop the recorded episode and restart its seed."""


class Undo(ClientMessage, frozen=True):
    """Remove the last kept episode from the store."""


class Refresh(ClientMessage, frozen=True):
    """Send the state to a new client; sent by the server, never by a page."""


class Restore(ClientMessage, frozen=True):
    """Drop the settings of earlier viewers; sent by the server when a page opens and no other is open."""


_kinds = [kind for kind in ClientMessage.__subclasses__() if kind not in (Refresh, Restore)]
_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(functools.reduce(operator.or_, _kinds))


def parse_message(data: str | bytes) -> ClientMessage:
    """Parse a message of a client; raise `RemoteError` if it is damaged or hostile."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteError(f"invalid message: {error}") from None


def encode_message(message: PageMessage) -> str:
    """Encode a message to clients as compact JSON; NaN and infinity raise `ValueError`."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def encode_notice(error: Exception) -> str:
    """Encode an error as a notice, which the page shows for some seconds."""
    return encode_message({"type": "notice", "text": " ".join(str(error).split())})
