"""One exported graph in onnxruntime: buffers are made once, a call allocates nothing that it keeps."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nsde_policy.deploy.runtime.metadata import GraphRecord
from nsde_policy.deploy.runtime.onnx_file import LARGEST_BYTES, checked_record, read_file
from nsde_policy.errors import GraphError, MissingDependencyError

Buffers = dict[str, np.ndarray]


class Graph:
    """States and noise are written into `inputs`, by name; `run` leaves the answer in `outputs`.

    Not for two threads at once.
    """

    def __init__(self, content: bytes, *, threads: int = 1) -> None:
        self.record: GraphRecord = checked_record(content)
        self.inputs: Buffers = {given.name: np.zeros(given.shape, np.float32) for given in self.record.inputs}
        self.outputs: Buffers = {
            name: np.zeros(shape, np.float32) for name, shape in self.record.outputs.items()
        }
        self._session = _session(content, threads)
        self._check_signature()
        self._binding = self._session.io_binding()
        for name, array in self.inputs.items():
            self._binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in self.outputs.items():
            self._binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._probe()

    @classmethod
    def load(cls, path: Path, *, threads: int = 1, largest_bytes: int = LARGEST_BYTES) -> "Graph":
        """Read, check, and try it once."""
        content = read_file(path, largest_bytes=largest_bytes)
        try:
            return cls(content, threads=threads)
        except GraphError as error:
            raise GraphError(f"{path} is refused: {error}") from None

    def run(self) -> None:
        """From `inputs` to `outputs`."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise GraphError(f"onnxruntime could not run it: {_line(error)}") from None

    def draw(self, rng: np.random.Generator) -> None:
        """Fill every noise input from `rng`, in the order of the record."""
        for given in self.record.inputs[1:]:
            if given.kind == "normal":
                rng.standard_normal(dtype=np.float32, out=self.inputs[given.name])
            else:
                rng.random(dtype=np.float32, out=self.inputs[given.name])

    def _check_signature(self) -> None:
        asked = {given.name: given.shape for given in self.record.inputs}
        for what, nodes, said in (
            ("inputs", self._session.get_inputs(), asked),
            ("outputs", self._session.get_outputs(), self.record.outputs),
        ):
            found = {node.name: tuple(node.shape) for node in nodes}
            if found != said or any(node.type != "tensor(float)" for node in nodes):
                raise GraphError(f"the {what} of its graph are {found}, its metadata says {said}")

    def _probe(self) -> None:
        """A call in the middle of the demonstrations' range, without noise, must give finite numbers."""
        spec = self.record.spec
        self.inputs["states"][:] = 0.5 * (np.array(spec.low) + np.array(spec.high))
        self.run()
        for name, array in self.outputs.items():
            if not np.isfinite(array).all():
                raise GraphError(f"a trial call answers with {name} that are not finite")


def _session(content: bytes, threads: int) -> Any:
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = False  # measured: faster for small graphs, and memory stays flat
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise GraphError(f"onnxruntime cannot build it: {_line(error)}") from None


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError.extra("onnxruntime", "onnx") from None
    module: ModuleType = onnxruntime
    return module


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
