"""`nsde-policy video data`: turn videos into a store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from nsde_policy.bounds import Count


@dataclass(frozen=True)
class VideoData:
    """Turn KTH, CLEVRER or a folder of videos into a store for training.

    Any store of demonstrations with images is one already. An interrupted conversion continues with the same
    command.
    """

    kind: Annotated[
        Literal["kth", "clevrer", "folder"],
        Positional,
        arg(help="Set of videos as distributed, or `folder` for all videos in a folder and below."),
    ]
    root: Annotated[Path, Positional, arg(help="Folder of the videos; for `folder` also one video.")]
    out: Path
    """Zarr directory to create, or to continue with the same settings."""
    split: Literal["train", "validation", "test"] = "train"
    """Part of KTH, by persons as in Schuldt et al. (2004), or of CLEVRER, by number."""
    stride: Count = 1
    """Keep every n-th frame; 5 is usual for CLEVRER."""
    size: Count = 64
    """Height and width of the stored frames."""
    crop: bool = False
    """Cut the largest square out of the middle of each frame; otherwise the whole frame is squeezed."""

    def run(self) -> None:
        """Write videos with a progress bar and print what the store holds."""
        from tqdm import tqdm

        from nsde_policy.data.video_files import FrameConfig
        from nsde_policy.data.video_sets import find_clevrer, find_kth, find_videos, write_videos

        if self.kind == "folder":
            videos = find_videos(self.root)
        else:
            find = find_kth if self.kind == "kth" else find_clevrer
            videos = find(self.root, self.split)
        try:
            report = write_videos(
                videos,
                self.out,
                FrameConfig(size=self.size, stride=self.stride, crop=self.crop),
                progress=lambda items: tqdm(items, "decoding", unit="video", leave=False, disable=None),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
        print(
            f"OK: {self.out} holds {report.videos} videos ({report.added} new), {report.frames} frames of "
            f"{self.size} × {self.size}, {report.rate_hz:g} Hz"
        )
