"""Score predictors of video on the same test videos: means and 95 % intervals per frame, JSON and a table."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.score.sums import EpisodeSums
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tables import format_markdown, format_mean
from nsde_policy.eval.video.i3d import FeatureNetwork
from nsde_policy.eval.video.metrics import Features, frechet_distance, measure_motion, ssim
from nsde_policy.video.base import VideoModel, psnr, to_unit
from nsde_policy.video.windows import Videos

Predictor = Callable[[Tensor, int], Tensor]
"""Takes context frames (n, context, size, size, 3) uint8, oldest first, and the number of steps; returns
frames (n, steps, 3, size, size) with values from -1 to 1."""
FrameSums = dict[str, tuple[Tensor, Tensor]]
"""Total and count of each figure by its name, (n, steps); their ratio is the figure."""
VIDEO_FIGURES = {
    "psnr": "PSNR, dB",
    "ssim": "SSIM",
    "motion": "motion, share of the true",
    "fvd": "FVD",
}
"""Figures and their titles; all but the last are figures per frame."""


def repeat_last_frame(frames: Tensor, steps: int) -> Tensor:
    """Predict that nothing moves."""
    return to_unit(frames[:, -1:]).expand(-1, steps, -1, -1, -1)


def extrapolate_linearly(frames: Tensor, steps: int) -> Tensor:
    """Predict x_t + k (x_t − x_{t−1}), clipped to the range of pixels."""
    before, last = to_unit(frames[:, -2, None]), to_unit(frames[:, -1, None])
    ahead = torch.arange(1, steps + 1, device=frames.device)[:, None, None, None]
    return (last + ahead * (last - before)).clamp(-1, 1)


def make_predictor(model: VideoModel, *, seed: int = 0, **changes: float | None) -> Predictor:
    """Return a predictor that samples frames from a model, on the device that the model is on.

    The model sees the last frames of the context that it needs. `changes` are settings of sampling that
    replace its own, such as `substeps`, unless they are None.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    own, method = model.config.sampling, model.config.method
    for name in given:
        if not hasattr(own, name):
            raise ConfigError(f"a model of {method} is sampled without {name}: leave out --{name}")
    if "alpha" in given and not getattr(model.config, "denoiser", True):
        raise ConfigError(f"this model of {method} was trained without a denoiser: leave out --alpha")
    sampling = replace(own, **given)  # type: ignore[arg-type]
    generator = torch.Generator(model.increment_std.device).manual_seed(seed)

    def predict(frames: Tensor, steps: int) -> Tensor:
        seen = frames[:, -model.config.history :]
        return model.generate(seen, steps=steps, sampling=sampling, generator=generator)

    return predict


BASELINES_OF_VIDEO: dict[str, Predictor] = {
    "repeat the last frame": repeat_last_frame,
    "linear extrapolation": extrapolate_linearly,
}
"""Predictors without a model, which every evaluation includes."""
TRUE_VIDEOS = "true videos"


@dataclass(frozen=True)
class VideosToScore:
    """Test videos, or windows of them."""

    frames: Tensor
    """(n, length, size, size, 3) uint8."""
    origin: Tensor | None = None
    """Video that each window was cut from, (n,); None if each is a video of its own. Intervals are over
    videos."""

    @classmethod
    def from_videos(cls, videos: Videos, length: int, most: int) -> Self:
        """Cut videos into windows of `length` frames side by side; of more than `most`, take spread ones."""
        counts = videos.lengths // length
        origin = np.repeat(np.arange(len(videos)), counts)
        first = np.concatenate([np.arange(count) for count in counts]) * length * videos.stride
        starts = videos.starts[origin] + first
        shown = np.linspace(0, len(starts) - 1, min(most, len(starts))).round().astype(int)
        return cls(videos.read(starts[shown], length).frames, origin=torch.from_numpy(origin[shown]))

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True)
class VideoRow:
    """Figures of one predictor."""

    sums: Mapping[str, EpisodeSums]
    """Sums over each video by figure, (videos, steps)."""
    fvd: float | None = None
    """Fréchet distance between the predicted and the true videos, if a network for features was given."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Means of the figures over all frames with their intervals, by name."""
        return {name: sums.pool(1).at() for name, sums in self.sums.items()}

    def to_dict(self) -> dict[str, object]:
        """Return means over all frames and by frame as plain numbers and lists, None for unknown ones."""
        frames = {
            name: {**sums.pool(1).intervals.to_dict(), "per_frame": sums.intervals.to_dict()}
            for name, sums in self.sums.items()
        }
        return {**frames, **({} if self.fvd is None else {"fvd": self.fvd})}


