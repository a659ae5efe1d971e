"""`nsde-policy video predict`: what a camera will see under a policy's plan."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nsde_policy.bounds import Natural, Positive, SeedNumber
from nsde_policy.cli import options
from nsde_policy.cli.video_models import FILM


@dataclass(frozen=True)
class VideoPredict:
    """Predict what a camera will see under a policy's plan, beside what it then sees.

    The policy plays an episode up to one of its plans, which is then executed to its end without planning
    again. Prints a table, and writes a film strip and an animation of the first episode.
    """

    run_dir: Annotated[
        Path, Positional, arg(metavar="RUN", help="Run directory of `video train STORE --actions`.")
    ]
    policy: Path = Path("shipped")
    """Run directory of the policy, or `shipped`, `shipped-pixels` for those of this package."""
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    seed: SeedNumber = 100_000
    """Seed of the first episode."""
    episodes: options.EpisodesFlag = 1
    step: Natural = 24
    """Control period from which on the next plan of the policy is predicted."""
    seconds: Positive | None = None
    """How far to predict; default: 1.6, or the length of a plan if that is shorter."""
    alpha: float | None = None
    """Strength of the denoiser of a Neural SDE for video; default: as in training."""
    device: options.DeviceFlag = "auto"
    out: Path = Path("out/predict")
    """Folder for film_strip.png, film_strip.svg and prediction.gif."""
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Play, predict, write pictures and print a table."""
        from nsde_policy.assets import resolve_run
        from nsde_policy.eval.video.figures import draw_film_strip, write_animation
        from nsde_policy.eval.video.plan import PlanConfig, predict_plans
        from nsde_policy.files import check_writable

        config = PlanConfig(
            seed=self.seed,
            episodes=self.episodes,
            step=self.step,
            seconds=self.seconds,
            alpha=self.alpha,
            env=self.env,
            env_kwargs=options.parse_env_kwargs(self.env_kwargs),
        )
        options.check_json_file(self.json)
        check_writable(self.out / FILM)
        found = predict_plans(self.run_dir, resolve_run(self.policy), config, device=self.device)
        draw_film_strip(found.context, found.rows, self.out, columns=16)
        write_animation(found.context, found.rows, self.out / FILM, period_s=found.period_s)
        facts = {"policy": str(self.policy), **found.to_dict()}
        results = json.dumps(facts, indent=2, allow_nan=False)
        options.print_results(self.json, results, found.scores.format_table())
        print(
            f"{len(found.seeds)} of {self.episodes} episodes last to the end of a plan of {found.seconds:g} s"
            "\n"
            f"wrote {self.out}/film_strip.png and prediction.gif: seed {found.seeds[0]}, control period "
            f"{found.periods[0]}",
            file=sys.stderr,
        )
