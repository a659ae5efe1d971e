"""`nsde-video`: the commands `train`, `eval` and `data`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from nsde_policy.bounds import Count, SeedNumber
from nsde_policy.cli.main import Program
from nsde_policy.cli.shared.options import (
    Check,
    Command,
    DemosPath,
    DeviceCommand,
    DeviceFlag,
    JsonFileFlag,
    print_results,
)
from nsde_policy.errors import CheckpointError, ConfigError

from .settings import VIDEO_KEY, VideoConfig


def check_video_run(run: Path) -> None:
    """Raise `CheckpointError` if a folder is not a run directory."""
    if not (run / "config.json").exists():
        what = "is not a run directory" if run.exists() else "does not exist"
        raise CheckpointError(f"{run} {what}; `nsde-video train` writes one")


@dataclass(frozen=True, kw_only=True)
class VideoPresetFlags:
    """Where the settings of a training start from."""

    method: Literal["neural_sde", "flow_matching", "interpolants"] = "neural_sde"
    """Method: neural_sde, flow_matching or interpolants (PFI)."""
    preset: Literal["default", "fast", "paper"] = "default"
    """Settings to start from: default (a GPU), fast (a CPU, frames of 32 × 32), paper (as published)."""


@dataclass(frozen=True, kw_only=True)
class VideoTrain(VideoPresetFlags, DeviceCommand):
    """Train a model that predicts the next frames of videos; writes a run directory."""

    data: Annotated[DemosPath, Positional, arg(help="Store of videos.")]
    out: Path | None = None
    """Run directory; default runs/video-METHOD-PRESET-SEED."""
    seed: SeedNumber = 0
    """Seed of weights, windows and noise."""
    device: DeviceFlag = "auto"
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

    def check(self) -> None:
        """Refuse a store without videos before torch is imported."""
        from nsde_policy.data.readers import open_source

        open_source(self.data).open_episodes([VIDEO_KEY])

    def run(self) -> None:
        """Train with a progress bar and print the run directory."""
        from nsde_policy.torch_threads import count_threads, use_threads

        from .video_run import train_video
        from .videos import open_videos

        out = self.out or Path("runs") / f"video-{self.method}-{self.preset}-{self.seed}"
        videos = open_videos(self.data, size=self.config.size)
        with use_threads(count_threads()):
            run = train_video(
                videos, self.config, out, seed=self.seed, device=self.device, resume=self.resume
            )
        print(f"trained {run.path}")


@dataclass(frozen=True)
class VideoEval(DeviceCommand):
    """Score a video model against the true frames; another row repeats the last frame."""

    model: Annotated[
        Annotated[Path, Check(check_video_run)],
        Positional,
        arg(help="Run directory of `nsde-video train`."),
    ]
    data: DemosPath
    """Store of other videos than those of the training."""
    videos: Count = 512
    """Most videos to score; longer ones are cut into windows, and this many of those are used."""
    steps: Count = 12
    """Frames to predict after the context."""
    substeps: Count | None = None
    """Solver steps per frame, of one network call each; default: as in training."""
    seed: SeedNumber = 0
    """Seed of the sampled predictions."""
    device: DeviceFlag = "auto"
    json: JsonFileFlag = None

    def run(self) -> None:
        """Print a table with intervals over videos."""
        from nsde_policy.eval.machine import device_name

        from .frame_scores import cut_windows, make_predictor, score_predictors
        from .video_run import VideoRecord, load_video_model
        from .videos import open_videos

        record, model = VideoRecord.read(self.model), load_video_model(self.model, device=self.device)
        videos = open_videos(self.data, size=record.config.size)
        record.refuse_training_videos(videos)
        context = model.config.history
        if videos.lengths.max(initial=0) < context + self.steps:
            raise ConfigError(
                f"{self.data} holds no video of {context + self.steps} frames, {context} of context and "
                f"--steps {self.steps}: ask for fewer steps"
            )
        sampling = model.config.sampling
        if self.substeps is not None:
            sampling = replace(sampling, substeps=self.substeps)
        scores = score_predictors(
            {str(self.model): make_predictor(model, seed=self.seed, sampling=sampling)},
            *cut_windows(videos, context + self.steps, self.videos),
            steps=self.steps,
            context=context,
            device=self.device,
        )
        results = scores.to_json(
            run=str(self.model),
            data=str(self.data),
            seed=self.seed,
            sampling=sampling.to_dict(),
            device=device_name(self.device),
        )
        print_results(self.json, results, scores.format_table())


@dataclass(frozen=True)
class VideoData(Command):
    """Turn a folder of videos into a store for training.

    Any store of demonstrations with images is one already. An interrupted conversion continues with the same
    command.
    """

    root: Annotated[Path, Positional, arg(help="Folder of the videos and below, or one video.")]
    out: Path
    """Zarr directory to create, or to continue with the same settings."""
    stride: Count = 1
    """Keep every n-th frame; 5 is usual for CLEVRER."""
    size: Count = 64
    """Height and width of the stored frames; the aspect ratio is not kept."""

    def run(self) -> None:
        """Write videos with a progress bar and print what the store holds."""
        from tqdm import tqdm

        from .video_stores import FrameConfig, find_videos, write_videos

        try:
            report = write_videos(
                find_videos(self.root),
                self.out,
                FrameConfig(size=self.size, stride=self.stride),
                progress=lambda paths: tqdm(paths, "decoding", unit="video", leave=False, disable=None),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
        print(
            f"OK: {self.out} holds {report.videos} videos ({report.added} new), {report.frames} frames of "
            f"{self.size} × {self.size}, {report.rate_hz:g} Hz"
        )


NSDE_VIDEO = Program(
    "nsde-video",
    "Predict the next frames of videos with Neural SDEs, Flow Matching or interpolants.",
    {"commands": {"data": VideoData, "train": VideoTrain, "eval": VideoEval}},
)


def main() -> None:
    """Run one command and exit."""
    sys.exit(NSDE_VIDEO.run())


if __name__ == "__main__":
    main()
