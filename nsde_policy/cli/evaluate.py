"""`nsde-policy eval`: play episodes with a policy and score it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


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
    alpha: float | None = None
    """Strength of a Neural SDE's denoiser; 0 switches it off; as trained to be used by default."""
    diffusion: float | None = None
    """Factor on a Neural SDE's noise; 0 follows the flow alone."""
    sampling: tuple[str, ...] = ()
    """Other changes to how actions are drawn, name=value: scheduler=ddim steps=10."""
    latency_steps: int = 0
    """Control periods from an observation to the plan made from it."""
    obs_noise: float = 0.0
    """Noise on observations, in standard deviations of their change over one period."""
    push: float = 0.0
    """Move the block at a random moment of each episode, by so many pixels."""
    workers: int = 0
    """Processes; 0 for one per core. The result does not depend on it."""
    device: str = "cpu"
    """Where plans are computed; on cuda episodes are played side by side in one process."""
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
        from nsde_policy.eval.disturbances import Condition
        from nsde_policy.eval.evaluate import evaluate_policy
        from nsde_policy.eval.scores import to_json
        from nsde_policy.files import check_writable, replace_file

        if self.json not in (None, Path("-")):
            check_writable(self.json)

        renderer = None
        if self.render:
            from nsde_policy.eval.render.video import Renderer

            renderer = Renderer(self.run_dir, self.out, videos=self.videos)
        found = evaluate_policy(
            self.run_dir,
            episodes=self.episodes,
            seed_start=self.seed_start,
            reset_rule=self.reset_rule,
            chunk=self.chunk,
            sampling=self._sampling(),
            condition=Condition(self.latency_steps, self.obs_noise, self.push),
            workers=self.workers,
            device=self.device,
        )
        if self.json == Path("-"):
            print(to_json(found.scores, **found.context))
        else:
            print(found.scores.as_text())
        if self.json not in (None, Path("-")):
            replace_file(self.json, to_json(found.scores, **found.context).encode())
        if renderer is not None:
            renderer.show(found)

    def _sampling(self) -> list[str]:
        named = {"alpha": self.alpha, "diffusion": self.diffusion}
        return [f"{name}={value}" for name, value in named.items() if value is not None] + [*self.sampling]
