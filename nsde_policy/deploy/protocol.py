"""Messages between a policy server and its clients: typed msgpack, validated while it is decoded.

A connection begins with `Hello` and `Welcome`; then each `PlanRequest` gets one `PlanReply` or one `Refusal`.
If the policy has cameras, an `EncodeRequest` gets the features of an observation for later states. A
request holds everything its answer depends on, so the server stores nothing about its clients. `Hello` and
`Refusal` are the same in every version, so that client and server can report different versions.
"""

import math
import zlib
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta

from nsde_policy.bounds import MAX_INTEGER, Natural
from nsde_policy.core.spec import CameraSpec
from nsde_policy.errors import RemoteError, summarize_error
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, PolicySpec

PROTOCOL = 4
"""Version of the messages; client and server must have the same."""

PositiveInt64 = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
ShortText = Annotated[str, Meta(max_length=500)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
RefusalCode = Literal["malformed", "wrong_version", "bad_request", "late", "failed", "stopping"]


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Finite numbers in up to three dimensions, as raw little-endian bytes."""

    dtype: Literal["f4", "f8"]
    shape: Annotated[tuple[PositiveInt64, ...], Meta(min_length=1, max_length=3)]
    data: bytes

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * int(self.dtype[1])
        if len(self.data) != expected:
            raise ValueError(f"data has {len(self.data)} bytes, expected {expected} for its shape")
        if not np.isfinite(np.frombuffer(self.data, f"<{self.dtype}")).all():
            raise ValueError("array values must be finite")

    @classmethod
    def pack(cls, array: np.ndarray) -> Self:
        """Convert an array; float32 stays float32, other types become float64."""
        dtype: Literal["f4", "f8"] = "f4" if array.dtype == np.float32 else "f8"
        return cls(dtype, array.shape, np.ascontiguousarray(array, f"<{dtype}").tobytes())

    def unpack(self) -> np.ndarray:
        """Convert to a writable array in the byte order of this machine."""
        array = np.frombuffer(self.data, f"<{self.dtype}").reshape(self.shape)
        return array.astype(array.dtype.newbyteorder("="))


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all messages: a map with the key `kind` and exactly the fields of its class."""

    @property
    def tag(self) -> str:
        """The value of `kind`."""
        return str(self.__struct_config__.tag)


class Hello(Message, frozen=True, tag="hello"):
    """First message of a client."""

    protocol: Natural
    version: ShortText
    """Package version, for a message about different protocols."""


class Welcome(Message, frozen=True, tag="welcome"):
    """Reply of the server to a `Hello` of the same protocol."""

    spec: str
    """The `PolicySpec` as JSON; its longest chunk is the longest plan that the server computes."""
    calibration: str
    """The `Calibration` as JSON."""
    candidates: PositiveInt64
    """Most plans that the policy compares before one is returned."""

    def parse(self) -> tuple[PolicySpec, Calibration, int]:
        """Return the content; raise `RemoteError` if it is invalid, or its parts do not belong together."""
        try:
            spec = PolicySpec.from_json(self.spec)
            return spec, Calibration.from_json(self.calibration).check(spec), self.candidates
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RemoteError(f"the server's greeting is not valid: {summarize_error(error)}") from None


class PlanRequest(Message, frozen=True, tag="plan"):
    """Request of a plan; the same request gets the same plan, up to rounding."""

    states: Array
    """(history, obs_dim + act_dim), newest first."""
    steps: PositiveInt64
    seed: Natural
    candidates: PositiveInt64
    """Most plans to compare."""
    deadline_s: Seconds
    """Time after which the client no longer needs the plan, seconds."""


class PlanReply(Message, frozen=True, tag="planned"):
    """A plan, as the fields of `nsde_policy.interface.planner.Plan`."""

    actions: Array
    states: Array | None
    std: Array | None
    candidates: Array | None

    @classmethod
    def pack(cls, plan: Plan) -> Self:
        """Convert a plan to a message."""
        others = [None if array is None else Array.pack(array) for array in plan[1:]]
        return cls(Array.pack(plan.actions), *others)

    def unpack(self) -> Plan:
        """Convert the message to a plan."""
        others = (self.states, self.std, self.candidates)
        return Plan(self.actions.unpack(), *(None if array is None else array.unpack() for array in others))


class EncodeRequest(Message, frozen=True, tag="encode"):
    """Request of the features of one observation, if the policy has cameras."""

    values: Array
    """Low-dimensional part of the observation, (1, plain_dim)."""
    frames: tuple[bytes, ...]
    """Frame of each camera, in the order of the spec, as `pack_frame` returns it."""
    deadline_s: Seconds
    """Time after which the client no longer needs the features, seconds."""


class EncodeReply(Message, frozen=True, tag="encoded"):
    """Features of one observation."""

    features: Array
    """(1, features), the last columns of the observation."""
    visible: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Fraction of the features that are likely to be right; None if the policy does not report it."""


class Refusal(Message, frozen=True, tag="refusal"):
    """Reason why a request gets no answer."""

    code: RefusalCode
    message: ShortText
    id: None = None
    """Clients of protocol 3 need it to read the refusal of their version."""


encode = msgspec.msgpack.encode


def decode(data: object, kind: object) -> Any:
    """Decode a message of one kind, or of a union of kinds; raise `RemoteError` for anything else."""
    if not isinstance(data, bytes):
        raise RemoteError(f"message has type {type(data).__name__}, expected bytes")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteError(f"message is not valid: {summarize_error(error)}") from None


def pack_frame(frame: np.ndarray) -> bytes:
    """Compress a frame (height, width, 3) uint8 with zlib, as differences to the pixel to the left."""
    return zlib.compress(np.diff(frame, axis=1, prepend=np.uint8(0)).tobytes(), 1)


def unpack_frame(data: bytes, camera: CameraSpec) -> np.ndarray:
    """Decompress a frame of a camera, or raise `RemoteError`; never more bytes than such a frame has."""
    size, stream = math.prod(camera.shape), zlib.decompressobj()
    try:
        steps = stream.decompress(data, size + 1)
    except zlib.error:
        raise RemoteError(f"{camera.name} is damaged or not compressed with zlib") from None
    if len(steps) != size or not stream.eof or stream.unused_data:
        length = f"more than {size}" if len(steps) > size else str(len(steps))
        raise RemoteError(f"{camera.name} must have {size} bytes, {camera.shape} uint8, got {length}")
    return np.cumsum(np.frombuffer(steps, np.uint8).reshape(camera.shape), axis=1, dtype=np.uint8)
