"""What a policy server and its clients say to each other: msgpack, checked before it is believed.

A connection begins with `Hello` and `Welcome`; from then on each `PlanRequest` gets one `PlanReply` or one
`Refusal`. A request carries all that its plan depends on, so a server remembers nothing of its clients.
`Hello` and `Refusal` keep their form in every version, so that two versions can tell each other apart.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgpack
import numpy as np

from nsde_policy.errors import ProtocolError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, PolicySpec

PROTOCOL = 2
"""Version of the messages; both sides must have the same."""
MAX_MESSAGE = 65_536
"""Bytes a message may have, unless both sides say otherwise."""
ENVELOPE = 1024
"""Bytes of a message that are not numbers, at most."""
MAX_SEED = 2**63 - 1

Code = Literal["malformed", "wrong_version", "bad_request", "late", "failed", "stopping"]

_MAX_TEXT = 500
_DTYPES: dict[str, np.dtype[Any]] = {"f4": np.dtype("<f4"), "f8": np.dtype("<f8")}


@dataclass(frozen=True)
class Hello:
    """The first message of a client."""

    protocol: int
    version: str
    """Of the package; for the log."""


@dataclass(frozen=True)
class Welcome:
    """The server's answer to `Hello`."""

    protocol: int
    version: str
    spec: PolicySpec
    calibration: Calibration
    """What a control loop takes from the demonstrations."""
    max_message: int
    """Bytes of the largest message the server takes."""
    max_steps: int
    """Actions of the longest plan it makes."""
    deadline_s: float
    """Longest it lets a plan take, seconds."""


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """Asks for a plan; the same request gives the same plan."""

    id: int
    """The answer carries it too."""
    states: np.ndarray
    """(history, obs_dim + act_dim), newest first, float32 or float64."""
    steps: int
    seed: int
    deadline_s: float
    """After so many seconds the plan is of no use any more."""


@dataclass(frozen=True, eq=False)
class PlanReply:
    """A plan."""

    id: int
    actions: np.ndarray
    """(steps, act_dim)"""
    states: np.ndarray | None
    """(steps + 1, obs_dim + act_dim), or None where the method foresees actions alone."""
    std: np.ndarray | None
    """σ of each command, (steps, act_dim), or None where the method does not say."""


@dataclass(frozen=True)
class Refusal:
    """There is no plan, and why."""

    id: int | None
    """None where no request can be made out."""
    code: Code
    message: str


Message = Hello | Welcome | PlanRequest | PlanReply | Refusal
M = TypeVar("M", Hello, Welcome, PlanRequest, PlanReply)


def encode(message: Message) -> bytes:
    """One message as bytes."""
    kind, fields = _FORMS[type(message)]
    values = {name: field.pack(getattr(message, name)) for name, field in fields.items()}
    packed: bytes = msgpack.packb({"kind": kind, **values}, use_bin_type=True)
    return packed


def decode(data: object, wanted: type[M], *, limit: int = MAX_MESSAGE) -> M:
    """A message of the wanted kind; raises `ProtocolError`, and nothing else, for anything else."""
    values = _unpack(data, limit)
    return wanted(**_read(values, wanted))


def decode_answer(data: object, wanted: type[M], *, limit: int = MAX_MESSAGE) -> M | Refusal:
    """As `decode`, but a `Refusal` may stand in its place."""
    values = _unpack(data, limit)
    if values.get("kind") == "refusal":
        return Refusal(**_read(values, Refusal))
    return wanted(**_read(values, wanted))


def check_plan(plan: Plan, spec: PolicySpec, steps: int) -> Plan:
    """`plan` itself, where it has the shapes that were asked for and every number is finite."""
    wanted: list[tuple[str, np.ndarray, tuple[int, int]]] = [("actions", plan.actions, (steps, spec.act_dim))]
    if plan.states is not None:
        wanted.append(("states", plan.states, (steps + 1, spec.obs_dim + spec.act_dim)))
    if plan.std is not None:
        wanted.append(("std", plan.std, (steps, spec.act_dim)))
    for name, array, shape in wanted:
        if array.shape != shape:
            raise ProtocolError(f"a plan's {name} have shape {array.shape}, expected {shape}")
        if not np.isfinite(array).all():
            raise ProtocolError(f"a plan's {name} are not finite")
    return plan


def _unpack(data: object, limit: int) -> dict[str, Any]:
    """The map in the bytes. No list or map of a message is long, so nothing long is made room for."""
    if not isinstance(data, bytes):
        raise ProtocolError(f"a message is bytes, got {type(data).__name__}")
    if len(data) > limit:
        raise ProtocolError(f"a message has at most {limit} bytes, got {len(data)}")
    try:
        values = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=8,
            max_map_len=16,
            max_ext_len=0,
            object_pairs_hook=_map,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack of this protocol: {type(error).__name__}") from None
    if not isinstance(values, dict):
        raise ProtocolError(f"a message is a map, got {type(values).__name__}")
    return values


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    values = dict(pairs)
    if len(values) < len(pairs) or not all(type(key) is str for key in values):
        raise ValueError("keys are texts, each there once")
    return values


