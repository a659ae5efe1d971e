"""Validation of an ONNX file before onnxruntime loads it.

`GraphError` is raised for files that are not regular, too large or truncated, for zip archives and pickles,
weights in other files, functions, control flow, operators that exports do not use, weights that are not
finite, and graphs whose checksum is wrong.
"""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.deploy.runtime import protobuf as wire
from nsde_policy.deploy.runtime.metadata import RECORD_KEY, GraphRecord
from nsde_policy.errors import ConfigError, GraphError

MAX_GRAPH_BYTES = 512 << 20
"""Default size limit of a file."""

_OPERATOR_NAMES = """
Add And ArgMax ArgMin Cast Clip Concat ConstantOfShape Conv ConvTranspose Cos CumSum Div Equal Erf Exp
Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm Greater GreaterOrEqual Identity
InstanceNormalization LSTM LayerNormalization Less LessOrEqual Log MatMul Max Min Mish Mod Mul Neg Not Pow
Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Sigmoid Sin Slice Softmax Softplus Split
Sqrt Squeeze Sub Sum Tanh TopK Transpose Unsqueeze Where
"""
OPERATORS = frozenset(_OPERATOR_NAMES.split())
"""Operators of exported graphs. None of them reads files, draws random numbers, loops or branches."""

_FLOAT_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 10: np.dtype("<f2"), 11: np.dtype("<f8")}
"""Numpy types of ONNX's floating-point element types."""


def read_graph_file(path: Path, *, max_bytes: int = MAX_GRAPH_BYTES) -> bytes:
    """Read a regular file up to a size limit; reject pipes and devices, which could block."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise GraphError(f"{path} is not a regular file; expected an exported policy")
        if status.st_size > max_bytes:
            raise GraphError(
                f"{path} has {status.st_size} bytes, the limit is {max_bytes}; raise max_bytes to load it"
            )
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > max_bytes:
        raise GraphError(f"{path} grew beyond {max_bytes} bytes while reading")
    return content


def validate_graph(content: bytes) -> GraphRecord:
    """Validate an ONNX file and return its record."""
    _check_file_type(content)
    metadata: dict[str, str] = {}
    graphs = []
    for field, value in wire.read_fields(memoryview(content)):
        if field == 7:
            graphs.append(wire.read_bytes(value))
        elif field == 14:
            key, text = _read_entry(wire.read_bytes(value))
            metadata[key] = text
        elif field in (20, 25):
            raise GraphError("it contains functions or training steps; an exported policy is a single graph")
    if len(graphs) != 1:
        raise GraphError(f"it contains {len(graphs)} graphs, an exported policy has one")
    record = _read_record(metadata)
    if hashlib.sha256(graphs[0]).hexdigest() != record.graph_sha256:
        raise GraphError("its checksum is wrong: damaged or changed; export it again")
    _check_graph(graphs[0])
    return record


def graph_sha256(content: bytes) -> str:
    """Compute the SHA-256 of the graph in an ONNX file."""
    (graph,) = (
        wire.read_bytes(value) for field, value in wire.read_fields(memoryview(content)) if field == 7
    )
    return hashlib.sha256(graph).hexdigest()


def add_metadata(content: bytes, text: str) -> bytes:
    """Append a record to an ONNX file; protocol buffers merge appended fields into the message."""
    entry = wire.encode_field(1, RECORD_KEY.encode()) + wire.encode_field(2, text.encode())
    return content + wire.encode_field(14, entry)


def _check_file_type(content: bytes) -> None:
    if content[:2] == b"PK":
        raise GraphError("it is a zip archive, like .pt, .pt2 and .npz files; expected ONNX")
    if content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise GraphError("it is a pickle, which could run code and is not opened; expected ONNX")
    if not content:
        raise GraphError("it is empty; expected ONNX")


def _read_entry(message: memoryview) -> tuple[str, str]:
    values = {field: wire.read_text(value) for field, value in wire.read_fields(message)}
    return values.get(1, ""), values.get(2, "")


def _read_record(metadata: dict[str, str]) -> GraphRecord:
    if RECORD_KEY not in metadata:
        found = f"found: {sorted(metadata)!r:.80}"
        raise GraphError(f"it has no {RECORD_KEY!r} metadata ({found}); write it with nsde-policy export")
    try:
        return GraphRecord.from_json(metadata[RECORD_KEY])
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"its metadata is invalid: {error}") from None


def _check_graph(graph: memoryview) -> None:
    for field, value in wire.read_fields(graph):
        if field == 1:
            _check_node(wire.read_bytes(value))
        elif field == 5:
            _check_tensor(wire.read_bytes(value))
        elif field == 15:
            raise GraphError("it contains sparse weights, which exports do not use")


def _check_node(node: memoryview) -> None:
    operator, domain = "", ""
    for field, value in wire.read_fields(node):
        if field == 4:
            operator = wire.read_text(value)
        elif field == 7:
            domain = wire.read_text(value)
        elif field == 5:
            _check_attribute(wire.read_bytes(value))
    if domain not in ("", "ai.onnx") or operator not in OPERATORS:
        raise GraphError(
            f"it contains the operator {domain or 'ai.onnx'}.{operator}, which exports do not use"
        )


def _check_attribute(attribute: memoryview) -> None:
    for field, value in wire.read_fields(attribute):
        if field in (5, 10):
            _check_tensor(wire.read_bytes(value))
        elif field in (6, 11, 22, 23):
            raise GraphError("an operator contains a graph or sparse weights, which exports do not use")


def _check_tensor(tensor: memoryview) -> None:
    kind, name = 0, "a weight"
    parts: list[tuple[int, wire.Value]] = []
    for field, value in wire.read_fields(tensor):
        if field == 13 or (field == 14 and wire.read_int(value) != 0):
            raise GraphError("its weights are in another file; exports contain their weights")
        if field == 2:
            kind = wire.read_int(value)
        elif field == 8:
            name = wire.read_text(value)
        elif field in (4, 9, 10):
            parts.append((field, value))
    if kind not in _FLOAT_TYPES:
        return
    for values in _iterate_floats(kind, parts):
        if np.isnan(values).any() or np.isposinf(values).any():  # −∞ is allowed: attention masks contain it
            raise GraphError(f"its weight {name!r} is not finite")


def _iterate_floats(kind: int, parts: list[tuple[int, wire.Value]]) -> Iterator[np.ndarray]:
    """Yield the floating-point numbers of a tensor: raw, packed, or one by one."""
    for field, value in parts:
        dtype = _FLOAT_TYPES[{4: 1, 9: kind, 10: 11}[field]]
        content = value.to_bytes(dtype.itemsize, "little") if isinstance(value, int) else value
        if len(content) % dtype.itemsize:
            raise GraphError(f"a weight has {len(content)} bytes, not a multiple of {dtype.itemsize}")
        yield np.frombuffer(content, dtype)
