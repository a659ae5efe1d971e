"""An exported policy with the methods of `Policy`, on numpy and onnxruntime."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from nsde_policy.deploy.runtime.graph import EncoderGraph, Graph
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD, GraphRecord
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.inference.base import BasePolicy, require_int, require_seed
from nsde_policy.planner.checks import check_plan
from nsde_policy.planner.history import History
from nsde_policy.planner.interface import Plan


def encoder_file(path: Path) -> Path:
    """Return the path of the encoder's graph, next to the graph of the plan."""
    return path.with_name(f"{path.stem}.encoder{path.suffix}")


class RuntimePolicy(BasePolicy[np.random.Generator]):
    """A policy written by `nsde-policy export`.

        policy = RuntimePolicy.load("policy.onnx")
        policy.reset(seed=0)
        action = policy.select_action(obs)        # once per control period

    Noise comes from numpy's generators: plans are reproducible with a seed, but differ from those of torch
    with the same seed. It is thread-safe.
    """

    def __init__(self, graph: Graph, encoder: EncoderGraph | None = None, *, seed: int = 0) -> None:
        super().__init__(graph.record.spec, graph.record.calibration, seed=seed)
        self.record: GraphRecord = graph.record
        self._graph, self._encoder = graph, encoder
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path | str, *, seed: int = 0, threads: int = 1) -> Self:
        """Load and validate a file; with cameras also NAME.encoder.onnx next to it, which encodes frames."""
        path = Path(path)
        graph, encoder = Graph.load(path, threads=threads), None
        spec = graph.record.spec
        if spec.cameras:
            encoder_path = encoder_file(path)
            if not encoder_path.exists():
                raise CheckpointError(f"no {encoder_path}: copy it to the folder of {path.name}")
            encoder = EncoderGraph.load(encoder_path, threads=threads)
            found = encoder.record
            fits = (found.cameras, found.plain_dim, found.image_features) == (
                spec.cameras,
                spec.plain_dim,
                spec.image_features,
            )
            if not fits or found.fingerprint != graph.record.fingerprint:
                raise CheckpointError(f"{encoder_path} does not belong to {path.name}; export both again")
        return cls(graph, encoder, seed=seed)

    def _encode_frames(self, values: np.ndarray, frames: list[np.ndarray]) -> np.ndarray:
        if self._encoder is None:
            return super()._encode_frames(values, frames)
        with self._lock:
            rows = [self._encoder.encode(*row) for row in zip(values, zip(*frames, strict=True), strict=True)]
        return np.stack(rows).astype(np.float64)

    def _make_generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def _draw_chunks(self, histories: Sequence[History], generator: np.random.Generator) -> list[np.ndarray]:
        return [self._plan(each.states(), self.spec.chunk, generator).actions for each in histories]

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""
        longest = self.record.steps
        if not 1 <= (steps := require_int(steps, "steps")) <= longest:
            raise ConfigError(
                f"need steps from 1 to {longest} for this graph, got {steps}; export more --steps"
            )
        return self._plan(states, steps, self._make_generator(require_seed(seed)))

    def _plan(self, states: np.ndarray, steps: int, rng: np.random.Generator) -> Plan:
        graph, checked = self._graph, self._check_states(states)
        with self._lock:
            graph.inputs["states"][:] = checked
            graph.draw(rng)
            graph.run()
            path = std = None
            if graph.record.foresees:
                path, std = graph.outputs[PATH][: steps + 1], graph.outputs[STD][:steps]
            return check_plan(Plan(graph.outputs[ACTIONS][:steps], path, std), self.spec)
