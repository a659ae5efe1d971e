"""Export a policy: trace it, compare the graph with the policy, and only then write the file."""

from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from nsde_policy import __version__
from nsde_policy.config import Sampling
from nsde_policy.deploy.export import onnx_format, torch_export
from nsde_policy.deploy.export.parity import RunGraph, measure_parity
from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.metadata import GRAPH_FORMAT, GraphRecord
from nsde_policy.deploy.runtime.onnx_file import add_metadata, graph_sha256
from nsde_policy.deploy.runtime.policy import first_action_file
from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import fingerprint

Format = Literal["onnx", "pt2"]


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written, and its difference from the policy."""

    path: Path
    bytes: int
    record: GraphRecord
    difference: float
    """Largest difference from the policy, in ranges of the demonstrations."""
    cases: int
    """Number of random inputs for which they were compared."""

    def as_text(self) -> str:
        """Format as one line for the command line."""
        return (
            f"wrote {self.path}: {self.record.steps} actions, {self.bytes / 1e6:.2f} MB; differs from the "
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
        out: NAME.onnx or NAME.pt2; the graph of the first action is NAME.first.onnx beside it.
        format: `onnx`, or `pt2` for torch.export's archive.
        steps: Actions per plan; the policy's chunk by default.
        sampling: Replaces the policy's sampling settings.
        opset: Version of the ONNX operators.
        cases: Random inputs for which each graph is compared with the policy.
        seed: Seed of these inputs.

    Raises:
        ExportError: If the policy cannot be traced or the graph differs from it; nothing is written then.
    """
    if opset not in onnx_format.OPSETS:
        first, last = onnx_format.OPSETS[0], onnx_format.OPSETS[-1]
        raise ConfigError(f"opset must be from {first} to {last}, got {opset}")
    if cases < 1 or seed < 0:
        raise ConfigError(f"need at least 1 case to compare and a seed >= 0, got {cases} and {seed}")
    if format == "onnx":
        onnx_format.check_packages()
    check_writable(out)
    if out.suffix != f".{format}":
        raise ConfigError(f"the output file of format {format} must be NAME.{format}, got {out}")
    chunk = PlanTracer(policy, policy.chunk if steps is None else steps, sampling)
    tracers = {out: chunk}
    chosen = chunk.reference.sampling
    if policy.model.network_calls(1, chosen) < policy.model.network_calls(chunk.steps, chosen):
        tracers[first_action_file(out)] = PlanTracer(policy, 1, sampling)
    files = {}
    for path, tracer in tracers.items():
        content, record, run_graph = _build(policy, tracer, format, opset)
        difference = measure_parity(tracer, run_graph, cases=cases, seed=seed)
        files[path] = content, ExportedFile(path, len(content), record, difference, cases)
    first_action_file(out).unlink(missing_ok=True)  # it may belong to an earlier export
    for path, (content, _) in files.items():
        replace_file(path, content)
    return [exported for _, exported in files.values()]


def _build(
    policy: Policy, tracer: PlanTracer, format: Format, opset: int
) -> tuple[bytes, GraphRecord, RunGraph]:
    """Return the content of a file, its record, and a function that runs it as loaded from the content."""
    packages = ["torch", "numpy", *(["onnx"] if format == "onnx" else [])]
    versions = [f"nsde_policy {__version__}", *(f"{name} {metadata.version(name)}" for name in packages)]
    record = GraphRecord(
        format=GRAPH_FORMAT,
        spec=tracer.spec,
        steps=tracer.steps,
        foresees=tracer.foresees,
        calibration=policy.calibration,
        inputs=tracer.inputs,
        fingerprint=fingerprint(policy.model.state_dict()),
        graph_sha256="",
        made_with=tuple(versions),
    )
    if format == "pt2":
        content = torch_export.build_pt2(tracer, record)
        return content, record, torch_export.load_pt2(content)
    bare = onnx_format.build_onnx(tracer, opset=opset)
    record = replace(record, graph_sha256=graph_sha256(bare), made_with=(*versions, f"opset {opset}"))
    content = add_metadata(bare, record.to_json())
    return content, record, onnx_format.load_onnx(content)
