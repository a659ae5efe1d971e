"""Records of exported graphs: a JSON object in the metadata of each ONNX file, with the file's checksum."""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Natural
from nsde_policy.config import BaseConfig
from nsde_policy.core.spec import LARGEST_SIDE, LARGEST_SIZE, CameraSpec
from nsde_policy.data.goal import GATE, Goal
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import parse_json
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import PolicySpec

GRAPH_FORMAT = 3
"""Version of exported files; others are refused."""
RECORD_KEY = "nsde_policy"
ACTIONS, PATH, STD, CANDIDATES = "actions", "path", "std", "candidates"
"""Names of the outputs: actions (steps, act_dim); from methods that predict states also the path
(steps + 1, d) and σ of each action (steps, act_dim); from a graph that compares plans also the states to
which they lead (candidates, steps + 1, d)."""
VALUES, FRAME, SHIFT = "values", "frame", "shift"
FEATURES, MEASURED, VISIBLE = "codes", "measured_shift", "visible"
"""Names of the encoder's inputs and outputs in files; frames are `frame_0`, `frame_1` and so on."""
NO_CHECKSUM = "0" * 64
"""Stands for the checksum of a file while it is computed."""
CHECKSUM = re.compile(rb'"sha256": "([0-9a-f]{64})"')

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
    sha256: str = NO_CHECKSUM
    """SHA-256 of the file with zeros in place of this number, to detect damage."""
    made_with: tuple[str, ...] = ()
    """Versions of the packages that exported it."""


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


def parse_record(text: str, record_class: type[AnyRecord]) -> AnyRecord:
    """Parse the record of an exported file; raise `CheckpointError` if it is invalid."""
    try:
        values = parse_json(text, name="the metadata", error=ConfigError)
        if values.get("format") != GRAPH_FORMAT:
            raise ConfigError(f"format {values.get('format')}, this version reads {GRAPH_FORMAT}")
        return record_class.from_dict(values)
    except (ConfigError, TypeError, ValueError) as error:
        if record_class is GraphRecord and '"measures_shift"' in text:
            raise CheckpointError("it is the encoder of a policy; load the policy, NAME.onnx") from None
        raise CheckpointError(f"its metadata is invalid: {error}; export it again") from None


def add_checksum(content: bytes) -> bytes:
    """Write the checksum of a file in place of the zeros in its record."""
    checksum = hashlib.sha256(content).hexdigest()
    return CHECKSUM.sub(f'"sha256": "{checksum}"'.encode(), content, count=1)


def check_checksum(content: bytes) -> None:
    """Raise `CheckpointError` if a file has been damaged since it was exported, or is of another kind."""
    match = CHECKSUM.search(content)
    if match is None:
        raise CheckpointError(
            f"it is no graph of format {GRAPH_FORMAT}, or it is damaged; write it with nsde-policy export"
        )
    unsigned = content[: match.start(1)] + NO_CHECKSUM.encode() + content[match.end(1) :]
    if hashlib.sha256(unsigned).hexdigest() != match[1].decode():
        raise CheckpointError("its checksum is wrong: damaged or changed; export it again")
