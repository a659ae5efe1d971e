"""Export a policy: trace it, compare the graph with the policy, and only then write the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from nsde_policy import __version__
from nsde_policy.config import Sampling
from nsde_policy.deploy.export.encoder import build_encoder_graph, measure_code_parity
from nsde_policy.deploy.export.onnx_writer import OPSET, build_file, check_packages
from nsde_policy.deploy.export.parity import measure_difference
from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.graph import EncoderGraph, Graph
from nsde_policy.deploy.runtime.metadata import (
    ACTIONS,
    GRAPH_FORMAT,
    PATH,
    STD,
    EncoderRecord,
    GraphRecord,
)
from nsde_policy.deploy.runtime.policy import encoder_file
from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import fingerprint

PARITY_TOLERANCE = 1e-5
"""Largest allowed difference, in ranges of the demonstrations."""
STATE_MARGIN = 0.1
"""States are drawn from the demonstrated range, widened by this fraction on both sides."""


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written, and its difference from the policy."""

    path: Path
    bytes: int
    record: GraphRecord | EncoderRecord
    difference: float
    """Largest difference from the policy, in ranges of the demonstrations."""
    cases: int
    """Number of random inputs for which they were compared."""

    def as_text(self) -> str:
        """Format as one line for the command line."""
        return (
            f"wrote {self.path}: {self.record.describe()}, {self.bytes / 1e6:.2f} MB; differs from the "
            f"policy by at most {self.difference:.1e} ranges in {self.cases} cases"
        )


def export_policy(
    policy: Policy,
    out: Path,
    *,
    steps: int | None = None,
    sampling: Sampling | None = None,
    cases: int = 256,
) -> list[ExportedFile]:
    """Write the plan of a policy as one ONNX graph, and the encoder of its camera frames as another.

    Args:
        policy: A trained policy.
        out: NAME.onnx; the encoder is written to NAME.encoder.onnx in the same folder.
        steps: Actions per plan; the policy's chunk by default.
        sampling: Replaces the policy's sampling settings.
        cases: Random inputs for which each graph is compared with the policy.

    Raises:
        NsdePolicyError: If the policy cannot be traced or the graph differs from it; nothing is written then.
    """
    check_packages()
    check_writable(out)
    if out.suffix != ".onnx":
        raise ConfigError(f"the output file must be NAME.onnx, got {out}")
    if cases < 1:
        raise ConfigError(f"need at least 1 case to compare, got {cases}")
    tracer = PlanTracer(policy, policy.chunk if steps is None else steps, sampling)
    content = _build_plan_graph(policy, tracer)
    graph = Graph(content)
    difference = measure_parity(tracer, graph, cases)
    files = [(content, ExportedFile(out, len(content), graph.record, difference, cases))]
    if policy.encoder is not None:
        content = build_encoder_graph(
            policy.encoder,
            policy.spec,
            fingerprint=_find_fingerprint(policy),
            made_with=_find_versions(),
        )
        encoder = EncoderGraph(content)
        difference = measure_code_parity(policy.encoder, policy.spec, encoder, cases)
        exported = ExportedFile(encoder_file(out), len(content), encoder.record, difference, cases)
        files.append((content, exported))
    for content, exported in files:
        replace_file(exported.path, content)
    return [exported for _, exported in files]


def _build_plan_graph(policy: Policy, tracer: PlanTracer) -> bytes:
    """Trace the plan of a policy and return the content of its file."""
    record = GraphRecord(
        format=GRAPH_FORMAT,
        spec=tracer.spec,
        steps=tracer.steps,
        foresees=tracer.foresees,
        calibration=policy.calibration,
        inputs=tracer.inputs,
        fingerprint=_find_fingerprint(policy),
        graph_sha256="",
        made_with=_find_versions(),
    )
    return build_file(tracer.module, tracer.build_example(), record)


def _find_fingerprint(policy: Policy) -> str:
    """Return the SHA-256 of all weights, which the files of one export have in common."""
    encoder = {} if policy.encoder is None else policy.encoder.state_dict()
    return fingerprint(policy.model.state_dict() | {f"encoder.{name}": encoder[name] for name in encoder})


def _find_versions() -> tuple[str, ...]:
    """Return the versions of the packages that export."""
    versions = (f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "onnx"))
    return (f"nsde_policy {__version__}", *versions, f"opset {OPSET}")


def measure_parity(tracer: PlanTracer, graph: Graph, cases: int) -> float:
    """Measure the largest difference between a graph and its policy, in ranges of the demonstrations.

    Raises:
        NsdePolicyError: If it exceeds `PARITY_TOLERANCE`.
    """
    spec = tracer.spec
    scale = np.array(spec.high) - np.array(spec.low)
    scales = {ACTIONS: scale[spec.obs_dim :], PATH: scale, STD: scale[spec.obs_dim :]}
    worst = measure_difference(graph, tracer.reference, _draw_inputs(tracer, cases), scales)
    if worst > PARITY_TOLERANCE:
        raise NsdePolicyError(
            f"the exported graph differs from the policy by {worst:.2g} ranges of the demonstrations in "
            f"{cases} cases, at most {PARITY_TOLERANCE:g} is allowed; nothing was written"
        )
    return worst


def _draw_inputs(tracer: PlanTracer, cases: int) -> Iterator[list[np.ndarray]]:
    """Draw inputs of the graph: plausible states with history, and noise, all float32."""
    spec, rng = tracer.spec, np.random.default_rng(0)
    low, high, step = (np.array(values) for values in (spec.low, spec.high, spec.increment_std))
    for _ in range(cases):
        now = low + (high - low) * rng.uniform(-STATE_MARGIN, 1 + STATE_MARGIN, len(low))
        before = step * rng.standard_normal((spec.history - 1, len(low)))
        states = np.concatenate([now[None], now - before.cumsum(0)])
        noise = (
            rng.standard_normal(given.shape) if given.kind == "normal" else rng.random(given.shape)
            for given in tracer.inputs[1:]
        )
        yield [np.asarray(values, np.float32) for values in (states, *noise)]
