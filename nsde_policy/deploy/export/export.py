"""Export a policy: trace it, compare the graph with the policy, and only then write the file."""

from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import fingerprint
from nsde_policy.version import __version__

from ..runtime.graph import EncoderGraph, Graph
from ..runtime.metadata import EncoderRecord, GraphRecord
from ..runtime.policy import find_part
from .encoder import trace_encoder
from .onnx_writer import OPSET, build_file, check_packages
from .plan_module import trace_plan


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
    cases: int = 64,
) -> list[ExportedFile]:
    """Write the plan of a policy as an ONNX graph, and plan selection and the encoder of frames as others.

    Args:
        policy: A trained policy.
        out: NAME.onnx; the others are NAME.select.onnx and NAME.encoder.onnx in the same folder.
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
    steps = policy.chunk if steps is None else steps
    functions = {out: trace_plan(policy, steps, sampling)}
    if policy.candidates > 1:
        functions[find_part(out, "select")] = trace_plan(policy, steps, sampling, selects=True)
    if policy.encoder is not None:
        functions[find_part(out, "encoder")] = trace_encoder(policy.encoder, policy.spec)
    versions = (f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "onnx"))
    made_with = (f"nsde_policy {__version__}", *versions, f"opset {OPSET}")
    files: list[tuple[bytes, ExportedFile]] = []
    for path, function in functions.items():
        record = replace(function.record, fingerprint=_find_fingerprint(policy), made_with=made_with)
        content = build_file(function.module, function.draw_example(), record)
        graph = Graph(content) if isinstance(record, GraphRecord) else EncoderGraph(content)
        difference = function.check_parity(graph, cases)
        files.append((content, ExportedFile(path, len(content), graph.record, difference, cases)))
    for content, exported in files:
        replace_file(exported.path, content)
    return [exported for _, exported in files]


def _find_fingerprint(policy: Policy) -> str:
    """Return the SHA-256 of all weights, which the files of one export have in common."""
    weights = policy.model.state_dict()
    parts = {"encoder": policy.encoder, "selector": policy.selector if policy.candidates > 1 else None}
    for part, module in parts.items():
        if module is not None:
            weights |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
    return fingerprint(weights)
