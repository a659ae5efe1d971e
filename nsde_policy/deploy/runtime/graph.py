"""Exported graphs in onnxruntime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self

import numpy as np

from nsde_policy.data.frames import resize_frames
from nsde_policy.errors import CheckpointError, import_optional, summarize_error
from nsde_policy.files import read_file

from . import metadata

MAX_GRAPH_BYTES = 512 << 20
"""Size limit of a file."""


class LoadedGraph(Generic[metadata.AnyRecord]):
    """A graph that was checked, and fits its record; threads may share it."""

    _record_class: type[metadata.AnyRecord]

    def __init__(self, content: bytes, *, threads: int = 1) -> None:
        metadata.check_checksum(content)
        self._session = _create_session(content, threads)
        text = self._session.get_modelmeta().custom_metadata_map.get(metadata.RECORD_KEY, "")
        self.record: metadata.AnyRecord = metadata.parse_record(text, self._record_class)
        self._check_signature()
        zeros = {
            name: np.zeros(shape, np.uint8 if name.startswith(metadata.FRAME) else np.float32)
            for name, shape in self.record.input_shapes.items()
        }
        self.run(zeros)  # what fails on this machine, fails before the robot moves

    @classmethod
    def load(cls, path: Path, *, threads: int = 1) -> Self:
        """Read a file, check it, and run it once."""
        content = read_file(path, MAX_GRAPH_BYTES, error=CheckpointError)
        try:
            return cls(content, threads=threads)
        except CheckpointError as error:
            raise CheckpointError(f"cannot load {path}: {error}") from None

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute all outputs by name."""
        names = list(self.record.outputs)
        try:
            return dict(zip(names, self._session.run(names, inputs), strict=True))
        except Exception as error:
            raise CheckpointError(f"onnxruntime cannot run the graph: {summarize_error(error)}") from None

    def _check_signature(self) -> None:
        for what, nodes, expected in (
            ("inputs", self._session.get_inputs(), self.record.input_shapes),
            ("outputs", self._session.get_outputs(), self.record.outputs),
        ):
            signature = {node.name: tuple(node.shape) for node in nodes}
            if signature != expected:
                raise CheckpointError(
                    f"the {what} of the graph are {signature}, its metadata says {expected}"
                )


class Graph(LoadedGraph[metadata.GraphRecord]):
    """The graph of a plan: its inputs are states and noise."""

    _record_class = metadata.GraphRecord

    def make_inputs(self, states: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return states (history, d) and noise from `rng` by name, in the order of the record."""
        inputs = {"states": states.astype(np.float32)}
        for noise in self.record.inputs[1:]:
            draw = rng.standard_normal if noise.kind == "normal" else rng.random
            inputs[noise.name] = draw(noise.shape, dtype=np.float32)
        return inputs


class EncoderGraph(LoadedGraph[metadata.EncoderRecord]):
    """The graph of an encoder: its inputs are the low-dimensional values and a frame of each camera."""

    _record_class = metadata.EncoderRecord

    def encode(self, values: np.ndarray, frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Encode values (plain_dim,) and a frame (height, width, 3) of each camera.

        Returns features, (n,), and the visible fraction, (1,), or nothing, (0,).
        """
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            inputs = {metadata.VALUES: values.astype(np.float32)}
        for i, frame in enumerate(frames):
            (inputs[f"{metadata.FRAME}_{i}"],) = resize_frames(frame[None], self.record.size)
        if self.record.measures_shift:
            inputs[metadata.SHIFT] = np.zeros((len(frames), 2), np.float32)
        outputs = self.run(inputs)
        if self.record.measures_shift and (shift := np.rint(outputs[metadata.MEASURED])).any():
            outputs = self.run(inputs | {metadata.SHIFT: shift})
        return outputs[metadata.FEATURES], outputs.get(metadata.VISIBLE, np.zeros(0))


def _create_session(content: bytes, threads: int) -> Any:
    onnxruntime = import_optional("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = False  # measured: faster for small graphs, and memory use is constant
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise CheckpointError(f"onnxruntime cannot load the graph: {summarize_error(error)}") from None
