"""`nsde-policy video train` and `nsde-policy video eval`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from nsde_policy.bounds import Count, Fraction, NonNegative, SeedNumber
from nsde_policy.cli.shared.options import DeviceFlag, JsonFileFlag, check_json_file, print_results
from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable
from nsde_policy.video.config import VideoConfig

if TYPE_CHECKING:
    from torch import Tensor

    from nsde_policy.eval.video.evaluate import VideosToScore
    from nsde_policy.video.record import VideoRecord
    from nsde_policy.video.windows import Videos

TRAINING_COLLISIONS = 16_384
"""Videos that `video train collisions` simulates by default; half as many with --preset fast."""
LEAST_SIMULATED = 512
"""Videos that `video eval` simulates at least: the first ones of a seed depend on their number."""
FILM = "prediction.gif"
"""Name of the animation of a film."""
TRUE_FRAMES = "truth"
"""Title of the true frames in a film."""


@dataclass(frozen=True, kw_only=True)
class VideoPresetFlags:
    """Where the settings of a training start from."""

    method: str = "neural_sde"
    """Method: neural_sde, flow_matching or interpolants (PFI)."""
    preset: str = "default"
    """Settings to start from: default (a GPU), fast (a CPU, frames of 32 × 32), paper (as published)."""


@dataclass(frozen=True, kw_only=True)
class VideoTrain(VideoPresetFlags):
    """Train a model that predicts the next frames of videos; writes a run directory."""

    data: Annotated[
        str,
        Positional,
        arg(help="Store of videos, or `collisions` to simulate shapes that bounce off each other."),
    ]
    out: Path | None = None
    """Run directory; default runs/video-METHOD-PRESET-SEED."""
    seed: SeedNumber = 0
    """Seed of weights, windows and noise."""
    videos: Count | None = None
    """Number of simulated videos, only with `collisions`; default: 16384, or 8192 with --preset fast."""
    device: DeviceFlag = "auto"
    validation: Fraction = 0.0
    """Share of a store's videos held out of training, chosen independently of --seed; `video eval` uses no
    others of that store."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    config: Annotated[VideoConfig, arg(name="")]

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> "VideoTrain":
        """Parse the flags; the defaults of the settings are those of the method and the preset."""
        start, rest = tyro.cli(VideoPresetFlags, args=args, return_unknown_args=True, add_help=False)
        config = VideoConfig.from_preset(start.preset, start.method)
        default = cls(**vars(start), data=tyro.MISSING, config=config)
        asks_help = {"-h", "--help"} & {*rest}
        return tyro.cli(cls, prog=prog, default=default, args=["--help"] if asks_help else rest)

    def run(self) -> None:
        """Train with a progress bar and print the run directory."""
        from nsde_policy.inference.torch_threads import count_threads, use_threads
        from nsde_policy.video.collisions import COLLISIONS
        from nsde_policy.video.run import train_video
        from nsde_policy.video.sources import open_training_videos

        if self.validation and self.data == COLLISIONS:
            raise ConfigError("collisions are scored on other simulated videos: leave out --validation")
        if self.videos is not None and self.data != COLLISIONS:
            raise ConfigError(
                f"--videos is the number of simulated {COLLISIONS}, but all videos of the store {self.data} "
                "are used: leave it out"
            )
        out = self.out or Path("runs") / f"video-{self.method}-{self.preset}-{self.seed}"
        usual = TRAINING_COLLISIONS // 2 if self.preset == "fast" else TRAINING_COLLISIONS
        count = usual if self.videos is None else self.videos
        videos = open_training_videos(self.data, self.config, count=count, device=self.device)
        videos, _ = videos.split(self.validation)
        with use_threads(count_threads()):
            run = train_video(
                videos, self.config, out, seed=self.seed, device=self.device, resume=self.resume
            )
        print(f"trained {run.path}")


