"""`nsde-policy export`: a policy as one file that runs without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class Export:
    """Write a policy as one graph, states and noise in, a chunk of actions out, and compare it with the
    policy over many random states; a graph that differs is not kept. Where single actions are cheaper, a
    second graph for the first action alone is written beside it, NAME.first.onnx."""

    run_dir: tyro.conf.Positional[Path | None] = None
    """Run directory; without it, the policy shipped in the package."""
    format: Literal["onnx", "pt2"] = "onnx"
    """onnx, which nsde_policy.deploy.runtime and onnxruntime run without torch; pt2, torch.export's archive."""
    out: Path | None = None
    """File to write; RUN/policy.onnx or .pt2 by default, in the working directory for the shipped policy."""
    steps: int | None = None
    """Actions of a plan; as the policy was trained to be used by default, 8 for the shipped one."""
    sampling: tuple[str, ...] = ()
    """Changes to how actions are drawn, name=value: scheduler=ddim steps=10."""
    opset: int = 20
    """Version of ONNX's operators, 18 to 23; from 20 on the graph is smallest and fastest."""
    cases: int = 256
    """Random states and noises over which the graph is compared with the policy."""
    seed: int = 0
    """Fixes those."""

    def run(self) -> None:
        """Export, print one line per file."""
        from nsde_policy.deploy.export import export_policy
        from nsde_policy.eval.evaluate import changed_sampling
        from nsde_policy.eval.rollout import one_thread
        from nsde_policy.inference.policy import Policy

        policy = Policy.from_pretrained(self.run_dir)
        with one_thread():
            written = export_policy(
                policy,
                self.out or (self.run_dir or Path()) / f"policy.{self.format}",
                format=self.format,
                steps=self.steps,
                sampling=changed_sampling(policy.model.config.sampling, self.sampling),
                opset=self.opset,
                cases=self.cases,
                seed=self.seed,
            )
        for one in written:
            print(one.as_text())
