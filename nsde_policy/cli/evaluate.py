"""`nsde-policy eval`: run episodes with a policy and score it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.bounds import Count, Natural, SeedNumber
from nsde_policy.cli import offline, options


@dataclass(frozen=True)
class Evaluate:
    """Run episodes with a policy, or compare it with recorded ones, and print scores with 95 % intervals."""

    run_dir: options.RunFlag = None
    obs: options.ShippedObsFlag = "state"
    demos: Path | None = None
    """Score on the episodes of this store instead of an environment: likelihood per step, action error by
    horizon, coverage of σ. Episodes that the run was trained on are left out."""
    horizon: Count | None = None
    """With --demos: number of planned actions to compare; default: the chunk, or 8 if it is shorter."""
    samples: Count | None = None
    """With --demos: number of plans sampled from each frame; default 39."""
    stride: Count | None = None
    """With --demos: distance between the frames that are planned from; default: about 1000 frames in all."""
    seed: SeedNumber | None = None
    """With --demos: seed of the sampled plans; default 0."""
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False
    episodes: options.EpisodesFlag = 50
    seed_start: options.SeedStartFlag = 100_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    chunk: options.ChunkFlag = None
    alpha: float | None = None
    """Denoiser strength of a Neural SDE; 0 disables it; by default as in training."""
    diffusion: float | None = None
    """Factor on the diffusion of a Neural SDE; 0 follows the drift only."""
    sampling: options.SamplingFlag = ()
    latency_steps: int = 0
    """Delay between an observation and the plan made from it, in control periods."""
    obs_noise: float = 0.0
    """Observation noise, in standard deviations of the change over one control period."""
    push: float = 0.0
    """Disturb each episode once at a random time: move the object by this distance, in the task's unit."""
    camera_shift: int = 0
    """Move the camera's picture by this many pixels, in one of eight directions; edge pixels are repeated."""
    camera_brightness: float = 0.0
    """Largest relative change of the brightness of an episode's frames: 0.1 for 10 %."""
    camera_noise: float = 0.0
    """Standard deviation of noise on every pixel of every frame; 1 is the range from black to white."""
    camera_occlusion: float = 0.0
    """Share of the picture that a grey square hides, at a random place."""
    camera_texture: float = 0.0
    """Strength of a pattern of colours on the picture, from 0 to 1."""
    camera_distractor: float = 0.0
    """Radius of a red disc at a random place of every frame; 1 is the height of the frame."""
    workers: options.WorkersFlag = 0
    device: options.DeviceFlag = "cpu"
    render: bool = False
    """Write videos of some episodes and a contact sheet of all."""
    out: Path | None = None
    """Directory for --render; default RUN/eval, or out/eval for the shipped policy."""
    videos: Natural = 3
    """With --render: number of failures and number of successes to write as videos."""
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Evaluate, print the scores, render episodes."""
        from nsde_policy.eval.disturbances import CameraCondition, Condition
        from nsde_policy.eval.evaluate import EvaluationConfig, evaluate_policy

        offline.check_flags(self)
        options.check_json_file(self.json)
        run = options.choose_run(self.run_dir, self.obs)
        options.warn_if_unfinished(run)
        named = {"alpha": self.alpha, "diffusion": self.diffusion}
        changes = [f"{name}={value}" for name, value in named.items() if value is not None]
        if self.demos is not None:
            offline.run_offline(self, run, [*changes, *self.sampling])
            return
        env_kwargs = options.parse_env_kwargs(self.env_kwargs)
        renderer = None
        if self.render:
            from nsde_policy.eval.render.video import Renderer

            renderer = Renderer(
                run,
                self.out,
                env=self.env,
                env_kwargs=env_kwargs,
                videos=self.videos,
                seed=self.seed_start,
            )
        config = EvaluationConfig(
            self.episodes,
            self.seed_start,
            self.env,
            env_kwargs,
            self.chunk,
            (*changes, *self.sampling),
            Condition(self.latency_steps, self.obs_noise, self.push),
            CameraCondition(
                self.camera_shift,
                self.camera_brightness,
                self.camera_noise,
                self.camera_occlusion,
                self.camera_texture,
                self.camera_distractor,
            ),
        )
        found = evaluate_policy(run, config, workers=self.workers, device=self.device)
        scores = found.scores
        options.print_results(self.json, scores.to_json(**found.context), scores.as_text())
        if renderer is not None:
            files = renderer.write(found)
            print(f"wrote {files[0].name} and {len(files) - 1} mp4 to {files[0].parent}", file=sys.stderr)
