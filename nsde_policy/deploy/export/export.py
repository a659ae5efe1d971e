"""Export a policy: trace it, compare the graph with the policy, and only then write the file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from nsde_policy import __version__
from nsde_policy.config import Sampling
from nsde_policy.deploy.export import formats
from nsde_policy.deploy.export.encoder import build_encoder_graph, measure_code_parity
from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.metadata import (
    ACTIONS,
    GRAPH_FORMAT,
    PATH,
    STD,
    EncoderRecord,
    GraphRecord,
)
from nsde_policy.deploy.runtime.onnx_file import graph_sha256
from nsde_policy.deploy.runtime.policy import encoder_file, one_action_file
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import fingerprint

PARITY_TOLERANCE = 1e-5
"""Largest allowed difference, in ranges of the demonstrations."""
STATE_MARGIN = 0.1
"""States are drawn from the demonstrated range, widened by this fraction on both sides."""
Format = Literal["onnx", "pt2"]


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
    format: Format = "onnx",
    steps: int | None = None,
    sampling: Sampling | None = None,
    opset: int = 20,
    cases: int = 256,
    seed: int = 0,
) -> list[ExportedFile]:
    """Write the plan of a policy as one graph, and another for the first action if that needs fewer calls.

    Args:
        policy: A trained policy.
        out: NAME.onnx or NAME.pt2; the graph of the first action is NAME.first.onnx beside it, and that of
            the encoder of camera frames NAME.encoder.onnx.
        format: `onnx`, or `pt2` for torch.export's archive.
        steps: Actions per plan; the policy's chunk by default.
        sampling: Replaces the policy's sampling settings.
        opset: Version of the ONNX operators.
        cases: Random inputs for which each graph is compared with the policy.
        seed: Seed of these inputs.

    Raises:
        NsdePolicyError: If the policy cannot be traced or the graph differs from it; nothing is written then.
    """
    _check_settings(policy, out, format, opset=opset, cases=cases, seed=seed)
    chunk = PlanTracer(policy, policy.chunk if steps is None else steps, sampling)
    tracers = {out: chunk}
    chosen = chunk.reference.sampling
    if policy.model.network_calls(1, chosen) < policy.model.network_calls(chunk.steps, chosen):
        tracers[one_action_file(out)] = PlanTracer(policy, 1, sampling)
    files = {}
    for path, tracer in tracers.items():
        content, record, run_graph = _build(policy, tracer, format, opset)
        difference = measure_parity(tracer, run_graph, cases=cases, seed=seed)
        files[path] = content, ExportedFile(path, len(content), record, difference, cases)
    if policy.encoder is not None:
        files[encoder_file(out)] = _export_encoder(
            policy, policy.encoder, encoder_file(out), opset, cases, seed
        )
    for path in (one_action_file(out), encoder_file(out)):
        path.unlink(missing_ok=True)  # it may belong to an earlier export
    for path, (content, _) in files.items():
        replace_file(path, content)
    return [exported for _, exported in files.values()]


def _check_settings(policy: Policy, out: Path, format: Format, *, opset: int, cases: int, seed: int) -> None:
    if opset not in formats.OPSETS:
        first, last = formats.OPSETS[0], formats.OPSETS[-1]
        raise ConfigError(f"opset must be from {first} to {last}, got {opset}")
    if cases < 1 or seed < 0:
        raise ConfigError(f"need at least 1 case to compare and a seed >= 0, got {cases} and {seed}")
    if format == "onnx":
        formats.check_packages()
    elif policy.spec.cameras:
        raise ConfigError("format pt2 does not take camera frames; use --format onnx")
    check_writable(out)
    if out.suffix != f".{format}":
        raise ConfigError(f"the output file of format {format} must be NAME.{format}, got {out}")


def _build(
    policy: Policy, tracer: PlanTracer, format: Format, opset: int
) -> tuple[bytes, GraphRecord, formats.RunGraph]:
    """Return the content of a file, its record, and a function that runs it as loaded from the content."""
    record = GraphRecord(
        format=GRAPH_FORMAT,
        spec=tracer.spec,
        steps=tracer.steps,
        foresees=tracer.foresees,
        calibration=policy.calibration,
        inputs=tracer.inputs,
        fingerprint=_find_fingerprint(policy),
        graph_sha256="",
        made_with=_find_versions(format, opset),
    )
    if format == "pt2":
        content = formats.build_pt2(tracer, record)
        return content, record, formats.load_pt2(content)
    bare = formats.build_onnx(
        tracer.module,
        tracer.build_example(),
        inputs=list(record.input_shapes),
        outputs=list(record.outputs),
        opset=opset,
    )
    record = replace(record, graph_sha256=graph_sha256(bare))
    content = formats.add_record(bare, record.to_json())
    return content, record, formats.load_onnx(content)


def _export_encoder(
    policy: Policy, encoder: EncoderModel, path: Path, opset: int, cases: int, seed: int
) -> tuple[bytes, ExportedFile]:
    content, record = build_encoder_graph(
        encoder,
        policy.spec,
        opset=opset,
        fingerprint=_find_fingerprint(policy),
        made_with=_find_versions("onnx", opset),
    )
    difference = measure_code_parity(encoder, policy.spec, content, cases=cases, seed=seed)
    return content, ExportedFile(path, len(content), record, difference, cases)


def _find_fingerprint(policy: Policy) -> str:
    """Return the SHA-256 of all weights, which the files of one export have in common."""
    encoder = {} if policy.encoder is None else policy.encoder.state_dict()
    return fingerprint(policy.model.state_dict() | {f"encoder.{name}": encoder[name] for name in encoder})


def _find_versions(format: Format, opset: int) -> tuple[str, ...]:
    """Return the versions of the packages that export."""
    packages = ["torch", "numpy", *(["onnx"] if format == "onnx" else [])]
    versions = (f"nsde_policy {__version__}", *(f"{name} {metadata.version(name)}" for name in packages))
    return (*versions, f"opset {opset}") if format == "onnx" else versions


def measure_parity(
    tracer: PlanTracer, run_graph: formats.RunGraph, *, cases: int = 256, seed: int = 0
) -> float:
    """Measure the largest difference between a graph and its policy, in ranges of the demonstrations.

    Raises:
        NsdePolicyError: If it exceeds `PARITY_TOLERANCE`.
    """
    spec = tracer.spec
    scale = np.array(spec.high) - np.array(spec.low)
    scales = {ACTIONS: scale[spec.obs_dim :], PATH: scale, STD: scale[spec.obs_dim :]}
    worst = 0.0
    for inputs in _draw_inputs(tracer, cases, seed):
        expected = tracer.reference(*(torch.from_numpy(values) for values in inputs))
        found = run_graph(inputs)
        for name, tensor in zip((ACTIONS, PATH, STD), expected, strict=False):
            with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as ∞
                difference = float(np.max(np.abs(found[name] - tensor.numpy()) / scales[name]))
            worst = max(worst, difference if np.isfinite(difference) else np.inf)
    if worst > PARITY_TOLERANCE:
        raise NsdePolicyError(
            f"the exported graph differs from the policy by {worst:.2g} ranges of the demonstrations in "
            f"{cases} cases, at most {PARITY_TOLERANCE:g} is allowed; nothing was written"
        )
    return worst


def _draw_inputs(tracer: PlanTracer, cases: int, seed: int) -> Iterator[list[np.ndarray]]:
    """Draw inputs of the graph: plausible states with history, and noise, all float32."""
    spec, rng = tracer.spec, np.random.default_rng(seed)
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
