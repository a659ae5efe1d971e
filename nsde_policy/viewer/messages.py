"""JSON messages between the page and the server.

A client names the type of its message in "do": `{"do": "set_control", "name": "alpha", "value": 1}` is
`SetControl("alpha", 1.0)`. Types and ranges are checked during parsing; a mismatch raises `RemoteError`.

The server sends "hello" to a new client, then the "state" after every change and a "frame" after every
control period, each to all clients. A "notice" is an error, in words.

- "ended" in each panel of a frame: whether the episode is over, with success, a failure or at its time limit.
- "released_at" in each panel: control period in which a user last let go of something, or null.
- "solved_at" in each panel: control period of the first success since then, or null.
- "compared" in each panel: paths of the agent along compared plans, the chosen one first; empty if one plan
  was sampled, null if the policy does not select plans or the episode is over.
- "latency" in each panel: null until a plan was made with the current α, diffusion and chunk.

While recording, the page sends "move_agent" when the pointer moves, and "release" when it leaves the table,
the finger is lifted or the page is hidden. A client that disconnects is treated as if it had sent "release".
"""

import functools
import json
import operator
import re
from typing import Annotated, Literal

import msgspec

from nsde_policy.errors import RemoteError

PageMessage = dict[str, object]
"""A message to clients, for JSON."""
MAX_CLIENT_MESSAGE_BYTES = 16_384
MAX_START_SEED = 2**32 - 1
"""Largest seed that an environment's generator takes."""

Seed = Annotated[int, msgspec.Meta(ge=0, le=MAX_START_SEED)]
Coordinate = Annotated[float, msgspec.Meta(ge=-1e4, le=1e4)]
"""Pixels of the table; far beyond its edge is an error of the client."""


def next_seed(seed: int) -> int:
    """Return the seed after `seed`; after the largest comes 0."""
    return (seed + 1) % (MAX_START_SEED + 1)


def _make_tag(class_name: str) -> str:
    """Return a class name in snake case."""
    return re.sub(r"\B(?=[A-Z])", "_", class_name).lower()


class ClientMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=_make_tag):
    """A request of a client."""


class Pause(ClientMessage, frozen=True):
    """Pause, or continue an episode."""

    on: bool


class Reset(ClientMessage, frozen=True):
    """Start an episode from a seed."""

    seed: Seed


class SetControl(ClientMessage, frozen=True):
    """Change a control of `controls.py`."""

    name: str
    value: float


class SelectMethods(ClientMessage, frozen=True):
    """Run one method, or two side by side from the same start."""

    methods: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=2)]


class Drag(ClientMessage, frozen=True):
    """Drag the block of every table to a pose, or its agent to a position."""

    what: Literal["agent", "block"]
    x: Coordinate
    y: Coordinate
    angle: Coordinate = 0.0


class Release(ClientMessage, frozen=True):
    """End a drag; while recording, pause."""


class MoveAgent(ClientMessage, frozen=True):
    """Record: the agent follows the pointer once that has reached it."""

    x: Coordinate
    y: Coordinate


class KeepEpisode(ClientMessage, frozen=True):
    """Append the recorded episode to the store."""


class Discard(ClientMessage, frozen=True):
    """Drop the recorded episode and restart its seed."""


class Undo(ClientMessage, frozen=True):
    """Remove the last kept episode from the store."""


_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(
    functools.reduce(operator.or_, ClientMessage.__subclasses__())
)


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
