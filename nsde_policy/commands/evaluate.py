"""`nsde-policy eval`: play episodes with a policy and score it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class SamplingFlags:
    """How paths are drawn; what is left out is as the run was trained to be used."""

    alpha: float | None = None
    """Strength of the denoiser; 0 switches it off."""
    diffusion: float | None = None
    """Factor on the noise; 0 follows the flow alone."""


@dataclass(frozen=True)
class Evaluate:
    """Play episodes with a policy: reward, strict success and coverage, each with a 95 % interval."""

    run_dir: tyro.conf.Positional[Path | None] = None
    """Run directory; without it, the policy shipped in the package."""
    episodes: int = 50
    """How many, on consecutive seeds."""
    seed_start: int = 100_000
    """First seed; published scores start at 100000, settings are tuned on 200000 and up."""
    reset_rule: Literal["benchmark", "gym_pusht"] = "benchmark"
    """Which states the seeds mean: the published benchmark's, or gym-pusht's."""
    chunk: int | None = None
    """Actions executed before planning again (T_a); as trained by default."""
    sampling: Annotated[SamplingFlags, tyro.conf.arg(name="")] = field(default_factory=SamplingFlags)
    workers: int = 0
    """Processes; 0 for one per core. The result does not depend on it."""
    render: bool = False
    """Show episodes in a window; without a display, or with --out, write videos and a contact sheet."""
    out: Path | None = None
    """Where --render writes; RUN/eval, or out/eval for the shipped policy."""
    videos: int = 3
    """How many failures and how many successes --render writes videos of; the contact sheet shows all."""
    json: Path | None = None
    """Write scores and per-episode results to this file ('-' for standard output)."""

    def run(self) -> None:
        """Evaluate, print the scores, draw."""
        from nsde_policy.eval.evaluation import evaluate_policy
        from nsde_policy.eval.scores import to_json
        from nsde_policy.files import check_writable, replace_file

        if self.json not in (None, Path("-")):
            check_writable(self.json)

        renderer = None
        if self.render:
            from nsde_policy.eval.rendering import Renderer

            renderer = Renderer(self.run_dir, self.out, videos=self.videos)
        found = evaluate_policy(
            self.run_dir,
            episodes=self.episodes,
            seed_start=self.seed_start,
            reset_rule=self.reset_rule,
            chunk=self.chunk,
            alpha=self.sampling.alpha,
            diffusion=self.sampling.diffusion,
            workers=self.workers,
        )
        if self.json == Path("-"):
            print(to_json(found.scores, **found.context))
        else:
            print(found.scores.as_text())
        if self.json not in (None, Path("-")):
            replace_file(self.json, to_json(found.scores, **found.context).encode())
        if renderer is not None:
            renderer.show(found)
