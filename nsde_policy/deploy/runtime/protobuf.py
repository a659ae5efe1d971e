"""A reader of the protocol buffer wire format.

Written by hand because robots run exported policies without the `onnx` and `protobuf` packages, which the
validation of a file would otherwise need. It parses lazily and without a schema, and byte fields are views of
the file, so that a hostile file cannot make it allocate memory.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nsde_policy.errors import GraphError

_MAX_VARINT_BYTES = 10


def read_fields(message: memoryview, kinds: Mapping[int, type]) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message that `kinds` lists.

    Args:
        message: An encoded message.
        kinds: Type by field number: int (wire types 0, 1 and 5), memoryview (bytes or a message, wire
            type 2), str, or object for any wire type.

    Raises:
        GraphError: If the message is truncated, or a field has another type.
    """
    at = 0
    value: int | memoryview
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise GraphError("it is not a protocol buffer: a field has the number 0")
        if wire_type == 0:
            value, at = _read_varint(message, at)
        elif wire_type in (1, 2, 5):
            size, at = _read_varint(message, at) if wire_type == 2 else (8 if wire_type == 1 else 4, at)
            if size > len(message) - at:
                raise GraphError(f"it is truncated: a field has {size} bytes, {len(message) - at} are left")
            part, at = message[at : at + size], at + size
            value = part if wire_type == 2 else int.from_bytes(part, "little")
        else:
            raise GraphError(f"it is not a protocol buffer: a field has the wire type {wire_type}")
        if number in kinds:
            yield number, _convert_value(value, kinds[number])


def read_integers(message: memoryview, field: int) -> list[int]:
    """Read a repeated field of integers, packed or not."""
    found: list[int] = []
    for _, value in read_fields(message, {field: object}):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _read_varint(value, at)
            found.append(number)
    return found


def encode_field(field: int, content: bytes) -> bytes:
    """Encode a field of bytes."""
    return _encode_varint(field << 3 | 2) + _encode_varint(len(content)) + content


def _convert_value(value: int | memoryview, kind: type) -> Any:
    if kind is str and isinstance(value, memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise GraphError("it is not an ONNX file: a text is not UTF-8") from None
    if not isinstance(value, kind):
        raise GraphError(f"it is not an ONNX file: expected {kind.__name__}, found {type(value).__name__}")
    return value


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
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
