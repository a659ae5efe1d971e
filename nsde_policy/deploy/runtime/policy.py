"""An exported policy with the methods of `Policy`, on numpy and onnxruntime."""

import threading
from pathlib import Path
from typing import Self

import numpy as np

from nsde_policy.deploy.runtime.graph import MAX_GRAPH_BYTES, EncoderGraph, Graph
from nsde_policy.deploy.runtime.metadata import ACTIONS, PATH, STD, GraphRecord
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.inference.base import NumpyPolicy, require_int, require_seed
from nsde_policy.planner.history import History
from nsde_policy.planner.spec import Plan, check_finite_plan


def one_action_file(path: Path) -> Path:
    """Return the path of the graph that plans one action, next to the graph of the chunk."""
    return path.with_name(f"{path.stem}.first{path.suffix}")


def encoder_file(path: Path) -> Path:
    """Return the path of the encoder's graph, beside that of the chunk."""
    return path.with_name(f"{path.stem}.encoder{path.suffix}")


class RuntimePolicy(NumpyPolicy):
    """A policy written by `nsde-policy export --format onnx`.

        policy = RuntimePolicy.load("policy.onnx")
        policy.reset(seed=0)
        action = policy.select_action(obs)        # once per control period

    Noise comes from numpy's generators: plans are reproducible with a seed, but differ from those of torch
    with the same seed. It is thread-safe.
    """

    def __init__(
        self,
        chunk: Graph,
        first: Graph | None = None,
        encoder: EncoderGraph | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(chunk.record.spec, chunk.record.calibration)
        self.record: GraphRecord = chunk.record
        self._chunk, self._first, self._encoder = chunk, first, encoder
        self._lock = threading.Lock()
        self._reseed(seed)

    @classmethod
    def load(
        cls, path: Path | str, *, seed: int = 0, threads: int = 1, max_bytes: int = MAX_GRAPH_BYTES
    ) -> Self:
        """Load and validate a file and those that belong to it.

        NAME.first.onnx beside it, if any, makes plans of one action; NAME.encoder.onnx encodes camera frames.
        """
        path, options = Path(path), {"threads": threads, "max_bytes": max_bytes}
        chunk = Graph.load(path, **options)
        first = encoder = None
        if (first_path := one_action_file(path)).exists():
            first = Graph.load(first_path, **options)
            _check_origin(first_path, first, path, chunk, fits=first.record.steps == 1)
        if cameras := chunk.record.spec.cameras:
            encoder_path, spec = encoder_file(path), chunk.record.spec
            if not encoder_path.exists():
                raise CheckpointError(f"no {encoder_path}: copy {encoder_path.name} beside {path.name}")
            encoder = EncoderGraph.load(encoder_path, **options)
            found = encoder.record
            fits = (found.cameras, found.plain_dim, found.codes) == (cameras, spec.plain_dim, spec.codes)
            _check_origin(encoder_path, encoder, path, chunk, fits=fits)
        return cls(chunk, first, encoder, seed=seed)

    def _encode_frames(self, values: np.ndarray, frames: list[np.ndarray]) -> np.ndarray:
        if self._encoder is None:
            return super()._encode_frames(values, frames)
        with self._lock:
            rows = [self._encoder.encode(*row) for row in zip(values, zip(*frames, strict=True), strict=True)]
        return np.stack(rows).astype(np.float64)

    def _plan_with(self, history: History, rng: np.random.Generator) -> np.ndarray:
        return self._plan(history.states(), self.spec.chunk, rng).actions

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""
        longest = self.record.steps
        if not 1 <= (steps := require_int(steps, "steps")) <= longest:
            raise ConfigError(
                f"need steps from 1 to {longest} for this graph, got {steps}; export more --steps"
            )
        return self._plan(states, steps, np.random.default_rng(require_seed(seed)))

    def first_action(self, states: np.ndarray, *, seed: int) -> np.ndarray:
        """Plan the first action only, (act_dim,); faster if it has its own graph."""
        action: np.ndarray = self.plan_from(states, steps=1, seed=seed).actions[0]
        return action

    def _plan(self, states: np.ndarray, steps: int, rng: np.random.Generator) -> Plan:
        graph = self._first if steps == 1 and self._first is not None else self._chunk
        checked = self._check_states(states)
        with self._lock:
            graph.inputs["states"][:] = checked
            graph.draw(rng)
            graph.run()
            actions = graph.outputs[ACTIONS][:steps].astype(np.float64)
            path = std = None
            if graph.record.foresees:
                path = graph.outputs[PATH][: steps + 1].astype(np.float64)
                std = graph.outputs[STD][:steps].astype(np.float64)
        return check_finite_plan(Plan(actions=actions, states=path, std=std))


def _check_origin(
    path: Path, graph: Graph | EncoderGraph, chunk_path: Path, chunk: Graph, *, fits: bool
) -> None:
    """Raise `CheckpointError` if a graph is not of the same export as that of the chunk."""
    if not fits or graph.record.fingerprint != chunk.record.fingerprint:
        raise CheckpointError(f"{path} does not belong to {chunk_path.name}; export both again")
