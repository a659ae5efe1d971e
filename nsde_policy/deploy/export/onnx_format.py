"""Export a plan as ONNX."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import numpy as np
import torch

from nsde_policy.deploy.export.onnx_operators import build_translations
from nsde_policy.deploy.export.parity import GraphOutputs, RunGraph
from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD
from nsde_policy.errors import ExportError, MissingDependencyError

OPSETS = range(18, 24)
"""Supported versions of the ONNX operators; from 20 on, Gelu is one operator."""


def check_packages() -> None:
    """Raise `MissingDependencyError` if a package that writes or runs ONNX is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingDependencyError.extra(package, "onnx") from None


def build_onnx(tracer: PlanTracer, *, opset: int) -> bytes:
    """Trace a plan and return the ONNX file without its record."""
    with _silence_exporter():
        try:
            program = torch.onnx.export(
                tracer.module,
                tracer.build_example(),
                dynamo=True,
                opset_version=opset,
                input_names=[given.name for given in tracer.inputs],
                output_names=[ACTIONS, PATH, STD] if tracer.foresees else [ACTIONS],
                custom_translation_table=build_translations(),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ExportError(f"cannot export this policy as ONNX: {_format_innermost(error)}") from None
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


def load_onnx(content: bytes) -> RunGraph:
    """Load an exported file with the runtime, and return a function that runs it."""
    graph = Graph(content)

    def run(inputs: list[np.ndarray]) -> GraphOutputs:
        for buffer, values in zip(graph.inputs.values(), inputs, strict=True):
            buffer[...] = values
        graph.run()
        return {name: array.copy() for name, array in graph.outputs.items()}

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


def _format_innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300]
