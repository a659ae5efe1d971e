"""`nsde-policy video data`: turn videos into stores."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from nsde_policy.bounds import Count, Positive, SeedNumber

if TYPE_CHECKING:
    from nsde_policy.data.video_sets import VideoSet, WriteReport

VideoRootFlag = Annotated[Path, Positional, arg(help="Folder of the videos.")]
VideoSplit = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class FrameFlags:
    """Flags of the commands that decode videos."""

    root: VideoRootFlag
    out: Path
    """Zarr directory to create, or to continue with the same settings."""
    size: Count = 64
    """Height and width of the stored frames."""
    crop: bool = False
    """Cut the largest square out of the middle of each frame; otherwise the whole frame is squeezed."""
    rate: Positive | None = None
    """Take this many frames per second by their timestamps; default: all frames, which must be evenly
    spaced."""
    skip_damaged: bool = False
    """Leave out videos that cannot be used, and list them, instead of stopping at the first."""
    json: bool = False
    """Print JSON instead of text."""

    def convert(self, videos: "VideoSet", *, stride: int) -> None:
        """Write videos with a progress bar and print what the store holds."""
        from tqdm import tqdm

        from nsde_policy.data.video_files import FrameConfig
        from nsde_policy.data.video_sets import write_videos

        try:
            report = write_videos(
                videos,
                self.out,
                FrameConfig(size=self.size, stride=stride, crop=self.crop, rate=self.rate),
                skip_damaged=self.skip_damaged,
                progress=lambda items: tqdm(items, "decoding", unit="video", leave=False, disable=None),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
        _print_report(report, as_json=self.json)


@dataclass(frozen=True)
class DataKth(FrameFlags):
    """Turn one part of the KTH actions into a store.

    ROOT holds the videos as distributed, person01_boxing_d1_uncomp.avi and so on, in one folder per action or
    all in one. With 00sequences.txt in ROOT, each of its sequences becomes a video of the store.
    """

    split: VideoSplit = "train"
    """Part, by persons as in Schuldt et al. (2004)."""
    stride: Count = 1
    """Keep every n-th frame."""

    def run(self) -> None:
        """Write the videos of the part."""
        from nsde_policy.data.video_sets import find_kth

        self.convert(find_kth(self.root, self.split), stride=self.stride)


@dataclass(frozen=True)
class DataClevrer(FrameFlags):
    """Turn one part of CLEVRER into a store.

    ROOT holds the videos as distributed, video_train/video_00000-01000/video_00000.mp4 and so on.
    """

    split: VideoSplit = "train"
    """Part of the set, by number."""
    stride: Count = 5
    """Keep every n-th frame."""

    def run(self) -> None:
        """Write the videos of the part."""
        from nsde_policy.data.video_sets import find_clevrer

        self.convert(find_clevrer(self.root, self.split), stride=self.stride)


@dataclass(frozen=True)
class DataFolder(FrameFlags):
    """Turn all videos of a folder, and of the folders in it, into a store; ROOT may also be one video."""

    stride: Count = 1
    """Keep every n-th frame."""

    def run(self) -> None:
        """Write the videos of the folder."""
        from nsde_policy.data.video_sets import find_videos

        self.convert(find_videos(self.root), stride=self.stride)


@dataclass(frozen=True)
class DataCollisions:
    """Simulate videos of colliding shapes, and write them with positions and velocities into a store."""

    out: Path
    """Zarr directory to create, or to continue with the same settings."""
    videos: Count = 1000
    """Number of videos in the finished store."""
    frames: Count = 16
    """Number of frames per video."""
    substeps: Count = 1
    """Frames that are kept per frame, a divisor of 20: 5 keeps four frames between each two."""
    size: Count = 64
    """Height and width of the frames."""
    seed: SeedNumber = 0
    """Seed of all randomness."""
    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Write the videos with a progress bar."""
        from tqdm import tqdm

        from nsde_policy.video.collision_store import write_collisions
        from nsde_policy.video.collisions import CollisionsConfig

        try:
            report = write_collisions(
                self.out,
                self.videos,
                CollisionsConfig(size=self.size, frames=self.frames, substeps=self.substeps),
                seed=self.seed,
                progress=lambda batches: tqdm(batches, "simulating", unit="batch", leave=False, disable=None),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
        _print_report(report, as_json=self.json)


def _print_report(report: "WriteReport", *, as_json: bool) -> None:
    if as_json:
        values: dict[str, Any] = report.to_dict()
        print(json.dumps(values, indent=2))
        return
    for line in report.skipped:
        print(f"left out: {line}")
    print(
        f"OK: {report.path} holds {report.videos} videos ({report.added} new), {report.frames} frames of "
        f"{report.size} × {report.size}, {report.rate_hz:g} Hz"
    )