def _read(values: dict[str, Any], wanted: type) -> dict[str, Any]:
    kind, fields = _FORMS[wanted]
    if values.get("kind") != kind:
        raise ProtocolError(f"expected a message of kind {kind!r}")
    if values.keys() != {"kind", *fields}:
        raise ProtocolError(f"a message of kind {kind!r} holds {', '.join(fields)}, no more and no less")
    return {name: field.read(values[name], name) for name, field in fields.items()}


class _Field(NamedTuple):
    """How a field is packed, and how it is read from what was unpacked."""

    pack: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


def _whole(low: int, high: int = MAX_SEED) -> _Field:
    def read(value: Any, name: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ProtocolError(f"{name} must be a whole number from {low} to {high}")
        return value

    return _Field(int, read)


def _text(longest: int) -> _Field:
    def read(value: Any, name: str) -> str:
        if type(value) is not str or len(value) > longest:
            raise ProtocolError(f"{name} must be a text of at most {longest} characters")
        return value

    return _Field(lambda value: str(value)[:longest], read)


def _read_duration(value: Any, name: str) -> float:
    if type(value) is not float or not 0 < value < math.inf:
        raise ProtocolError(f"{name} must be a positive number of seconds")
    return value


def _read_code(value: Any, name: str) -> Any:
    if value not in get_args(Code):
        raise ProtocolError(f"{name} must be one of {', '.join(get_args(Code))}")
    return value


def _pack_array(array: np.ndarray) -> dict[str, Any]:
    kind = "f4" if array.dtype == np.float32 else "f8"
    data = np.ascontiguousarray(array, _DTYPES[kind]).tobytes()
    return {"dtype": kind, "shape": list(array.shape), "data": data}


def _read_array(value: Any, name: str) -> np.ndarray:
    """(rows, columns), finite; the sizes are checked against the bytes that are there."""
    if type(value) is not dict or value.keys() != {"dtype", "shape", "data"}:
        raise ProtocolError(f"{name} must be an array: dtype, shape, data")
    kind, shape, data = value["dtype"], value["shape"], value["data"]
    if type(kind) is not str or kind not in _DTYPES:
        raise ProtocolError(f"{name}.dtype must be one of {', '.join(_DTYPES)}")
    if type(shape) is not list or len(shape) != 2 or not all(type(n) is int and n >= 1 for n in shape):
        raise ProtocolError(f"{name}.shape must be two positive whole numbers")
    if type(data) is not bytes or len(data) != shape[0] * shape[1] * _DTYPES[kind].itemsize:
        raise ProtocolError(f"{name}.data must be as many bytes as its shape says")
    array: np.ndarray = np.frombuffer(data, _DTYPES[kind]).reshape(shape)
    if not np.isfinite(array).all():
        raise ProtocolError(f"{name} must be finite")
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _read_spec(value: Any, name: str) -> PolicySpec:
    if type(value) is not str:
        raise ProtocolError(f"{name} must be a text")
    try:
        return PolicySpec.from_json(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"{name} is not that of a policy: {error}") from None


def _read_calibration(value: Any, name: str) -> Calibration:
    if type(value) is not str:
        raise ProtocolError(f"{name} must be a text")
    try:
        return Calibration.from_json(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"{name} is not that of a policy: {type(error).__name__}") from None


_WHOLE, _TEXT, _DURATION = _whole(0), _text(_MAX_TEXT), _Field(float, _read_duration)
_ARRAY = _Field(_pack_array, _read_array)
_SPEC = _Field(lambda spec: json.dumps(spec.to_dict(), allow_nan=False), _read_spec)
_CALIBRATION = _Field(lambda found: json.dumps(found.to_dict(), allow_nan=False), _read_calibration)


def _optional(field: _Field) -> _Field:
    return _Field(
        lambda value: None if value is None else field.pack(value),
        lambda value, name: None if value is None else field.read(value, name),
    )


_FORMS: dict[type, tuple[str, dict[str, _Field]]] = {
    Hello: ("hello", {"protocol": _WHOLE, "version": _TEXT}),
    Welcome: (
        "welcome",
        {
            "protocol": _WHOLE,
            "version": _TEXT,
            "spec": _SPEC,
            "calibration": _CALIBRATION,
            "max_message": _whole(ENVELOPE),
            "max_steps": _whole(1),
            "deadline_s": _DURATION,
        },
    ),
    PlanRequest: (
        "plan",
        {"id": _WHOLE, "states": _ARRAY, "steps": _whole(1), "seed": _WHOLE, "deadline_s": _DURATION},
    ),
    PlanReply: (
        "planned",
        {"id": _WHOLE, "actions": _ARRAY, "states": _optional(_ARRAY), "std": _optional(_ARRAY)},
    ),
    Refusal: (
        "refusal",
        {"id": _optional(_WHOLE), "code": _Field(str, _read_code), "message": _TEXT},
    ),
}