@dataclass(frozen=True)
class VideoEval:
    """Score video models against the true frames; two rows repeat the last frame and extrapolate."""

    runs: Annotated[tuple[Path, ...], Positional, arg(help="Run directories of `video train`.")]
    data: str | None = None
    """Store of videos, or `collisions` for simulated ones; default: what the first run was trained on. Videos
    that a run was trained on are never used."""
    tuning: bool = False
    """Use other simulated videos, or the other half of the held-out ones, on which settings may be chosen."""
    videos: Count = 512
    """Most videos to score; longer ones of a store are cut into windows, and this many of those are used."""
    steps: Count = 12
    """Frames to predict after the context."""
    substeps: Count | None = None
    """Solver steps per frame, of one network call each; default: as in training."""
    alpha: NonNegative | None = None
    """Strength of the denoiser of a Neural SDE; default: as in training."""
    first_stage: bool = False
    """Score the model before the second stage of training."""
    seed: SeedNumber = 0
    """Seed of the sampled predictions."""
    device: DeviceFlag = "auto"
    features: Path | None = None
    """A .safetensors file of I3D, which gives one more column: FVD, the Fréchet distance between the features
    of predicted and true videos."""
    film: Path | None = None
    """Folder for `prediction.gif`, an animation of true and predicted frames of the first video."""
    json: JsonFileFlag = None

    def run(self) -> None:
        """Print a table with intervals over videos."""
        from nsde_policy.eval.video.evaluate import (
            FilmedPredictor,
            evaluate_video,
            make_predictor,
        )
        from nsde_policy.eval.video.i3d import load_features
        from nsde_policy.video.record import VideoRecord
        from nsde_policy.video.run import load_video_model

        if not self.runs:
            raise ConfigError("name at least one run directory of `nsde-policy video train`")
        labels = _label_runs(self.runs)
        check_json_file(self.json)
        if self.film:
            check_writable(self.film / FILM)
        network = load_features(self.features, device=self.device) if self.features else None
        models = [
            load_video_model(run, device=self.device, first_stage=self.first_stage) for run in self.runs
        ]
        context = max(model.config.history for model in models)
        predictors = {
            label: FilmedPredictor(
                make_predictor(model, seed=self.seed, substeps=self.substeps, alpha=self.alpha)
            )
            for label, model in zip(labels, models, strict=True)
        }
        records = [VideoRecord.read(run) for run in self.runs]
        videos = self._load_videos(records, context + self.steps)
        scores = evaluate_video(
            predictors, videos, steps=self.steps, context=context, device=self.device, network=network
        )
        if self.film:
            rows = {label: predictor.frames for label, predictor in predictors.items()}
            self._draw_film(self.film, rows, videos.frames[0, : context + self.steps])
        results = scores.to_json(**self._describe(records[0].videos.source))
        print_results(self.json, results, scores.format_table())

    def _describe(self, source: str) -> dict[str, object]:
        """Return what was scored, and how; None for settings of the runs."""
        from nsde_policy.eval.latency import device_name

        names = ("tuning", "first_stage", "seed", "substeps", "alpha")
        return {
            "runs": [str(run) for run in self.runs],
            "data": self.data or source,
            **{name: getattr(self, name) for name in names},
            "device": device_name(self.device),
        }

    def _draw_film(self, out: Path, rows: dict[str, "Tensor"], true: "Tensor") -> None:
        """Draw the predicted frames of a video below the true ones (length, size, size, 3) uint8."""
        from nsde_policy.eval.video.figures import write_animation
        from nsde_policy.video.pixels import to_unit

        context, rows = true[: -self.steps], {TRUE_FRAMES: to_unit(true[-self.steps :]), **rows}
        write_animation(context, rows, out / FILM)

    def _load_videos(self, records: Sequence["VideoRecord"], length: int) -> "VideosToScore":
        from nsde_policy.eval.video.evaluate import VideosToScore
        from nsde_policy.video.collisions import (
            COLLISION_SEEDS,
            COLLISIONS,
            CollisionsConfig,
            make_collisions,
        )

        settings = [record.config for record in records]
        if len({(config.size, config.stride) for config in settings}) > 1:
            found = ", ".join(f"size {config.size}, stride {config.stride}" for config in settings)
            raise ConfigError(f"the runs have frames of different size or stride ({found}): score them apart")
        data = self.data or records[0].videos.source
        if data == COLLISIONS:
            seed = COLLISION_SEEDS["tuning" if self.tuning else "test"]
            config = CollisionsConfig(size=settings[0].size, frames=length)
            count = max(self.videos, LEAST_SIMULATED)
            return VideosToScore(make_collisions(count, config, seed=seed, keep=self.videos))
        opened = self._open_store(records, Path(data))
        if not len(opened) or opened.lengths.max() < length:
            raise ConfigError(
                f"{data} holds no video of {length} frames, the context and --steps {self.steps}, that "
                "may be scored: ask for fewer steps, or train with a larger --validation"
            )
        return VideosToScore.from_videos(opened, length, self.videos)

    def _open_store(self, records: Sequence["VideoRecord"], path: Path) -> "Videos":
        """Open the videos that no run was trained on; of held-out ones, every second is for tuning."""
        from nsde_policy.video.sources import open_unseen

        parts = [open_unseen(record, path) for record in records]
        chosen = sorted(set.intersection(*(set(part.chosen.tolist()) for part in parts)))
        is_held_out = len(chosen) < len(parts[0].episode_ends)
        return parts[0].select(chosen[int(self.tuning) :: 2] if is_held_out else chosen)


def _label_runs(runs: Sequence[Path]) -> list[str]:
    """Return the names of run directories, or their paths if names repeat."""
    from nsde_policy.eval.video.evaluate import BASELINES_OF_VIDEO, TRUE_VIDEOS

    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"a run directory is named twice: {', '.join(map(str, runs))}; name each once")
    names = [run.absolute().name for run in runs]
    labels = names if len({*names}) == len(names) else [str(run) for run in runs]
    for run, label in zip(runs, labels, strict=True):
        if label in (TRUE_FRAMES, TRUE_VIDEOS, *BASELINES_OF_VIDEO):
            raise ConfigError(f"{run} has the name of another row, {label!r}: rename the run directory")
    return labels
