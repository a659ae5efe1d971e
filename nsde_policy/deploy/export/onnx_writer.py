"""Trace functions of a policy as ONNX files, and compare the graphs with them."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nsde_policy.errors import NsdePolicyError, import_optional, summarize_error

from ..runtime.graph import EncoderGraph, Graph
from ..runtime.metadata import RECORD_KEY, EncoderRecord, GraphRecord, add_checksum

OPSET = 20
"""Version of the ONNX operators; from 20 on, Gelu is one operator."""
_INT64 = 7
"""ONNX element type of 64-bit integers."""


def check_packages() -> None:
    """Raise `MissingDependencyError` if a package that writes or runs ONNX is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(package, "onnx")


@dataclass(frozen=True)
class TracedFunction:
    """A function that becomes a graph."""

    record: GraphRecord | EncoderRecord
    """Names and shapes of inputs and outputs."""
    module: nn.Module
    """What is traced as a graph."""
    reference: Callable[..., tuple[Tensor, ...]]
    """What the graph is compared with: takes the inputs of the graph, and returns its outputs."""
    draw_inputs: Callable[[int], Iterator[list[np.ndarray]]]
    """Samples inputs of the graph for a number of cases."""
    scales: Mapping[str, np.ndarray]
    """Unit of the difference of each output, by name."""
    tolerance: float
    """Largest allowed difference."""

    def draw_example(self) -> tuple[Tensor, ...]:
        """Return inputs of one call."""
        return tuple(map(torch.from_numpy, next(self.draw_inputs(1))))

    @torch.no_grad()
    def check_parity(self, graph: Graph | EncoderGraph, cases: int) -> float:
        """Return the largest difference of a graph from the reference; raise if it exceeds the tolerance."""
        worst = 0.0
        for inputs in self.draw_inputs(cases):
            expected = self.reference(*map(torch.from_numpy, inputs))
            outputs = graph.run(dict(zip(graph.record.input_shapes, inputs, strict=True)))
            for (name, output), tensor in zip(outputs.items(), expected, strict=True):
                with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as ∞
                    difference = float(np.max(np.abs(output - tensor.numpy()) / self.scales[name]))
                worst = max(worst, difference if np.isfinite(difference) else np.inf)
        if worst > self.tolerance:
            raise NsdePolicyError(
                f"the graph of {self.record.describe()} differs from the policy by {worst:.2g} ranges of the "
                f"demonstrations, at most {self.tolerance:g} is allowed; nothing was written"
            )
        return worst


def build_file(module: nn.Module, example: tuple[Tensor, ...], record: GraphRecord | EncoderRecord) -> bytes:
    """Trace a module with example arguments; return the content of its file, which holds the record."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    with _silence_exporter():
        try:
            program = torch.onnx.export(
                module,
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(record.input_shapes),
                output_names=list(record.outputs),
                custom_translation_table=_build_translations(),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise NsdePolicyError(f"cannot export this policy as ONNX: {summarize_error(cause)}") from None
    assert program is not None
    # Notes on the origin of operators hold paths and source lines of this machine.
    ClearMetadataAndDocStringPass()(program.model)
    program.model.metadata_props[RECORD_KEY] = record.to_json()
    return add_checksum(program.model_proto.SerializeToString())


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


def _build_translations() -> dict[Callable[..., object], Callable[..., object]]:
    """Return ONNX translations of the torch operators that torch's exporter does not support."""
    op = import_optional("onnxscript", "onnx").opset18

    def translate_cdist(x1: object, x2: object, p: float = 2.0, compute_mode: int | None = None) -> object:
        """Compute distances (rows, n) between points (rows, d) and (n, d)."""
        between = op.Sub(op.Unsqueeze(x1, [1]), op.Unsqueeze(x2, [0]))
        return op.Sqrt(op.ReduceSum(op.Mul(between, between), [2], keepdims=0))

    def translate_searchsorted(
        sorted_sequence: object, values: object, *, out_int32: bool = False, right: bool = False, **_: object
    ) -> object:
        """Count how many of (rows, n) are below each of (rows, m), or not above it if `right`, as int64.

        It compares all pairs; `out_int32` is ignored.
        """
        ordered, asked = op.Unsqueeze(sorted_sequence, [1]), op.Unsqueeze(values, [2])
        below = op.LessOrEqual(ordered, asked) if right else op.Less(ordered, asked)
        return op.ReduceSum(op.Cast(below, to=_INT64), [2], keepdims=0)

    return {
        torch.ops.aten._cdist_forward.default: translate_cdist,
        torch.ops.aten.searchsorted.Tensor: translate_searchsorted,
    }
