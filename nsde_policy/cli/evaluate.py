"""`nsde-policy eval` and `nsde-policy score`: score policies in an environment, or on recorded episodes."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from nsde_policy.assets import resolve_run
from nsde_policy.bounds import Count, Fraction, Natural, NonNegative, Occluder, PixelShift
from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.selection.rule import Choice

from .shared import options

if TYPE_CHECKING:
    from nsde_policy.eval.score.result import Score


@dataclass(frozen=True, kw_only=True)
class Evaluate(options.RolloutCommand):
    """Roll out a policy, print scores with 95 % intervals, write videos."""

    run_dir: options.RunFlag = options.SHIPPED_RUN
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    chunk: options.ChunkFlag = None
    sampling: options.SamplingFlag = ()
    select: Choice = "auto"
    """Rule of plan selection, for runs trained with --select; auto: the one that training chose."""
    latency_steps: Natural = 0
    """Delay between an observation and the plan made from it, in control periods."""
    obs_noise: NonNegative = 0.0
    """Observation noise, in standard deviations of the change over one control period."""
    push: NonNegative = 0.0
    """Disturb each episode once at a random time: move the object by this distance, in the task's unit."""
    camera_shift: PixelShift = 0
    """Move the camera's picture by this many pixels, in one of eight directions; edge pixels are repeated."""
    camera_brightness: Fraction = 0.0
    """Largest relative change of the brightness of an episode's frames: 0.1 for 10 %."""
    camera_noise: Fraction = 0.0
    """Standard deviation of noise on every pixel of every frame; 1 is the range from black to white."""
    camera_occlusion: Fraction = 0.0
    """Fraction of the picture that is occluded, at a random place."""
    camera_occluder: Occluder = "square"
    """Occluder of --camera-occlusion: a grey square, which may move, a yellow one, or another shape."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"
    ray: options.RayFlag = None
    render: bool = False
    """Write videos of some episodes."""
    videos: Natural = 3
    """With --render: number of failures and number of successes to write as videos."""
    out: Path | None = None
    """Directory for --render; default RUN/eval, or out/eval for the shipped policy."""
    json: options.JsonFileFlag = None

    def check(self) -> None:
        """Refuse a run without an environment, and an occluder without its size, before torch is imported."""
        if self.env is None:
            options.check_environment(self.run_dir)
        if self.camera_occluder != "square" and not self.camera_occlusion:
            raise ConfigError("--camera-occluder needs --camera-occlusion, such as 0.1")

    def run(self) -> None:
        """Roll out, print the scores, render episodes."""
        from nsde_policy.eval.rollouts.disturbances import CameraCondition, Condition
        from nsde_policy.eval.rollouts.runner import RolloutConfig
        from nsde_policy.eval.rollouts.scores import score_rollouts

        run = resolve_run(self.run_dir)
        options.warn_if_unfinished(run)
        cameras = fields(CameraCondition)
        config = RolloutConfig(
            self.env,
            options.parse_env_kwargs(self.env_kwargs),
            self.episodes,
            self.seed_start,
            self.chunk,
            self.sampling,
            Condition(self.latency_steps, self.obs_noise, self.push),
            CameraCondition(**{each.name: getattr(self, f"camera_{each.name}") for each in cameras}),
            select=self.select,
        )
        renderer = None
        if self.render:
            from nsde_policy.eval.render.video import Renderer

            renderer = Renderer(run, config, self.out, videos=self.videos)
        scores = score_rollouts(run, config, workers=self.workers, device=self.device, ray=self.ray)
        options.print_results(self.json, scores.to_json(), scores.as_text())
        if renderer is not None:
            files = renderer.write(scores.episodes)
            print(f"wrote {len(files)} mp4 to {renderer.out}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(options.DeviceCommand):
    """Score policies on recorded episodes, without an environment.

    Prints the likelihood per step, action errors by horizon and the coverage of σ, with 95 % intervals, and
    paired differences of several runs. Episodes that a run was trained on are left out.
    """

    runs: Positional[tuple[options.RunPath, ...]] = (options.SHIPPED_RUN,)
    """Run directories; the first one is compared with the others. Default: the policy of this package."""
    demos: options.DemosPath
    """Store of recorded episodes."""
    horizon: Count | None = None
    """Number of planned actions to compare; default: the chunk, or 8 if it is shorter."""
    samples: Count = 39
    """Number of plans sampled from each frame."""
    stride: Natural = 0
    """Distance between the frames that are planned from; 0 chooses about 1000 frames in all."""
    sampling: options.SamplingFlag = ()
    device: options.DeviceFlag = "cpu"
    verbose: bool = False
    """Print the tables of a single run too."""
    report: Path | None = None
    """Also write an HTML page of the scored episodes, with the plans of the run over them."""
    json: options.JsonFileFlag = None

    def check(self) -> None:
        """Refuse a page of several runs, and one that cannot be written."""
        if self.report is not None:
            if len(self.runs) != 1:
                raise ConfigError("--report shows the plans of one run: leave it out, or score one run")
            check_writable(self.report)

    def run(self) -> None:
        """Score and print the tables."""
        from nsde_policy.eval.score.comparison import compare_scores
        from nsde_policy.eval.score.scorer import ScoreConfig

        runs = [resolve_run(path) for path in self.runs]
        for run in runs:
            options.warn_if_unfinished(run)
        config = ScoreConfig(horizon=self.horizon, samples=self.samples, stride=self.stride)
        comparison = compare_scores(
            runs,
            self.demos,
            config=config,
            sampling=self.sampling,
            device=self.device,
        )
        results = comparison.to_json() if len(runs) > 1 else comparison.reference.to_json()
        options.print_results(self.json, results, comparison.as_text(verbose=self.verbose))
        if self.report is not None:
            self._write_page(self.report, comparison.reference)

    def _write_page(self, file: Path, score: "Score") -> None:
        """Write the page of the scored episodes."""
        from nsde_policy.eval.score.episodes import select_episodes
        from nsde_policy.eval.score.result import describe_episodes
        from nsde_policy.policy.policy import Policy
        from nsde_policy.viewer.episodes import EpisodePage

        (run,) = self.runs
        policy = Policy.from_pretrained(run).to(self.device)
        scored = select_episodes(policy, self.demos)
        page = EpisodePage.from_policy(policy, scored, repr(score).splitlines(), describe_episodes(score))
        replace_file(file, page.to_html(str(run)))
        print(f"wrote {file}, {file.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
