"""Videos of rolled-out episodes: the scene, the sampled futures that the policy expects, and a caption."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.config import Sampling
from nsde_policy.errors import NsdePolicyError, import_optional
from nsde_policy.files import check_writable, replace_file
from nsde_policy.interface.planner import History
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import Task
from nsde_policy.tasks.drawing import Forecast
from nsde_policy.torch_threads import use_threads

from ..rollouts.episode import EpisodeResult
from ..rollouts.runner import EnvRunner, RolloutConfig
from .pictures import add_caption, fit_picture

FALLBACK_RATE_HZ = 10.0
"""Control periods per second in videos of environments that do not say."""
FRAME_SIDE = 512
"""Side of the scene in videos, pixels."""
VIDEO_FPS = 30
"""Frames per second of a video, whatever the control rate; every player supports it."""
HOLD_S = 1
FORECAST_STEPS = 24
"""Control periods of a forecast; longer plans are shown to their end."""
FORECAST_SAMPLES = 24
_ENCODING = ["-crf", "20", "-preset", "veryfast", "-tune", "animation", "-movflags", "+faststart"]


@dataclass(frozen=True)
class RenderedEpisode:
    """An episode that can be drawn."""

    task: Task
    result: EpisodeResult
    forecasts: list[Forecast]
    """By control period; the last frame has none, nor have pictures of a camera or the environment."""
    rate_hz: float
    """Control periods per second."""

    @classmethod
    def run(cls, runner: EnvRunner, seed: int) -> "RenderedEpisode":
        """Run an episode exactly as `eval` does; forecasts are sampled afterwards, with other noise."""
        result = runner.run_one(seed, frames=True)
        forecasts = [] if result.trace.frames else sample_episode_forecasts(runner, result)
        return cls(runner.task, result, forecasts, runner.rate_hz or FALLBACK_RATE_HZ)

    def __len__(self) -> int:
        return len(self.result.trace.obs)

    def frames(self, size: int) -> Iterator[np.ndarray]:
        """Draw all frames with captions."""
        return (self.frame(step, size) for step in range(len(self)))

    def frame(self, step: int, size: int) -> np.ndarray:
        """Draw one frame with its caption, (size + caption, size, 3) uint8."""
        trace = self.result.trace
        if trace.frames:
            picture = fit_picture(trace.frames[step : step + 1][0], size)
        else:
            forecast = self.forecasts[step] if step < len(self.forecasts) else None
            picture = self.task.drawing.draw(trace.obs[step], size=size, forecast=forecast)
        return add_caption(
            picture,
            seed=self.result.seed,
            step=step,
            progress=trace.progress[step],
            success=self.result.success if step == len(self) - 1 else None,
        )


class Renderer:
    """Writes videos of `videos` failures and as many successes; raises errors before episodes are rolled out.

    Files are in `out`, by default the run's folder `eval`, or `out/eval` for the shipped policy.
    """

    def __init__(
        self, path: Path | None, config: RolloutConfig, out: Path | None = None, *, videos: int = 3
    ) -> None:
        policy = Policy.from_pretrained(path).use_selection(config.select)
        if not config.find_task(policy.record).drawing.can_draw:  # before any folder is made
            check_render(EnvRunner(policy, config), config.seed_start)
        self._policy, self._config, self._videos = policy, config, videos
        self.out = out or (Path("out/eval") if path is None or get_shipped_name(path) else path / "eval")
        import_video_writer()
        check_writable(self.out / "episode.mp4")

    def write(self, episodes: Sequence[EpisodeResult]) -> list[Path]:
        """Roll out some episodes again exactly as before, and return the files written."""
        seeds = [(episode.seed, episode.success) for episode in episodes]
        runner, files = EnvRunner(self._policy, self._config), []
        with use_threads(1):
            for seed in tqdm(
                choose_video_seeds(seeds, self._videos), "drawing", unit="video", leave=False, disable=None
            ):
                episode = RenderedEpisode.run(runner, seed)
                for old in self.out.glob(f"seed-{seed}-*.mp4"):
                    old.unlink()  # of an earlier rollout, perhaps with another outcome
                files.append(self.out / f"{format_outcome(episode.result)}.mp4")
                replace_file(files[-1], encode_video(episode))
        return files


def check_render(runner: EnvRunner, seed: int) -> None:
    """Raise `EnvError` if there are no pictures of an episode: camera frames, or drawn by its env."""
    if runner.policy.spec.cameras:
        return
    env = runner.make_render_env()
    env.reset(seed)
    env.render()
    env.close()


def choose_video_seeds(outcomes: Iterable[tuple[int, bool | None]], each: int) -> list[int]:
    """Return the seeds of the first few successes, failures and unknown outcomes, given seed and success."""
    seeds: dict[bool | None, list[int]] = {True: [], False: [], None: []}
    for seed, success in outcomes:
        seeds[success].append(seed)
    return [seed for group in seeds.values() for seed in group[:each]]


def format_outcome(result: EpisodeResult) -> str:
    """Return the stem of an episode's file names: seed and outcome."""
    if result.success is None:
        return f"seed-{result.seed}-episode"
    return f"seed-{result.seed}-{'success' if result.success else 'failure'}"


