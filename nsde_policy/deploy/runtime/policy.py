"""An exported policy with the methods of `Policy`, on numpy and onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, TypeVar

import numpy as np

from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.interface.planner import Plan, check_plan
from nsde_policy.policy.base_policy import BasePolicy, require_int, require_seed

from .graph import EncoderGraph, Graph
from .metadata import ACTIONS, CANDIDATES, PATH, STD, EncoderRecord, GraphRecord

AnyGraph = TypeVar("AnyGraph", EncoderGraph, Graph)


def find_part(path: Path, part: Literal["encoder", "select"]) -> Path:
    """Return the path of another graph of a policy, next to the graph of the plan."""
    return path.with_name(f"{path.stem}.{part}{path.suffix}")


class RuntimePolicy(BasePolicy):
    """A policy written by `nsde-policy export`.

        policy = RuntimePolicy.load("policy.onnx")
        policy.reset(seed=0)
        action = policy.select_action(obs)        # once per policy period

    Noise comes from numpy's generators: plans are reproducible with a seed, but differ from the plans of
    `Policy` with the same seed. It is thread-safe.
    """

    def __init__(
        self, graph: Graph, encoder: EncoderGraph | None, selecting: Graph | None, *, seed: int = 0
    ) -> None:
        super().__init__(graph.record.spec, graph.record.calibration, seed=seed)
        self.record: GraphRecord = graph.record
        self._graph, self._encoder, self._selecting = graph, encoder, selecting

    @classmethod
    def load(cls, path: Path | str, *, seed: int = 0, threads: int = 1) -> Self:
        """Load and validate a file, and NAME.encoder.onnx and NAME.select.onnx if the policy has them."""
        path = Path(path)
        graph = Graph.load(path, threads=threads)
        if graph.record.candidates > 1:
            raise CheckpointError(f"{path} compares plans of a policy; load the policy, NAME.onnx")
        encoder = selecting = None
        if graph.record.spec.cameras:
            encoder = _load_part(path, "encoder", EncoderGraph, graph.record, threads)
        if graph.record.selection is not None:
            selecting = _load_part(path, "select", Graph, graph.record, threads)
        return cls(graph, encoder, selecting, seed=seed)

    @property
    def candidates(self) -> int:
        """Plans that are compared before one is executed; 1 without plan selection."""
        return 1 if self._selecting is None else self._selecting.record.candidates

    def encode_frames(
        self, values: np.ndarray, frames: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode frames of all cameras, as `Planner.encode_frames` says."""
        if self._encoder is None:
            return super().encode_frames(values, frames)
        rows = [self._encoder.encode(*row) for row in zip(values, zip(*frames, strict=True), strict=True)]
        features, visible = (np.stack(part).astype(np.float64) for part in zip(*rows, strict=True))
        return features, visible[:, 0] if visible.size else None

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan.

        The number of compared plans is fixed: with fewer `candidates`, one plan is sampled.
        """
        longest = self.record.steps
        if not 1 <= (steps := require_int(steps, "steps")) <= longest:
            raise ConfigError(
                f"need steps from 1 to {longest} for this graph, got {steps}; export more --steps"
            )
        checked, rule = self._check_states(states), self.record.selection
        rng = np.random.default_rng(require_seed(seed))
        graph, most = self._graph, self.candidates if candidates is None else candidates
        if self._selecting and rule and most >= self.candidates and rule.compares(checked[0]):
            graph = self._selecting
        outputs, path, std, compared = graph.run(graph.make_inputs(checked, rng)), None, None, None
        if graph.record.foresees:
            path, std = outputs[PATH][: steps + 1], outputs[STD][:steps]
        if graph.record.candidates > 1:
            compared = outputs[CANDIDATES][:, : steps + 1]
        return check_plan(Plan(outputs[ACTIONS][:steps], path, std, compared), self.spec)


def _load_part(
    path: Path, part: Literal["encoder", "select"], kind: type[AnyGraph], plan: GraphRecord, threads: int
) -> AnyGraph:
    """Load another graph of the policy in `path`, and check that it belongs to it."""
    file = find_part(path, part)
    if not file.exists():
        raise CheckpointError(f"no {file}: copy it to the folder of {path.name}")
    graph = kind.load(file, threads=threads)
    record, spec = graph.record, plan.spec
    if isinstance(record, EncoderRecord):
        sizes = (record.cameras, record.plain_dim, record.image_features)
        fits = sizes == (spec.cameras, spec.plain_dim, spec.image_features)
    else:
        fits = record.candidates > 1 and (record.spec, record.selection) == (spec, plan.selection)
    if not fits or record.fingerprint != plan.fingerprint:
        raise CheckpointError(f"{file} does not belong to {path.name}; export both again")
    return graph
