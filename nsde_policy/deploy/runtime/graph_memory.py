"""Memory that a graph takes when it runs, found before onnxruntime loads it.

A file of a megabyte can describe tensors of terabytes. Exports state the shape of every tensor; a graph is
accepted if all of them together stay below a limit. onnxruntime compares the stated shapes with those it
infers (`STRICT_SHAPES`), which is complete because shapes may not depend on computed values.
"""

import math
from collections.abc import Sequence

from nsde_policy.deploy.runtime.protobuf import read_fields, read_integers
from nsde_policy.errors import GraphError
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked

STRICT_SHAPES = "session.strict_shape_type_inference"
"""Setting of an onnxruntime session that rejects shapes which contradict the operators."""
_SHAPE_INPUTS: dict[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "Slice": (1, 2, 3, 4),
    **dict.fromkeys(("Reshape", "Expand", "TopK", "Split", "Squeeze", "Unsqueeze"), (1,)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), (1,)),
}
"""Inputs of operators whose values determine the shape of the output."""
_SMALL_TYPES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 9: 1, 10: 2, 12: 4, 16: 2}
"""Bytes of ONNX's element types with less than 8."""

TensorShape = tuple[int, ...]


def check_memory(graph: memoryview) -> None:
    """Raise `GraphError` if a graph may take more memory than `get_max_unpacked`, or does not say so."""
    shapes: dict[str, TensorShape] = {}
    sizes: dict[str, int] = {}
    constants: set[str] = set()
    inputs: set[str] = set()
    for field, value in read_fields(graph, {5: memoryview, 11: memoryview, 12: memoryview, 13: memoryview}):
        name, kind, shape = _read_tensor(value) if field == 5 else _read_value_info(value)
        size = math.prod(shape) * _SMALL_TYPES.get(kind, 8)
        shapes[name], sizes[name] = shape, max(size, sizes.get(name, 0))
        if field in (5, 11):
            (constants if field == 5 else inputs).add(name)
    if constants & inputs:
        raise GraphError("one of its inputs has a default value, which exports do not use")
    total = sum(sizes[name] for name in constants | inputs)
    for _, node in read_fields(graph, {1: memoryview}):
        operator, given, made = _read_node(node)
        for at in _SHAPE_INPUTS.get(operator, ()):
            if at < len(given) and given[at] and given[at] not in constants:
                raise GraphError(f"the output shape of a {operator} depends on a computed value")
        for name in filter(None, made):
            if name not in sizes:
                raise GraphError(f"it does not state the shape of {name!r:.40}; export it again")
            total += sizes[name]
        if operator == "ConvTranspose":  # a row per weight of an input channel, a column per input pixel
            image, weights = (shapes.get(name, ()) for name in (*given[:2], "", "")[:2])
            total += 4 * math.prod(image[2:]) * math.prod(weights[1:])
    if total > (limit := get_max_unpacked()):
        raise GraphError(
            f"its tensors take {total} bytes, the limit is {limit}; set {MAX_UNPACKED_VARIABLE} if the "
            "policy is what you expect"
        )


def _read_tensor(tensor: memoryview) -> tuple[str, int, TensorShape]:
    """Return name, element type and shape of a weight."""
    facts = dict(read_fields(tensor, {2: int, 8: str}))
    return facts.get(8, ""), facts.get(2, 0), _check_shape(read_integers(tensor, 1))


def _read_value_info(info: memoryview) -> tuple[str, int, TensorShape]:
    """Return name, element type and shape of an input, an output or an intermediate tensor."""
    facts = dict(read_fields(info, {1: str, 2: memoryview}))
    name = facts.get(1, "")
    tensor = dict(read_fields(facts.get(2, memoryview(b"")), {1: memoryview})).get(1)
    if tensor is None:
        raise GraphError(f"{name!r:.40} is not a tensor, or it does not state its shape")
    described = dict(read_fields(tensor, {1: int, 2: memoryview}))
    sizes = []
    for _, dim in read_fields(described.get(2, memoryview(b"")), {1: memoryview}):
        found = dict(read_fields(dim, {1: int, 2: object}))
        if set(found) != {1}:
            raise GraphError(f"the shape of {name!r:.40} is not constant")
        sizes.append(found[1])
    return name, described.get(1, 0), _check_shape(sizes)


def _read_node(node: memoryview) -> tuple[str, list[str], list[str]]:
    """Return operator, inputs and outputs of a node."""
    fields = list(read_fields(node, {1: str, 2: str, 4: str}))
    given, made, operator = ([value for field, value in fields if field == number] for number in (1, 2, 4))
    return operator[-1] if operator else "", given, made


def _check_shape(sizes: Sequence[int]) -> TensorShape:
    if any(size >= 2**63 for size in sizes):
        raise GraphError("a tensor has a negative size")
    return tuple(sizes)
