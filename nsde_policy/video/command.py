"""`nsde-policy video`: the commands `train`, `eval` and `data`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from tyro.conf import Positional, arg

from nsde_policy.bounds import Count, Fraction, NonNegative, SeedNumber
from nsde_policy.cli.shared.flags import FLAG_RULES
from nsde_policy.cli.shared.options import (
    Check,
    DemosPath,
    DeviceFlag,
    JsonFileFlag,
    check_run,
    print_results,
)
from nsde_policy.cli.shared.ranks import get_rank
from nsde_policy.errors import ConfigError

from .settings import VIDEO_KEY, VideoConfig


@dataclass(frozen=True, kw_only=True)
class VideoPresetFlags:
    """Where the settings of a training start from."""

    method: Literal["neural_sde", "flow_matching", "interpolants"] = "neural_sde"
    """Method: neural_sde, flow_matching or interpolants (PFI)."""
    preset: Literal["default", "fast", "paper"] = "default"
    """Settings to start from: default (a GPU), fast (a CPU, frames of 32 × 32), paper (as published)."""


@dataclass(frozen=True, kw_only=True)
class VideoTrain(VideoPresetFlags):
    """Train a model that predicts the next frames of videos; writes a run directory."""

    uses_ranks: ClassVar[bool] = True
    data: Annotated[DemosPath, Positional, arg(help="Store of videos.")]
    out: Path | None = None
    """Run directory; default runs/video-METHOD-PRESET-SEED."""
    seed: SeedNumber = 0
    """Seed of weights, windows and noise."""
    device: DeviceFlag = "auto"
    validation: Fraction = 0.0
    """Fraction of a store's videos held out of training, chosen independently of --seed; `video eval` uses no
    others of that store."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    config: Annotated[VideoConfig, arg(name="")]

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> "VideoTrain":
        """Parse the flags; the defaults of the settings are those of the method and the preset."""
        start, rest = tyro.cli(
            VideoPresetFlags, args=args, return_unknown_args=True, add_help=False, registry=FLAG_RULES
        )
        config = VideoConfig.from_preset(start.preset, start.method)
        default = cls(**vars(start), data=tyro.MISSING, config=config)
        asks_help = {"-h", "--help"} & {*rest}
        return tyro.cli(
            cls, prog=prog, default=default, args=["--help"] if asks_help else rest, registry=FLAG_RULES
        )

    def check(self) -> None:
        """Refuse a store without videos before torch is imported."""
        from nsde_policy.data.readers import open_source

        open_source(self.data).open_episodes([VIDEO_KEY])

    def run(self) -> None:
        """Train with a progress bar and print the run directory."""
        from nsde_policy.policy.torch_threads import count_threads, use_threads

        from .video_run import train_video
        from .videos import open_videos

        out = self.out or Path("runs") / f"video-{self.method}-{self.preset}-{self.seed}"
        videos = open_videos(self.data, size=self.config.size).hold_out(self.validation)
        with use_threads(count_threads()):
            run = train_video(
                videos, self.config, out, seed=self.seed, device=self.device, resume=self.resume
            )
        if get_rank() == 0:
            print(f"trained {run.path}")


VideoRunPath = Annotated[Path, Check(lambda run: check_run(run, "video train"))]


@dataclass(frozen=True)
class VideoEval:
    """Score video models against the true frames; two rows repeat the last frame and extrapolate."""

    models: Annotated[tuple[VideoRunPath, ...], Positional, arg(help="Run directories of `video train`.")]
    data: DemosPath | None = None
    """Store of videos; default: the one that the first run was trained on. Videos that a run was trained on
    are never used."""
    videos: Count = 512
    """Most videos to score; longer ones are cut into windows, and this many of those are used."""
    steps: Count = 12
    """Frames to predict after the context."""
    substeps: Count | None = None
    """Solver steps per frame, of one network call each; default: as in training."""
    alpha: NonNegative | None = None
    """Denoising strength of a Neural SDE; default: as in training."""
    seed: SeedNumber = 0
    """Seed of the sampled predictions."""
    device: DeviceFlag = "auto"
    json: JsonFileFlag = None

    def run(self) -> None:
        """Print a table with intervals over videos."""
        import numpy as np

        from nsde_policy.eval.latency import device_name

        from .frame_scores import cut_windows, make_predictor, score_predictors
        from .video_run import VideoRecord, load_video_model
        from .videos import open_videos

        if not self.models:
            raise ConfigError("name at least one run directory of `nsde-policy video train`")
        models = [load_video_model(run, device=self.device) for run in self.models]
        records = [VideoRecord.read(run) for run in self.models]
        sizes = {record.config.size for record in records}
        if len(sizes) > 1:
            raise ConfigError(f"the runs have frames of different sizes ({sizes}): score them apart")
        data = self.data or Path(records[0].videos.source)
        videos = open_videos(data, size=sizes.pop())
        unseen = reduce(np.intersect1d, [record.select_unseen(videos).indices for record in records])
        context = max(model.config.history for model in models)
        videos, length = videos.select(unseen), context + self.steps
        if videos.lengths.max(initial=0) < length:
            raise ConfigError(
                f"{data} holds no video of {length} frames, the context and --steps {self.steps}, that "
                "may be scored: ask for fewer steps, or train with a larger --validation"
            )
        scores = score_predictors(
            {
                str(run): make_predictor(model, seed=self.seed, substeps=self.substeps, alpha=self.alpha)
                for run, model in zip(self.models, models, strict=True)
            },
            *cut_windows(videos, length, self.videos),
            steps=self.steps,
            context=context,
            device=self.device,
        )
        results = scores.to_json(
            runs=[str(run) for run in self.models],
            data=str(data),
            seed=self.seed,
            substeps=self.substeps,
            alpha=self.alpha,
            device=device_name(self.device),
        )
        print_results(self.json, results, scores.format_table())


@dataclass(frozen=True)
class VideoData:
    """Turn a folder of videos into a store for training.

    Any store of demonstrations with images is one already. An interrupted conversion continues with the same
    command.
    """

    root: Annotated[Path, Positional, arg(help="Folder of the videos and below, or one video.")]
    out: Path
    """Zarr directory to create, or to continue with the same settings."""
    kth: Literal["train", "validation", "test"] | None = None
    """Take one part of KTH, by persons as in Schuldt et al. (2004)."""
    stride: Count = 1
    """Keep every n-th frame; 5 is usual for CLEVRER."""
    size: Count = 64
    """Height and width of the stored frames."""
    crop: bool = False
    """Cut the largest square out of the middle of each frame; otherwise the whole frame is squeezed."""

    def run(self) -> None:
        """Write videos with a progress bar and print what the store holds."""
        from tqdm import tqdm

        from .video_stores import FrameConfig, find_videos, write_videos

        try:
            report = write_videos(
                find_videos(self.root, kth=self.kth),
                self.out,
                FrameConfig(size=self.size, stride=self.stride, crop=self.crop),
                made_with={"kth": self.kth} if self.kth else {},
                progress=lambda paths: tqdm(paths, "decoding", unit="video", leave=False, disable=None),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
        print(
            f"OK: {self.out} holds {report.videos} videos ({report.added} new), {report.frames} frames of "
            f"{self.size} × {self.size}, {report.rate_hz:g} Hz"
        )
