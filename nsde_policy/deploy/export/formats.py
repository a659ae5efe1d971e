"""File formats of an exported plan: ONNX, and torch.export's archive for programs with torch."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import RECORD_KEY, GraphRecord
from nsde_policy.errors import NsdePolicyError, import_optional, summarize_error

RECORD_FILE = f"{RECORD_KEY}.json"
"""Name of the record in a torch.export archive."""
_INT64 = 7
"""ONNX element type of 64-bit integers."""
OPSETS = range(18, 24)
"""Supported versions of the ONNX operators; from 20 on, Gelu is one operator."""

GraphOutputs = dict[str, np.ndarray]
RunGraph = Callable[[list[np.ndarray]], GraphOutputs]
"""Run a graph: its inputs in order → its outputs by name."""


def check_packages() -> None:
    """Raise `MissingDependencyError` if a package that writes or runs ONNX is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(package, "onnx")


def build_onnx(
    module: nn.Module,
    example: tuple[Tensor, ...],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
) -> bytes:
    """Trace a module and return the ONNX file without its record.

    Args:
        module: What is traced.
        example: Arguments of one call.
        inputs: Names of the arguments.
        outputs: Names of the results.
        opset: Version of the ONNX operators.
    """
    with _silence_exporter():
        try:
            program = torch.onnx.export(
                module,
                example,
                dynamo=True,
                opset_version=opset,
                input_names=list(inputs),
                output_names=list(outputs),
                custom_translation_table=_build_translations(),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise NsdePolicyError(f"cannot export this policy as ONNX: {summarize_error(cause)}") from None
    assert program is not None
    model = program.model_proto
    _remove_notes(model)
    import_optional("onnx", "onnx").checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def add_record(content: bytes, text: str) -> bytes:
    """Add a record, as JSON, to an ONNX file."""
    model = import_optional("onnx", "onnx").load_from_string(content)
    model.metadata_props.add(key=RECORD_KEY, value=text)
    signed: bytes = model.SerializeToString(deterministic=True)
    return signed


def _remove_notes(message: Any) -> None:
    """Delete everything in an ONNX message that only describes its origin, such as paths of source files.

    Without it the same run is exported to the same bytes wherever the package is installed.
    """
    for note in ("doc_string", "metadata_props"):
        if note in message.DESCRIPTOR.fields_by_name:
            message.ClearField(note)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "add") else (value,):  # repeated fields have `add`
                _remove_notes(part)


def load_onnx(content: bytes) -> RunGraph:
    """Load an exported file with the runtime, and return a function that runs it."""
    graph = Graph(content)

    def run(inputs: list[np.ndarray]) -> GraphOutputs:
        for buffer, values in zip(graph.inputs.values(), inputs, strict=True):
            buffer[...] = values
        graph.run()
        return {name: array.copy() for name, array in graph.outputs.items()}

    return run


def build_pt2(tracer: PlanTracer, record: GraphRecord) -> bytes:
    """Trace a plan and return the archive with its record."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LSTMs warn about their weights while they are traced
            program = torch.export.export(tracer.module, tracer.build_example(), strict=False)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise NsdePolicyError(f"cannot trace this policy: {summarize_error(error)}") from None
    program.graph.eliminate_dead_code()  # an unused empty loop can be saved but not loaded
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of source files
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={RECORD_FILE: record.to_json()})
    return file.getvalue()


def load_pt2(content: bytes) -> RunGraph:
    """Load an archive and return a function that runs it."""
    files = {RECORD_FILE: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=files).module()
    names = GraphRecord.from_json(files[RECORD_FILE]).outputs

    def run(inputs: list[np.ndarray]) -> GraphOutputs:
        with torch.no_grad():
            out = module(*(torch.from_numpy(values) for values in inputs))
        return {name: tensor.numpy() for name, tensor in zip(names, out, strict=True)}

    return run


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress progress messages and warnings of the exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def _build_translations() -> dict[Any, Callable[..., Any]]:
    """Return ONNX translations of the torch operators that torch's exporter does not support."""
    op = import_optional("onnxscript", "onnx").opset18

    def translate_cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
        """Compute distances (rows, n) between points (rows, d) and (n, d)."""
        between = op.Sub(op.Unsqueeze(x1, [1]), op.Unsqueeze(x2, [0]))
        return op.Sqrt(op.ReduceSum(op.Mul(between, between), [2], keepdims=0))

    def translate_searchsorted(
        sorted_sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, **_: Any
    ) -> Any:
        """Count how many of (rows, n) are below each of (rows, m); compares all pairs."""
        ordered, asked = op.Unsqueeze(sorted_sequence, [1]), op.Unsqueeze(values, [2])
        below = op.LessOrEqual(ordered, asked) if right else op.Less(ordered, asked)
        return op.ReduceSum(op.Cast(below, to=_INT64), [2], keepdims=0)

    return {
        torch.ops.aten._cdist_forward.default: translate_cdist,
        torch.ops.aten.searchsorted.Tensor: translate_searchsorted,
    }
