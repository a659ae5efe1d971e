"""`nsde-policy export`: write a policy as a graph that runs without torch."""

from dataclasses import dataclass
from pathlib import Path

from nsde_policy.assets import resolve_run
from nsde_policy.bounds import Count

from .shared import options


@dataclass(frozen=True)
class Export(options.Command):
    """Export a policy as one graph from states and noise to a chunk of actions.

    The graph is compared with the policy on random states and discarded if it differs. It runs without torch
    (nsde_policy.deploy.runtime). Plan selection becomes a second graph, NAME.select.onnx, and the encoder of
    camera frames another, NAME.encoder.onnx. They are loaded with NAME.onnx.
    """

    run_dir: options.RunFlag = options.SHIPPED_RUN
    out: Path | None = None
    """Output file; default RUN/policy.onnx, or policy.onnx in the working directory if shipped."""
    steps: Count | None = None
    """Actions per plan; by default the chunk of the run."""
    sampling: options.SamplingFlag = ()
    cases: Count = 64
    """Number of random states for the comparison."""

    def run(self) -> None:
        """Export, and print one line per file."""
        from nsde_policy.deploy.export import export_policy
        from nsde_policy.eval.rollouts.runner import change_sampling
        from nsde_policy.policy.policy import Policy
        from nsde_policy.torch_threads import use_threads

        run = resolve_run(self.run_dir)
        folder = run if run == self.run_dir else Path()
        policy = Policy.from_pretrained(run)
        with use_threads(1):
            written = export_policy(
                policy,
                self.out or folder / "policy.onnx",
                steps=self.steps,
                sampling=change_sampling(policy.sampling, self.sampling),
                cases=self.cases,
            )
        for one in written:
            print(one.as_text())
