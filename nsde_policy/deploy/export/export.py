"""Trace, write, check against the policy; what fails the check is never written to its place."""

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from nsde_policy import __version__
from nsde_policy.config import Sampling
from nsde_policy.deploy.export import onnx_format, parity, torch_export
from nsde_policy.deploy.export.plan_module import Chunk
from nsde_policy.deploy.runtime.metadata import FORMAT, GraphRecord
from nsde_policy.deploy.runtime.policy import first_action_file
from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import fingerprint

Format = Literal["onnx", "pt2"]


@dataclass(frozen=True)
class Exported:
    """One file that was written, and how well it answers."""

    path: Path
    bytes: int
    record: GraphRecord
    parity: parity.Parity

    def as_text(self) -> str:
        """One line."""
        return (
            f"wrote {self.path}: {self.record.steps} actions, {self.bytes / 1e6:.2f} MB; differs from the "
            f"policy by at most {self.parity.worst:.1e} ranges in {self.parity.cases} cases"
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
) -> list[Exported]:
    """Write the plan of a policy as one graph; for methods that pay by the action, the first action's too.

    Every graph is loaded again and compared with the policy over `cases` random states and noises.
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
        raise ConfigError(f"a policy in the format {format} is a file NAME.{format}, got {out}")
    whole = Chunk(policy, policy.chunk if steps is None else steps, sampling)
    wanted = {out: whole}
    chosen = whole.reference.sampling
    if policy.model.network_calls(1, chosen) < policy.model.network_calls(whole.steps, chosen):
        wanted[first_action_file(out)] = Chunk(policy, 1, sampling)
    made = {path: _made(policy, chunk, format, opset, cases, seed) for path, chunk in wanted.items()}
    first_action_file(out).unlink(missing_ok=True)  # one of another policy must not stay beside this one
    for path, (content, _, _) in made.items():
        replace_file(path, content)
    return [Exported(path, len(content), record, found) for path, (content, record, found) in made.items()]


def _made(
    policy: Policy, chunk: Chunk, format: Format, opset: int, cases: int, seed: int
) -> tuple[bytes, GraphRecord, parity.Parity]:
    """A file's content, checked."""
    if format == "onnx":
        bare = onnx_format.to_onnx(chunk, opset=opset)
        record = _record(policy, chunk, onnx_format.digest(bare), ("onnx", f"opset {opset}"))
        content = onnx_format.with_record(bare, record)
        answer = onnx_format.answerer(content)
    else:
        record = _record(policy, chunk, "", ())
        content = torch_export.to_pt2(chunk, record)
        answer = torch_export.answerer(content)
    return content, record, parity.measure(chunk, answer, n=cases, seed=seed)


def _record(policy: Policy, chunk: Chunk, digest: str, also: tuple[str, ...]) -> GraphRecord:
    packages = ("torch", "numpy", *(name for name in also if " " not in name))
    versions = [f"nsde_policy {__version__}", *(f"{name} {metadata.version(name)}" for name in packages)]
    return GraphRecord(
        format=FORMAT,
        spec=chunk.spec,
        steps=chunk.steps,
        foresees=chunk.foresees,
        calibration=policy.calibration,
        inputs=chunk.inputs,
        fingerprint=fingerprint(policy.model.state_dict()),
        graph_sha256=digest,
        made_with=(*versions, *(name for name in also if " " in name)),
    )
