"""The plan of a policy as ONNX."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import numpy as np
import torch

from nsde_policy.deploy.export.onnx_operators import translations
from nsde_policy.deploy.export.parity import Answer, Answerer
from nsde_policy.deploy.export.plan_module import Chunk
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD, GraphRecord
from nsde_policy.deploy.runtime.onnx_file import graph_sha256, with_metadata
from nsde_policy.errors import ExportError, MissingDependencyError

OPSETS = range(18, 24)
"""Versions of ONNX's operators that can be asked for; Gelu is one operator from 20 on."""


def check_packages() -> None:
    """Everything that writing and checking ONNX needs."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingDependencyError.extra(package, "onnx") from None


def to_onnx(chunk: Chunk, *, opset: int) -> bytes:
    """The graph, without its record."""
    with _quiet():
        try:
            program = torch.onnx.export(
                chunk.fast,
                chunk.example(),
                dynamo=True,
                opset_version=opset,
                input_names=[given.name for given in chunk.inputs],
                output_names=[ACTIONS, PATH, STD] if chunk.foresees else [ACTIONS],
                custom_translation_table=translations(),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ExportError(f"this policy cannot be written as ONNX: {_cause(error)}") from None
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


def with_record(content: bytes, record: GraphRecord) -> bytes:
    """The file as it is shipped."""
    return with_metadata(content, record.to_json())


def digest(content: bytes) -> str:
    """What the record says of the graph."""
    return graph_sha256(content)


def answerer(content: bytes) -> Answerer:
    """How the file answers, through the loader that robots use."""
    graph = Graph(content)

    def answer(inputs: list[np.ndarray]) -> Answer:
        for buffer, values in zip(graph.inputs.values(), inputs, strict=True):
            buffer[...] = values
        graph.run()
        return {name: array.copy() for name, array in graph.outputs.items()}

    return answer


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells its progress to whoever listens; nobody asked."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def _cause(error: BaseException) -> str:
    """The innermost reason, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300]