@dataclass(frozen=True)
class VideoScores:
    """Figures of several predictors on the same videos."""

    context: int
    """Frames that predictors see."""
    steps: int
    """Frames that they predict."""
    videos: int
    windows: int
    """Predictions, one per video or several."""
    rows: Mapping[str, VideoRow]
    """Figures by the label of the predictor."""

    def to_json(self, **facts: object) -> str:
        """Return all figures as JSON, after further facts such as the seed."""
        facts |= {name: getattr(self, name) for name in ("context", "steps", "videos", "windows")}
        rows = {label: row.to_dict() for label, row in self.rows.items()}
        return json.dumps({**facts, "rows": rows}, indent=2, allow_nan=False)

    def format_table(self) -> str:
        """Format the means over all frames as a Markdown table with 95 % intervals over videos."""
        lines = [
            [label, *map(str, row.estimates.values()), *([] if row.fvd is None else [format_mean(row.fvd)])]
            for label, row in self.rows.items()
        ]
        return format_markdown(["predictor", *VIDEO_FIGURES.values()][: len(lines[0])], lines)


def evaluate_video(
    predictors: Mapping[str, Predictor],
    videos: VideosToScore,
    *,
    steps: int,
    context: int = 4,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    network: FeatureNetwork | None = None,
) -> VideoScores:
    """Score predictors, and the baselines, on the frames after the first `context` of each video.

    The videos may be on another device than the predictors. With a network, FVD is computed from the features
    of clips: the context, then the predicted or true frames. The network sees the last frames of a clip.
    """
    length = videos.frames.shape[1]
    if not len(videos) or length < context + steps or context < 2 or steps < 1:
        raise ComparisonError(
            f"{len(videos)} videos of {length} frames: need videos of at least {context} frames of context "
            f"(2 or more) and {steps} to predict (1 or more)"
        )
    all_predictors = {**predictors, **BASELINES_OF_VIDEO}
    sums: dict[str, list[FrameSums]] = {label: [] for label in all_predictors}
    features: dict[str, list[Features]] = {label: [] for label in (*all_predictors, TRUE_VIDEOS)}
    for start in range(0, len(videos), batch_size):
        frames = videos.frames[start : start + batch_size, : context + steps].to(device)
        seen, true = to_unit(frames[:, :context]), to_unit(frames[:, context:])
        shown = {TRUE_VIDEOS: true}
        for label, predictor in all_predictors.items():
            shown[label] = check_prediction(predictor(frames[:, :context], steps), true, label)
            sums[label].append(score_frames(shown[label], true, last=seen[:, -1:]))
        if network is not None:
            for label, each in shown.items():
                features[label].append(network.compute(torch.cat([seen, each], dim=1)))
    origin = np.arange(len(videos)) if videos.origin is None else videos.origin.numpy()
    distinct, place = np.unique(origin, return_inverse=True)
    windows = torch.from_numpy(place)
    rows = {}
    for label in all_predictors:
        fvd = None
        if network is not None:
            fvd = frechet_distance(np.concatenate(features[label]), np.concatenate(features[TRUE_VIDEOS]))
        rows[label] = VideoRow(_add_up(sums[label], windows), fvd)
    return VideoScores(context, steps, len(distinct), len(videos), rows)


def _add_up(batches: Sequence[FrameSums], origin: Tensor) -> dict[str, EpisodeSums]:
    """Join all batches, and add up the windows of each video."""
    found = {}
    for name in batches[0]:
        pairs = zip(*(batch[name] for batch in batches), strict=True)
        total, count = (
            torch.zeros(int(origin.max()) + 1, part[0].shape[1], dtype=torch.float64).index_add(
                0, origin, torch.cat(part).double().cpu()
            )
            for part in pairs
        )
        found[name] = EpisodeSums(np.asarray(total), np.asarray(count))
    return found


def check_prediction(predicted: Tensor, true: Tensor, label: str) -> Tensor:
    """Return predicted frames from -1 to 1; raise `ComparisonError` for another shape or NaN."""
    if predicted.shape != true.shape:
        raise ComparisonError(
            f"{label} returned frames of shape {tuple(predicted.shape)}, expected {tuple(true.shape)}"
        )
    if not bool(predicted.isfinite().all()):
        raise ComparisonError(f"{label} returned frames with values that are not finite")
    return predicted.float().clamp(-1, 1)


def score_frames(predicted: Tensor, true: Tensor, *, last: Tensor) -> FrameSums:
    """Return total and count of each figure for frames (n, steps, 3, size, size) after the frames `last`."""
    moved, moving = (measure_motion(torch.cat([last, frames], dim=1)) for frames in (predicted, true))
    one = torch.ones_like(moved)
    return {
        "psnr": (psnr(predicted, true), one),
        "ssim": (ssim(predicted, true), one),
        "motion": (moved, moving),
    }