def encode_video(episode: RenderedEpisode) -> bytes:
    """Encode an episode as an MP4 file, H.264 in real time."""
    imageio, rate = import_video_writer(), max(round(episode.rate_hz), 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "episode.mp4"
            writer = imageio.get_writer(
                file,
                fps=rate,
                codec="libx264",
                pixelformat="yuv420p",
                macro_block_size=2,
                ffmpeg_log_level="error",
                output_params=["-r", str(VIDEO_FPS), *_ENCODING],
            )
            with closing(writer):  # its own `with` leaves the encoder running after an error
                for frame in episode.frames(FRAME_SIDE):
                    writer.append_data(frame)
                for _ in range(HOLD_S * rate):
                    writer.append_data(frame)
            return file.read_bytes()
    except OSError as error:
        raise NsdePolicyError(f"a video cannot be encoded: {error}") from error


def import_video_writer() -> Any:
    """Import imageio together with its video encoder."""
    import_optional("imageio_ffmpeg", "video")
    return import_optional("imageio.v2", "video")


def sample_forecast(
    policy: Policy,
    history: History,
    *,
    steps: int,
    generators: Sequence[torch.Generator],
    sampling: Sampling | None = None,
    std: bool = False,
) -> Forecast:
    """Sample one future per generator, without plan selection; `std` adds σ if the method reports it."""
    plans = policy.plan_batch(
        [history] * len(generators), generators=generators, steps=steps, sampling=sampling, candidates=1
    )
    actions = np.stack([plan.actions for plan in plans], axis=1)
    paths = [plan.states for plan in plans if plan.states is not None]
    if not paths:
        return Forecast(actions)
    obs = np.stack(paths, axis=1)[..., : policy.spec.obs_dim]
    if not (std and policy.model.reports_std):
        return Forecast(actions, obs)
    past = torch.from_numpy(history.states()).expand(len(paths), -1, -1)
    futures = torch.from_numpy(np.stack(paths)).float()
    with torch.inference_mode():
        spread = policy.model.futures_std(past, futures, sampling=sampling)[..., : policy.spec.obs_dim]
    return Forecast(actions, obs, spread.double().numpy().swapaxes(0, 1))


def sample_episode_forecasts(runner: EnvRunner, result: EpisodeResult) -> list[Forecast]:
    """Return the forecast of the plan in force for every control period of an episode but its end."""
    policy, trace = runner.policy, result.trace
    seed = 2**32 + result.seed  # no episode has it: their seeds are below 2³²
    generators = [torch.Generator().manual_seed(seed)] * FORECAST_SAMPLES
    chunk = runner.config.chunk or policy.chunk
    steps = max(FORECAST_STEPS, chunk) if policy.model.predicts_states else chunk
    forecasts: list[Forecast] = []
    ends = [start for start, _ in trace.histories[1:]] + [len(trace.actions)]
    for (start, history), end in zip(trace.histories, ends, strict=True):
        forecast = sample_forecast(
            policy, history, steps=steps, generators=generators, sampling=runner.sampling
        )
        forecasts += [forecast.skip(k) for k in range(end - start)]
    return forecasts
