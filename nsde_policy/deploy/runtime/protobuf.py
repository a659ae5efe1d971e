"""Protocol buffers on the wire, read without any schema: enough to look into a file before trusting it."""

import struct
from collections.abc import Iterator

from nsde_policy.errors import GraphError

Value = int | memoryview
"""Numbers of wire types 0, 1 and 5 as integers; bytes of wire type 2 as a view, not a copy."""

_LONGEST = 10
"""Most bytes of a variable-length integer."""


def fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message, in order; `GraphError` where it ends too early."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise GraphError("it is no protocol buffer: a field has the number 0")
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise GraphError(f"it is no protocol buffer: a field has the wire type {wire_type}")
        if size > len(message) - at:
            raise GraphError(f"it is cut short: a field of {size} bytes, {len(message) - at} left")
        part, at = message[at : at + size], at + size
        yield number, part if wire_type == 2 else int.from_bytes(part, "little")


def text(value: Value) -> str:
    """A string field."""
    if isinstance(value, int):
        raise GraphError("it is no ONNX file: a number stands where a text should")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise GraphError("it is no ONNX file: a text is not UTF-8") from None


def view(value: Value) -> memoryview:
    """A field of bytes, or of a message within the message."""
    if isinstance(value, int):
        raise GraphError("it is no ONNX file: a number stands where a message should")
    return value


def number(value: Value) -> int:
    """A field that holds one number."""
    if not isinstance(value, int):
        raise GraphError("it is no ONNX file: a message stands where a number should")
    return value


def encoded(field: int, content: bytes) -> bytes:
    """One field of bytes, as it is written."""
    return _as_varint(field << 3 | 2) + _as_varint(len(content)) + content


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for i in range(_LONGEST):
        if at + i >= len(message):
            raise GraphError("it is cut short within a number")
        byte = message[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + i + 1
    raise GraphError("it is no protocol buffer: a number has no end")


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out += struct.pack("B", value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + struct.pack("B", value))
