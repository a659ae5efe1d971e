"""Records of exported graphs: a JSON object in the metadata of each ONNX file, and the checksum of its graph.

An ONNX file is a protocol buffer. Robots load it without the packages `onnx` and `protobuf`, so its top level
is read here; onnxruntime checks everything inside the graph.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Natural
from nsde_policy.config import BaseConfig, require
from nsde_policy.core.spec import LARGEST_SIDE, LARGEST_SIZE, CameraSpec
from nsde_policy.data.goal import GATE, Goal
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import PolicySpec

GRAPH_FORMAT = 2
"""Version of exported files; other versions are rejected."""
RECORD_KEY = "nsde_policy"
ACTIONS, PATH, STD, CANDIDATES = "actions", "path", "std", "candidates"
"""Names of the outputs: actions (steps, act_dim); from methods that predict states also the path
(steps + 1, d) and σ of each action (steps, act_dim); from a graph that compares plans also the states to
which they lead (candidates, steps + 1, d)."""
VALUES, FRAME, SHIFT = "values", "frame", "shift"
FEATURES, MEASURED, VISIBLE = "codes", "measured_shift", "visible"
"""Names of the encoder's inputs and outputs in files; frames are `frame_0`, `frame_1` and so on."""
GRAPH_FIELD, METADATA_FIELD = 7, 14
"""Numbers of fields in the protocol buffer of an ONNX file."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class GraphInput(BaseConfig):
    """One float32 input of the graph."""

    name: str
    kind: Literal["states", "normal", "uniform"]
    """Observed states, standard normal numbers, or uniform numbers in [0, 1)."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SelectionRecord(BaseConfig):
    """Where a policy compares plans, as numbers of `data.goal.Goal`."""

    kind: Literal["goal", "support"]
    """Rule of the selection: near the goal, or everywhere."""
    columns: tuple[Natural, ...]
    goal: tuple[float, ...]
    whitening: tuple[tuple[float, ...], ...]
    angles: tuple[Natural, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        size, directions = len(self.columns), {len(row) for row in self.whitening}
        fits = len(self.goal) == len(self.whitening) == size and len(directions) == min(size, 1)
        fits = fits and 0 not in directions and max(self.angles, default=-1) < size
        require(self, fits and (size > 0 or self.kind != "goal"), "the sizes of the goal do not fit together")

    def compares(self, state: np.ndarray) -> bool:
        """Return whether plans are compared in a state (d,)."""
        goal = Goal(self.columns, np.array(self.goal), np.array(self.whitening), self.angles)
        return self.kind == "support" or bool(goal.distance(state[None])[0] < GATE)


@dataclass(frozen=True, kw_only=True)
class FileRecord(BaseConfig):
    """Origin of an exported graph; subclasses add its inputs and outputs."""

    format: int = GRAPH_FORMAT
    fingerprint: str = ""
    """SHA-256 of the weights of the exported run, the same in all files of one export."""
    graph_sha256: str = ""
    """SHA-256 of the graph in the file, to detect damage."""
    made_with: tuple[str, ...] = ()
    """Versions of the packages that exported it."""

    def __post_init__(self) -> None:
        problem = f"format {self.format}, this version reads {GRAPH_FORMAT}"
        require(self, self.format == GRAPH_FORMAT, problem)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class GraphRecord(FileRecord):
    """Inputs, outputs and origin of the exported plan of a policy."""

    spec: PolicySpec
    """Sizes of the policy; its longest chunk is `steps`."""
    steps: Annotated[int, Meta(ge=1, le=10_000)]
    foresees: bool
    """Whether the outputs include `path` and `std`."""
    calibration: Calibration
    """Limits and statistics for a control session."""
    inputs: tuple[GraphInput, ...]
    """`states`, (history, obs_dim + act_dim), newest first; then noise in the order of sampling."""
    selection: SelectionRecord | None = None
    """Where plans are compared, by the graph NAME.select.onnx; None for a policy that samples one plan."""
    candidates: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Number of plans that this graph compares."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calibration.check(self.spec)
        states = GraphInput("states", "states", (self.spec.history, self.spec.dim))
        problem = f"the first input must be {states}, got {self.inputs[:1]}"
        require(self, self.inputs[:1] == (states,), problem)
        fits = self.spec.longest_chunk == self.steps and 1 <= self.spec.chunk <= self.steps
        require(self, fits, f"the chunk sizes of the spec do not fit a graph of {self.steps} actions")
        columns = () if self.selection is None else self.selection.columns
        fits = max(columns, default=-1) < self.spec.obs_dim
        require(self, fits, f"the goal has columns {columns} of {self.spec.obs_dim} observation columns")

    @property
    def input_shapes(self) -> Shapes:
        """Names and shapes of the inputs, float32."""
        return {graph_input.name: graph_input.shape for graph_input in self.inputs}

    @property
    def outputs(self) -> Shapes:
        """Names and shapes of the outputs."""
        shapes: Shapes = {ACTIONS: (self.steps, self.spec.act_dim)}
        if self.foresees:
            shapes[PATH] = (self.steps + 1, self.spec.dim)
            shapes[STD] = (self.steps, self.spec.act_dim)
        if self.candidates > 1:
            shapes[CANDIDATES] = (self.candidates, self.steps + 1, self.spec.dim)
        return shapes

    def describe(self) -> str:
        """Say how many actions the graph plans."""
        selected = f", selected from {self.candidates} candidates" if self.candidates > 1 else ""
        return f"{self.steps} actions{selected}"


@dataclass(frozen=True, kw_only=True)
class EncoderRecord(FileRecord):
    """Inputs, outputs and origin of the exported encoder of a policy with cameras."""

    cameras: tuple[CameraSpec, ...]
    """Cameras of the policy, in the order of the frames."""
    plain_dim: Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
    """Number of low-dimensional values of an observation."""
    image_features: Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
    """Number of features of the frames of all cameras."""
    size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]
    """Height and width of the frames that the graph takes; others are resized first."""
    measures_shift: bool
    """Whether it measures how far each camera is shifted: it then takes `shift`, whole pixels to undo, and
    returns `measured_shift`. A second call undoes what the first has measured, unless that rounds to 0."""
    reports_visible: bool = False
    """Whether it returns the fraction of the features that are likely to be right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, bool(self.cameras), "an encoder needs cameras, got none")

    @property
    def input_shapes(self) -> Shapes:
        """Names and shapes of the inputs; frames are uint8, all others float32."""
        shapes: Shapes = {VALUES: (self.plain_dim,)}
        if self.measures_shift:
            shapes[SHIFT] = (len(self.cameras), 2)
        return shapes | {f"{FRAME}_{i}": (self.size, self.size, 3) for i in range(len(self.cameras))}

    @property
    def outputs(self) -> Shapes:
        """Names and shapes of the outputs."""
        shapes: Shapes = {FEATURES: (self.image_features,)}
        shapes |= {MEASURED: (len(self.cameras), 2)} if self.measures_shift else {}
        return shapes | ({VISIBLE: (1,)} if self.reports_visible else {})

    def describe(self) -> str:
        """Say how many cameras the graph encodes."""
        return f"features of {len(self.cameras)} camera{'s' if len(self.cameras) > 1 else ''}"


AnyRecord = TypeVar("AnyRecord", GraphRecord, EncoderRecord)


def read_record(content: bytes, record_class: type[AnyRecord]) -> AnyRecord:
    """Return the record of an exported file; raise `CheckpointError` if it has none, or is damaged."""
    text = None
    for field, value in _read_fields(memoryview(content)):
        if field == METADATA_FIELD:
            entry = dict(_read_fields(value))
            if bytes(entry.get(1, b"")) == RECORD_KEY.encode():
                text = bytes(entry.get(2, b"")).decode(errors="replace")
    if text is None:
        raise CheckpointError(f"it has no {RECORD_KEY!r} metadata; write it with nsde-policy export")
    try:
        record = record_class.from_json(text)
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        if record_class is GraphRecord and '"measures_shift"' in text:
            raise CheckpointError("it is the encoder of a policy; load the policy, NAME.onnx") from None
        raise CheckpointError(f"its metadata is invalid: {error}; export it again") from None
    if graph_sha256(content) != record.graph_sha256:
        raise CheckpointError("its checksum is wrong: damaged or changed; export it again")
    return record


def graph_sha256(content: bytes) -> str:
    """Compute the SHA-256 of the graph in an ONNX file."""
    graphs = [value for field, value in _read_fields(memoryview(content)) if field == GRAPH_FIELD]
    if len(graphs) != 1:
        raise CheckpointError(f"it contains {len(graphs)} graphs, an exported policy has one")
    return hashlib.sha256(graphs[0]).hexdigest()


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field of a protocol buffer that holds bytes or a message.

    All other fields of a model, and of an entry of its metadata, are numbers of variable length.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if key & 7 == 0:
            continue
        if key & 7 != 2:
            raise CheckpointError("it is not an ONNX file")
        if size > len(message) - at:
            raise CheckpointError(f"it is truncated: a field has {size} bytes, {len(message) - at} are left")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    value = 0
    for i in range(10):
        if at + i >= len(message):
            raise CheckpointError("it is truncated within a number")
        value |= (message[at + i] & 0x7F) << (7 * i)
        if message[at + i] < 0x80:
            return value, at + i + 1
    raise CheckpointError("it is not an ONNX file: a number is too long")
