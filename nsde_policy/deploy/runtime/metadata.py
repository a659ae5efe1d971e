"""Record of an exported graph: a JSON object in the metadata of the file."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from nsde_policy.config import BaseConfig, require
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import PolicySpec

GRAPH_FORMAT = 2
"""Version of exported files; other versions are rejected."""
RECORD_KEY = "nsde_policy"
"""Key of the record in the metadata."""
ACTIONS, PATH, STD = "actions", "path", "std"
"""Names of the outputs: actions (steps, act_dim); from methods that predict states also the path
(steps + 1, d) and σ of each action (steps, act_dim)."""
MAX_INPUT_SIZE = 1 << 24
"""Largest number of elements of all inputs together, and of all outputs."""


@dataclass(frozen=True)
class GraphInput(BaseConfig):
    """One float32 input of the graph."""

    name: str
    kind: Literal["states", "normal", "uniform"]
    """Observed states, standard normal numbers, or uniform numbers in [0, 1)."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GraphRecord(BaseConfig):
    """Inputs, outputs and origin of an exported graph."""

    format: int
    spec: PolicySpec
    """Sizes of the policy; its longest chunk is `steps`."""
    steps: Annotated[int, Meta(ge=1, le=10_000)]
    """Number of actions of a plan."""
    foresees: bool
    """Whether the outputs include `path` and `std`."""
    calibration: Calibration
    """Limits and statistics for a control session."""
    inputs: tuple[GraphInput, ...]
    """`states`, (history, obs_dim + act_dim), newest first; then noise in the order it is drawn."""
    fingerprint: str
    """SHA-256 of the weights of the exported run."""
    graph_sha256: str
    """SHA-256 of the graph in the file, to detect damage; empty for pt2, which has checksums."""
    made_with: tuple[str, ...]
    """Versions of the packages that exported it."""

    def __post_init__(self) -> None:
        problem = f"format {self.format}, this version reads {GRAPH_FORMAT}; export it again"
        require(self, self.format == GRAPH_FORMAT, problem)
        super().__post_init__()
        self.calibration.check(self.spec)
        d = self.spec.obs_dim + self.spec.act_dim
        states = GraphInput("states", "states", (self.spec.history, d))
        problem = f"the first input must be {states}, got {self.inputs[:1]}"
        require(self, self.inputs[:1] == (states,), problem)
        kinds = [given.kind for given in self.inputs[1:]]
        require(self, "states" not in kinds, "only the first input may be states")
        for given in self.inputs:
            valid = min(given.shape, default=0) >= 0 and math.prod(given.shape) <= MAX_INPUT_SIZE
            require(self, valid, f"input {given.name!r:.40} has an invalid shape {given.shape!s:.80}")
        for shapes in ([given.shape for given in self.inputs], self.outputs.values()):
            size = sum(map(math.prod, shapes))
            require(self, size <= MAX_INPUT_SIZE, f"inputs or outputs of {size} numbers are too large")
        names = [given.name for given in self.inputs]
        require(self, len(set(names)) == len(names), f"duplicate input names: {names}")
        fits = self.spec.longest_chunk == self.steps and 1 <= self.spec.chunk <= self.steps
        require(self, fits, f"the chunk sizes of the spec do not fit a graph of {self.steps} actions")

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the outputs."""
        shapes: dict[str, tuple[int, ...]] = {ACTIONS: (self.steps, self.spec.act_dim)}
        if self.foresees:
            shapes[PATH] = (self.steps + 1, self.spec.obs_dim + self.spec.act_dim)
            shapes[STD] = (self.steps, self.spec.act_dim)
        return shapes
