"""Parts of an ONNX file: the graph with its checksum, and the record that `nsde-policy export` adds.

An ONNX file is a protocol buffer. Robots load it without the packages `onnx` and `protobuf`, so its top level
is read here; onnxruntime checks everything inside the graph.
"""

import hashlib
from collections.abc import Iterator
from typing import TypeVar

from nsde_policy.deploy.runtime.metadata import RECORD_KEY, EncoderRecord, GraphRecord
from nsde_policy.errors import CheckpointError, ConfigError

GRAPH_FIELD = 7
METADATA_FIELD = 14

AnyRecord = TypeVar("AnyRecord", GraphRecord, EncoderRecord)


def read_record(content: bytes, record_class: type[AnyRecord]) -> AnyRecord:
    """Return the record of an exported file.

    Raises:
        CheckpointError: If the file is not ONNX, has no valid record of this class, or its graph is damaged.
    """
    text = None
    for field, value in _read_fields(memoryview(content)):
        if field == METADATA_FIELD:
            entry = dict(_read_fields(value))
            if bytes(entry.get(1, b"")) == RECORD_KEY.encode():
                text = bytes(entry.get(2, b"")).decode(errors="replace")
    if text is None:
        raise CheckpointError(f"it has no {RECORD_KEY!r} metadata; write it with nsde-policy export")
    try:
        record = record_class.from_json(text)
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        if record_class is GraphRecord and '"measures_shift"' in text:
            raise CheckpointError("it is the encoder of a policy; load the policy, NAME.onnx") from None
        raise CheckpointError(f"its metadata is invalid: {error}") from None
    if graph_sha256(content) != record.graph_sha256:
        raise CheckpointError("its checksum is wrong: damaged or changed; export it again")
    return record


def graph_sha256(content: bytes) -> str:
    """Compute the SHA-256 of the graph in an ONNX file."""
    graphs = [value for field, value in _read_fields(memoryview(content)) if field == GRAPH_FIELD]
    if len(graphs) != 1:
        raise CheckpointError(f"it contains {len(graphs)} graphs, an exported policy has one")
    return hashlib.sha256(graphs[0]).hexdigest()


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field of a protocol buffer that holds bytes or a message.

    All other fields of a model, and of an entry of its metadata, are numbers of variable length.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if key & 7 == 0:
            continue
        if key & 7 != 2:
            raise CheckpointError("it is not an ONNX file")
        if size > len(message) - at:
            raise CheckpointError(f"it is truncated: a field has {size} bytes, {len(message) - at} are left")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    value = 0
    for i in range(10):
        if at + i >= len(message):
            raise CheckpointError("it is truncated within a number")
        value |= (message[at + i] & 0x7F) << (7 * i)
        if message[at + i] < 0x80:
            return value, at + i + 1
    raise CheckpointError("it is not an ONNX file: a number is too long")
