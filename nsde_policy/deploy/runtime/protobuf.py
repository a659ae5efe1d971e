"""A reader of the protocol buffer wire format.

Written by hand because robots run exported policies without the `onnx` and `protobuf` packages, which the
validation of a file would otherwise need. It parses lazily and without a schema, and byte fields are views of
the file, so that a hostile file cannot make it allocate memory.
"""

import struct
from collections.abc import Iterator

from nsde_policy.errors import GraphError

Value = int | memoryview
"""An integer for wire types 0, 1 and 5; a view of the bytes for wire type 2."""

_MAX_VARINT_BYTES = 10


def read_fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field of a message; raise `GraphError` if it is truncated."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise GraphError("it is not a protocol buffer: a field has the number 0")
        if wire_type == 0:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _read_varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise GraphError(f"it is not a protocol buffer: a field has the wire type {wire_type}")
        if size > len(message) - at:
            raise GraphError(f"it is truncated: a field has {size} bytes, {len(message) - at} are left")
        part, at = message[at : at + size], at + size
        yield number, part if wire_type == 2 else int.from_bytes(part, "little")


def read_text(value: Value) -> str:
    """Return the value of a string field."""
    if isinstance(value, int):
        raise GraphError("it is not an ONNX file: found a number instead of a text")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise GraphError("it is not an ONNX file: a text is not UTF-8") from None


def read_bytes(value: Value) -> memoryview:
    """Return the value of a field of bytes, or of a nested message."""
    if isinstance(value, int):
        raise GraphError("it is not an ONNX file: found a number instead of a message")
    return value


def read_int(value: Value) -> int:
    """Return the value of an integer field."""
    if not isinstance(value, int):
        raise GraphError("it is not an ONNX file: found a message instead of a number")
    return value


def encode_field(field: int, content: bytes) -> bytes:
    """Encode a field of bytes."""
    return _encode_varint(field << 3 | 2) + _encode_varint(len(content)) + content


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for i in range(_MAX_VARINT_BYTES):
        if at + i >= len(message):
            raise GraphError("it is truncated within a number")
        byte = message[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + i + 1
    raise GraphError("it is not a protocol buffer: a number is too long")


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out += struct.pack("B", value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + struct.pack("B", value))
