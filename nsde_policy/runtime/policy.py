"""An exported policy, asked for actions: the verbs of `NSDEPolicy` on numpy and onnxruntime."""

import threading
from collections import deque
from pathlib import Path
from typing import Self

import numpy as np

from nsde_policy.errors import ConfigError, GraphError, PolicyInputError
from nsde_policy.observation import as_observation
from nsde_policy.planner import Plan, PolicySpec
from nsde_policy.runtime.graph import Graph
from nsde_policy.runtime.onnx_file import LARGEST_BYTES
from nsde_policy.runtime.record import ACTIONS, PATH, GraphRecord


def first_action_file(path: Path) -> Path:
    """Where the graph for the first action alone stands, beside that of the chunk."""
    return path.with_name(f"{path.stem}.first{path.suffix}")


class RuntimePolicy:
    """A policy that `nsde-policy export --format onnx` wrote.

        policy = RuntimePolicy.load("policy.onnx")
        policy.reset(seed=0)
        action = policy.select_action(obs)        # once per control period

    Noise comes from numpy's generators: a seed gives the same plan here each time, and another one of the
    same law as the seed does on torch. Several threads may ask for plans.
    """

    def __init__(self, chunk: Graph, first: Graph | None = None, *, seed: int = 0) -> None:
        self.record: GraphRecord = chunk.record
        self._chunk, self._first = chunk, first
        self._lock = threading.Lock()
        self._queue: deque[np.ndarray] = deque()
        self._memory = self.spec.memory()
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

    @property
    def spec(self) -> PolicySpec:
        """Its sizes."""
        return self.record.spec

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the episode: call it whenever the world jumps. A seed makes what follows repeat itself."""
        self._queue.clear()
        self._memory = self.spec.memory()
        if seed is not None:
            self._rng = _generator(seed)

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        """The action for this control period, (act_dim,)."""
        self._memory.see(as_observation(obs, self.spec))
        if not self._queue:
            self._queue.extend(self._plan(self._memory.states(), self.spec.chunk, self._rng).actions)
        action = self._queue.popleft()
        self._memory.did(action)
        return action

    def predict_action_chunk(self, obs: np.ndarray, *, seed: int | None = None) -> np.ndarray:
        """Plan from one observation alone, as at the start of an episode, (chunk, act_dim)."""
        memory = self.spec.memory()
        memory.see(as_observation(obs, self.spec))
        rng = self._rng if seed is None else _generator(seed)
        return self._plan(memory.states(), self.spec.chunk, rng).actions

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""
        return self._plan(states, self._check_steps(steps), _generator(seed))

    def first_action(self, states: np.ndarray, *, seed: int) -> np.ndarray:
        """The first action of `plan_from` alone, (act_dim,); quick where it has a graph of its own."""
        action: np.ndarray = self.plan_from(states, steps=1, seed=seed).actions[0]
        return action

    def _plan(self, states: np.ndarray, steps: int, rng: np.random.Generator) -> Plan:
        graph = self._first if steps == 1 and self._first is not None else self._chunk
        seen = self._checked(states)
        with self._lock:
            graph.inputs["states"][:] = seen
            graph.draw(rng)
            graph.run()
            actions = graph.outputs[ACTIONS][:steps].astype(np.float64)
            path = graph.outputs[PATH][: steps + 1].astype(np.float64) if graph.record.foresees else None
        if not np.isfinite(actions).all():
            raise GraphError(f"the policy answered with actions that are not finite, from {seen.tolist()}")
        return Plan(actions=actions, states=path)

    def _checked(self, states: np.ndarray) -> np.ndarray:
        shape = self.record.inputs[0].shape
        with np.errstate(over="ignore"):  # what is too large for float32 is not finite, and refused as such
            given = np.asarray(states, dtype=np.float32)
        if given.shape != shape:
            raise PolicyInputError(f"states of this policy have shape {shape}, got {given.shape}")
        if not np.isfinite(given).all():
            raise PolicyInputError(f"states must be finite, got {given.tolist()}")
        return given

    def _check_steps(self, steps: int) -> int:
        if not 1 <= steps <= self.record.steps:
            raise ConfigError(
                f"a plan of this graph holds from 1 to {self.record.steps} actions, {steps} were asked for; "
                "export it with more --steps"
            )
        return steps


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise ConfigError(f"a seed must not be negative, got {seed}")
    return np.random.default_rng(seed)
