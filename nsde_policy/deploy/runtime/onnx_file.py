"""Validation of an ONNX file before onnxruntime loads it.

`GraphError` is raised for truncated files, zip archives and pickles, weights in other files, functions,
control flow, operators that exports do not use, weights that are not finite, tensors that take too much
memory, and graphs whose checksum is wrong.
"""

import hashlib
from typing import Any, TypeVar

import numpy as np

from nsde_policy.deploy.runtime.graph_memory import check_memory
from nsde_policy.deploy.runtime.metadata import RECORD_KEY, EncoderRecord, GraphRecord
from nsde_policy.deploy.runtime.protobuf import encode_field, read_fields
from nsde_policy.errors import ConfigError, GraphError

_OPERATOR_NAMES = """
Add And ArgMax ArgMin Cast Clip Concat ConstantOfShape Conv ConvTranspose Cos CumSum Div Equal Erf Exp
Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm Greater GreaterOrEqual Identity
InstanceNormalization LSTM LayerNormalization Less LessOrEqual Log MatMul Max MaxPool Min Mish Mod Mul Neg
Not Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Sigmoid Sin Slice Softmax
Softplus Split Sqrt Squeeze Sub Sum Tanh TopK Transpose Unsqueeze Where
"""
OPERATORS = frozenset(_OPERATOR_NAMES.split())
"""Operators of exported graphs. None of them reads files, draws random numbers, loops or branches."""

_FLOAT_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 10: np.dtype("<f2"), 11: np.dtype("<f8")}
"""Numpy types of ONNX's floating-point element types."""


AnyRecord = TypeVar("AnyRecord", GraphRecord, EncoderRecord)


def validate_graph(content: bytes, record_class: type[AnyRecord]) -> AnyRecord:
    """Validate an ONNX file and return its record, which must be of a class."""
    _check_file_type(content)
    metadata: dict[str, str] = {}
    graphs = []
    kinds = {7: memoryview, 14: memoryview, 20: object, 25: object}
    for field, value in read_fields(memoryview(content), kinds):
        if field == 7:
            graphs.append(value)
        elif field == 14:
            entry = dict(read_fields(value, {1: str, 2: str}))
            metadata[entry.get(1, "")] = entry.get(2, "")
        else:
            raise GraphError("it contains functions or training steps; an exported policy is a single graph")
    if len(graphs) != 1:
        raise GraphError(f"it contains {len(graphs)} graphs, an exported policy has one")
    record = _read_record(metadata, record_class)
    if hashlib.sha256(graphs[0]).hexdigest() != record.graph_sha256:
        raise GraphError("its checksum is wrong: damaged or changed; export it again")
    for field, value in read_fields(graphs[0], {1: memoryview, 5: memoryview, 15: object}):
        if field == 15:
            raise GraphError("it contains sparse weights, which exports do not use")
        (_check_node if field == 1 else _check_tensor)(value)
    check_memory(graphs[0])
    return record


def graph_sha256(content: bytes) -> str:
    """Compute the SHA-256 of the graph in an ONNX file."""
    ((_, graph),) = read_fields(memoryview(content), {7: memoryview})
    return hashlib.sha256(graph).hexdigest()


def add_metadata(content: bytes, text: str) -> bytes:
    """Append a record to an ONNX file; protocol buffers merge appended fields into the message."""
    entry = encode_field(1, RECORD_KEY.encode()) + encode_field(2, text.encode())
    return content + encode_field(14, entry)


def _check_file_type(content: bytes) -> None:
    if content[:2] == b"PK":
        raise GraphError("it is a zip archive, like .pt, .pt2 and .npz files; expected ONNX")
    if content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise GraphError("it is a pickle, which could run code and is not opened; expected ONNX")
    if not content:
        raise GraphError("it is empty; expected ONNX")


def _read_record(metadata: dict[str, str], record_class: type[AnyRecord]) -> AnyRecord:
    if RECORD_KEY not in metadata:
        found = f"found: {sorted(metadata)!r:.80}"
        raise GraphError(f"it has no {RECORD_KEY!r} metadata ({found}); write it with nsde-policy export")
    try:
        return record_class.from_json(metadata[RECORD_KEY])
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        if record_class is GraphRecord and '"measures_shift"' in metadata[RECORD_KEY]:
            raise GraphError("it is the encoder of a policy; load the policy, NAME.onnx") from None
        raise GraphError(f"its metadata is invalid: {error}") from None


def _check_node(node: memoryview) -> None:
    kinds = {5: memoryview, 10: memoryview, 6: object, 11: object, 22: object, 23: object}
    for _, attribute in read_fields(node, {5: memoryview}):
        for field, value in read_fields(attribute, kinds):
            if field not in (5, 10):
                raise GraphError("an operator contains a graph or sparse weights, which exports do not use")
            _check_tensor(value)
    names = dict(read_fields(node, {4: str, 7: str}))
    operator, domain = names.get(4, ""), names.get(7) or "ai.onnx"
    if domain != "ai.onnx" or operator not in OPERATORS:
        raise GraphError(f"it contains the operator {domain}.{operator}, which exports do not use")


def _check_tensor(tensor: memoryview) -> None:
    for field, value in read_fields(tensor, {13: object, 14: int}):
        if field == 13 or value != 0:
            raise GraphError("its weights are in another file; exports contain their weights")
    facts = dict(read_fields(tensor, {2: int, 8: str}))
    kind, name = facts.get(2), facts.get(8, "a weight")
    if kind not in _FLOAT_TYPES:
        return
    for field, value in read_fields(tensor, {4: object, 9: object, 10: object}):  # raw, packed or one by one
        dtype = _FLOAT_TYPES[{4: 1, 9: kind, 10: 11}[field]]
        content = value.to_bytes(dtype.itemsize, "little") if isinstance(value, int) else value
        if len(content) % dtype.itemsize:
            raise GraphError(f"a weight has {len(content)} bytes, not a multiple of {dtype.itemsize}")
        numbers = np.frombuffer(content, dtype)
        if np.isnan(numbers).any() or np.isposinf(numbers).any():  # −∞ is allowed: attention masks contain it
            raise GraphError(f"its weight {name!r} is not finite")
