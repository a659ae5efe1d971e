"""What an exported graph says of itself: a JSON object in the metadata of the file."""

import math
from dataclasses import dataclass
from typing import Literal

from nsde_policy.config import BaseConfig, require
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import PolicySpec

FORMAT = 2
"""Version of exported files; another one is refused."""
KEY = "nsde_policy"
"""Name of the metadata entry that holds the record."""
ACTIONS, PATH, STD = "actions", "path", "std"
"""Names of the outputs: (steps, act_dim); for methods that foresee states also (steps + 1, d) and σ of each
action, (steps, act_dim)."""
MOST_NUMBERS = 1 << 24
"""Most numbers of one input: a file that asks for more is not one of ours."""


@dataclass(frozen=True)
class GraphInput(BaseConfig):
    """One input of the graph, float32."""

    name: str
    kind: Literal["states", "normal", "uniform"]
    """What belongs there: what was seen; standard normal numbers; numbers in [0, 1)."""
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        small = all(size >= 0 for size in self.shape) and math.prod(self.shape) <= MOST_NUMBERS
        require(self, small, f"{self.name!r} cannot have the shape {self.shape}")


@dataclass(frozen=True)
class GraphRecord(BaseConfig):
    """A policy as one graph: states and noise in, a chunk of actions out."""

    format: int
    spec: PolicySpec
    """Sizes of the policy; its longest chunk is what the graph computes."""
    steps: int
    """Actions the graph computes."""
    foresees: bool
    """Whether it also answers with the states it expects, `path`, and how unsure each action is, `std`."""
    calibration: Calibration
    """What a control loop takes from the demonstrations."""
    inputs: tuple[GraphInput, ...]
    """In the order the noise is drawn; the first is `states`, (history, obs_dim + act_dim), newest first."""
    fingerprint: str
    """SHA-256 of the weights of the run it was exported from."""
    graph_sha256: str
    """SHA-256 of the graph in the file, so that damage is seen; empty for formats that check themselves."""
    made_with: tuple[str, ...]
    """Packages and versions."""

    def __post_init__(self) -> None:
        require(
            self, self.format == FORMAT, f"format {self.format}, this version reads {FORMAT}; export it again"
        )
        self.calibration.check(self.spec)
        d = self.spec.obs_dim + self.spec.act_dim
        states = GraphInput("states", "states", (self.spec.history, d))
        require(
            self, self.inputs[:1] == (states,), f"the first input must be {states}, got {self.inputs[:1]}"
        )
        kinds = [given.kind for given in self.inputs[1:]]
        require(self, "states" not in kinds, "only the first input may be states")
        names = [given.name for given in self.inputs]
        require(self, len(set(names)) == len(names), f"two inputs share a name: {names}")
        require(self, 1 <= self.steps <= 10_000, f"need 1 <= steps <= 10000, got {self.steps}")
        held = self.spec.longest_chunk == self.steps and 1 <= self.spec.chunk <= self.steps
        require(self, held, f"a graph of {self.steps} actions cannot have the chunk sizes of its spec")

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each output."""
        shapes: dict[str, tuple[int, ...]] = {ACTIONS: (self.steps, self.spec.act_dim)}
        if self.foresees:
            shapes[PATH] = (self.steps + 1, self.spec.obs_dim + self.spec.act_dim)
            shapes[STD] = (self.steps, self.spec.act_dim)
        return shapes
