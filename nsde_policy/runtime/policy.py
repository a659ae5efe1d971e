"""An exported policy, asked for actions: the verbs of `NSDEPolicy` on numpy and onnxruntime."""

import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from nsde_policy.acting import ActingPolicy, whole, whole_seed
from nsde_policy.errors import ConfigError, GraphError
from nsde_policy.memory import Memory
from nsde_policy.planner import Plan
from nsde_policy.runtime.graph import Graph
from nsde_policy.runtime.onnx_file import LARGEST_BYTES
from nsde_policy.runtime.record import ACTIONS, PATH, STD, GraphRecord


def first_action_file(path: Path) -> Path:
    """Where the graph for the first action alone stands, beside that of the chunk."""
    return path.with_name(f"{path.stem}.first{path.suffix}")


class RuntimePolicy(ActingPolicy):
    """A policy that `nsde-policy export --format onnx` wrote.

        policy = RuntimePolicy.load("policy.onnx")
        policy.reset(seed=0)
        action = policy.select_action(obs)        # once per control period

    Noise comes from numpy's generators: a seed gives the same plan here each time, and another one of the
    same law as the seed does on torch. Several threads may ask for plans.
    """

    def __init__(self, chunk: Graph, first: Graph | None = None, *, seed: int = 0) -> None:
        super().__init__(chunk.record.spec, chunk.record.calibration)
        self.record: GraphRecord = chunk.record
        self._chunk, self._first = chunk, first
        self._lock = threading.Lock()
        self._rng = _generator(seed)

    @classmethod
    def load(
        cls, path: Path | str, *, seed: int = 0, threads: int = 1, largest_bytes: int = LARGEST_BYTES
    ) -> Self:
        """Load strictly; where NAME.first.onnx stands beside NAME.onnx, it answers for single actions."""
        path = Path(path)
        chunk = Graph.load(path, threads=threads, largest_bytes=largest_bytes)
        beside = first_action_file(path)
        if not beside.exists():
            return cls(chunk, seed=seed)
        first = Graph.load(beside, threads=threads, largest_bytes=largest_bytes)
        if first.record.steps != 1 or first.record.fingerprint != chunk.record.fingerprint:
            raise GraphError(f"{beside} is refused: it does not belong to {path.name}; export both again")
        return cls(chunk, first, seed=seed)

    def _seed(self, seed: int) -> None:
        self._rng = _generator(seed)

    def _next_actions(self, memory: Memory) -> np.ndarray:
        return self._plan(memory.states(), self.spec.chunk, self._rng).actions

    def predict_action_chunk(self, obs: Any, *, seed: int | None = None) -> np.ndarray:
        """Plan from one observation alone, as at the start of an episode, (chunk, act_dim)."""
        return self._first_actions(obs, seed)

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""
        return self._plan(states, self._check_steps(steps), _generator(seed))

    def first_action(self, states: np.ndarray, *, seed: int) -> np.ndarray:
        """The first action of `plan_from` alone, (act_dim,); quick where it has a graph of its own."""
        action: np.ndarray = self.plan_from(states, steps=1, seed=seed).actions[0]
        return action

    def _plan(self, states: np.ndarray, steps: int, rng: np.random.Generator) -> Plan:
        graph = self._first if steps == 1 and self._first is not None else self._chunk
        seen = self._checked_states(states)
        with self._lock:
            graph.inputs["states"][:] = seen
            graph.draw(rng)
            graph.run()
            actions = graph.outputs[ACTIONS][:steps].astype(np.float64)
            path = std = None
            if graph.record.foresees:
                path = graph.outputs[PATH][: steps + 1].astype(np.float64)
                std = graph.outputs[STD][:steps].astype(np.float64)
        if not np.isfinite(actions).all():
            raise GraphError(f"the policy answered with actions that are not finite, from {seen.tolist()}")
        return Plan(actions=actions, states=path, std=std)

    def _check_steps(self, steps: int) -> int:
        steps = whole(steps, "steps")
        if not 1 <= steps <= self.record.steps:
            raise ConfigError(
                f"a plan of this graph holds from 1 to {self.record.steps} actions, {steps} were asked for; "
                "export it with more --steps"
            )
        return steps


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole_seed(seed))
