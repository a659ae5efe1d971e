"""Look into an ONNX file before anything runs it: `GraphError` for whatever an exported policy never holds.

Refused are files that are not regular, too large or cut short, zips and pickles under another name, weights
kept in other files, functions, control flow, operators beyond those that exports use, weights that are not
finite, and content that differs from what was exported.
"""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.deploy.runtime import protobuf as wire
from nsde_policy.deploy.runtime.metadata import KEY, GraphRecord
from nsde_policy.errors import ConfigError, GraphError

LARGEST_BYTES = 512 << 20
"""Largest file that is read unless said otherwise."""

OPERATORS = frozenset(
    (
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Cast",
        "Clip",
        "Concat",
        "ConstantOfShape",
        "Conv",
        "ConvTranspose",
        "Cos",
        "CumSum",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gelu",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "InstanceNormalization",
        "LSTM",
        "LayerNormalization",
        "Less",
        "LessOrEqual",
        "Log",
        "MatMul",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Pow",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
        "Softplus",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "TopK",
        "Transpose",
        "Unsqueeze",
        "Where",
    )
)
"""What exported graphs are made of. Nothing here reads files, draws numbers, loops or branches."""

_NUMBERS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 10: np.dtype("<f2"), 11: np.dtype("<f8")}
"""Numpy's name for ONNX's floating-point types."""


def read_file(path: Path, *, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file that is not too large."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise GraphError(f"{path} is no regular file; expected an exported policy")
        if about.st_size > largest_bytes:
            raise GraphError(
                f"{path} has {about.st_size} bytes, at most {largest_bytes} are read; raise largest_bytes "
                "if it is meant to be that large"
            )
        with path.open("rb") as file:
            content = file.read(largest_bytes + 1)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > largest_bytes:
        raise GraphError(f"{path} grew beyond {largest_bytes} bytes while it was read")
    return content


def checked_record(content: bytes) -> GraphRecord:
    """What the file says of itself, once all of it has been looked at."""
    _refuse_disguise(content)
    metadata: dict[str, str] = {}
    graphs = []
    for field, value in wire.fields(memoryview(content)):
        if field == 7:
            graphs.append(wire.view(value))
        elif field == 14:
            key, text = _entry(wire.view(value))
            metadata[key] = text
        elif field in (20, 25):
            raise GraphError("it holds functions or training steps; an exported policy holds one graph alone")
    if len(graphs) != 1:
        raise GraphError(f"it holds {len(graphs)} graphs, an exported policy holds one")
    record = _record(metadata)
    if hashlib.sha256(graphs[0]).hexdigest() != record.graph_sha256:
        raise GraphError("its graph is not the one that was exported: damaged or changed; export it again")
    _check_graph(graphs[0])
    return record


def graph_sha256(content: bytes) -> str:
    """SHA-256 of the graph in an ONNX file."""
    (graph,) = (wire.view(value) for field, value in wire.fields(memoryview(content)) if field == 7)
    return hashlib.sha256(graph).hexdigest()


def with_metadata(content: bytes, text: str) -> bytes:
    """The same ONNX file with the record added: what follows a message is merged into it."""
    entry = wire.encoded(1, KEY.encode()) + wire.encoded(2, text.encode())
    return content + wire.encoded(14, entry)


def _refuse_disguise(content: bytes) -> None:
    if content[:2] == b"PK":
        raise GraphError("it is a zip archive, as .pt, .pt2 and .npz files are; expected ONNX")
    if content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise GraphError("it is a pickle, which could run code; it is not opened; expected ONNX")
    if not content:
        raise GraphError("it is empty; expected ONNX")


def _entry(message: memoryview) -> tuple[str, str]:
    values = {field: wire.text(value) for field, value in wire.fields(message)}
    return values.get(1, ""), values.get(2, "")


def _record(metadata: dict[str, str]) -> GraphRecord:
    if KEY not in metadata:
        raise GraphError(
            f"it has no {KEY!r} metadata (found: {sorted(metadata)!r:.80}); write it with nsde-policy export"
        )
    try:
        return GraphRecord.from_json(metadata[KEY])
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"its metadata cannot be right: {error}") from None


def _check_graph(graph: memoryview) -> None:
    for field, value in wire.fields(graph):
        if field == 1:
            _check_node(wire.view(value))
        elif field == 5:
            _check_tensor(wire.view(value))
        elif field == 15:
            raise GraphError("it holds sparse weights; exported policies do not")


def _check_node(node: memoryview) -> None:
    operator, domain = "", ""
    for field, value in wire.fields(node):
        if field == 4:
            operator = wire.text(value)
        elif field == 7:
            domain = wire.text(value)
        elif field == 5:
            _check_attribute(wire.view(value))
    if domain not in ("", "ai.onnx") or operator not in OPERATORS:
        raise GraphError(f"it holds the operator {domain or 'ai.onnx'}.{operator}, which exports never use")


def _check_attribute(attribute: memoryview) -> None:
    for field, value in wire.fields(attribute):
        if field in (5, 10):
            _check_tensor(wire.view(value))
        elif field in (6, 11, 22, 23):
            raise GraphError("an operator holds a graph or sparse weights; exported policies do not")


def _check_tensor(tensor: memoryview) -> None:
    kind, name = 0, "a weight"
    parts: list[tuple[int, wire.Value]] = []
    for field, value in wire.fields(tensor):
        if field == 13 or (field == 14 and wire.number(value) != 0):
            raise GraphError("its weights lie in another file; exported policies hold their own")
        if field == 2:
            kind = wire.number(value)
        elif field == 8:
            name = wire.text(value)
        elif field in (4, 9, 10):
            parts.append((field, value))
    if kind not in _NUMBERS:
        return
    for values in _floats(kind, parts):
        if np.isnan(values).any() or np.isposinf(values).any():  # −∞ is what an attention mask is made of
            raise GraphError(f"its weight {name!r} holds numbers that are not finite")


def _floats(kind: int, parts: list[tuple[int, wire.Value]]) -> Iterator[np.ndarray]:
    """The floating-point numbers of a tensor: raw, packed, or one by one."""
    for field, value in parts:
        dtype = _NUMBERS[{4: 1, 9: kind, 10: 11}[field]]
        content = value.to_bytes(dtype.itemsize, "little") if isinstance(value, int) else value
        if len(content) % dtype.itemsize:
            raise GraphError(f"a weight has {len(content)} bytes, which are no whole numbers")
        yield np.frombuffer(content, dtype)
