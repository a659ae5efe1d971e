"""`nsde-policy export`: write a policy as a graph that runs without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsde_policy.assets import resolve_run
from nsde_policy.bounds import Count, SeedNumber
from nsde_policy.cli import options


@dataclass(frozen=True)
class Export:
    """Export a policy as one graph from states and noise to a chunk of actions.

    The graph is compared with the policy on random states and discarded if it differs. If a single action is
    cheaper than a chunk, a second graph is written for the first action, NAME.first.onnx. The encoder of
    camera frames is a graph of its own, NAME.encoder.onnx; all are loaded as NAME.onnx.
    """

    run_dir: options.RunFlag = None
    format: Literal["onnx", "pt2"] = "onnx"
    """onnx runs without torch (nsde_policy.deploy.runtime, onnxruntime); pt2 is torch.export's archive."""
    out: Path | None = None
    """Output file; default RUN/policy.onnx or RUN/policy.pt2, or in the working directory if shipped."""
    steps: Count | None = None
    """Actions per plan; by default the chunk of the run."""
    sampling: options.SamplingFlag = ()
    opset: int = 20
    """ONNX operator set, 18 to 23; from 20 on graphs are smallest and fastest."""
    cases: Count = 256
    """Number of random states for the comparison."""
    seed: SeedNumber = 0
    """Seed of the comparison."""

    def run(self) -> None:
        """Export, and print one line per file."""
        from nsde_policy.deploy.export import export_policy
        from nsde_policy.eval.evaluate import change_sampling
        from nsde_policy.inference.policy import Policy
        from nsde_policy.inference.torch_threads import use_threads

        run = self.run_dir and resolve_run(self.run_dir)
        policy = Policy.from_pretrained(run)
        with use_threads(1):
            written = export_policy(
                policy,
                self.out or (Path() if run != self.run_dir or run is None else run) / f"policy.{self.format}",
                format=self.format,
                steps=self.steps,
                sampling=change_sampling(policy.model.config.sampling, self.sampling),
                opset=self.opset,
                cases=self.cases,
                seed=self.seed,
            )
        for one in written:
            print(one.as_text())
