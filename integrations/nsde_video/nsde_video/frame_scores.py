"""Scores of predicted frames: PSNR, SSIM and motion, with 95 % intervals over videos.

Frames are (..., 3, height, width) with values from -1 to 1, so the data range is 2.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.statistics import EpisodeSums
from nsde_policy.eval.tables import format_markdown

from .next_frame import VideoModel, to_unit
from .settings import VideoSampling
from .videos import Videos

DATA_RANGE = 2.0
"""Largest minus smallest value of a pixel."""
MAX_PSNR = 60.0
"""Largest PSNR, dB: about that of a frame and the same frame rounded to bytes. Without this limit, the few
videos in which nothing moves would decide the mean."""
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5
"""Side and standard deviation of the Gaussian window of SSIM, pixels."""
MOTION_CELL = 4
"""Frames are averaged over squares of this side before motion is measured, which removes pixel noise."""
MOTION_THRESHOLD = 0.05
"""Change of a square over one frame that does not count as motion."""
FIGURES = {"psnr": "PSNR, dB", "ssim": "SSIM", "motion": "motion, fraction of the true"}
"""Figures and their titles."""
NO_MODEL = "repeat the last frame"
"""Label of the prediction without a model, which every evaluation includes."""

Predictor = Callable[[Tensor, int], Tensor]
"""Takes context frames (n, context, size, size, 3) uint8, oldest first, and the number of steps; returns
frames (n, steps, 3, size, size) with values from -1 to 1."""


def psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each frame, 10 log10(range² / mean square error), dB."""
    error = (predicted - true).square().mean(dim=(-3, -2, -1)) / DATA_RANGE**2
    return -10 * error.clamp(min=10 ** (-MAX_PSNR / 10)).log10()


def ssim(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the structural similarity of each frame (Wang et al. 2004), averaged over the channels.

    The window is a Gaussian of 11 × 11 pixels with σ = 1.5, K₁ = 0.01, K₂ = 0.03; only windows that lie
    inside the frame are averaged.
    """
    height, width = predicted.shape[-2:]
    rows = _window_matrix(height, predicted.device)
    columns = _window_matrix(width, predicted.device).T

    def blur(images: Tensor) -> Tensor:
        return rows @ images @ columns

    c1, c2 = (0.01 * DATA_RANGE) ** 2, (0.03 * DATA_RANGE) ** 2
    mean_a, mean_b = blur(predicted), blur(true)
    product = mean_a * mean_b
    squares = mean_a.square() + mean_b.square()
    covariance = blur(predicted * true) - product
    variances = blur(predicted.square() + true.square()) - squares
    similarity = (2 * product + c1) * (2 * covariance + c2) / ((squares + c1) * (variances + c2))
    return similarity.mean(dim=(-3, -2, -1))


@functools.lru_cache(maxsize=8)
def _window_matrix(size: int, device: torch.device) -> Tensor:
    """Return the matrix that takes `size` pixels to their Gaussian averages, (size - 10, size)."""
    if size < SSIM_WINDOW:
        raise ConfigError(f"SSIM needs frames of at least {SSIM_WINDOW} × {SSIM_WINDOW} pixels, got {size}")
    offset = torch.arange(SSIM_WINDOW, dtype=torch.float64) - SSIM_WINDOW // 2
    window = (-offset.square() / (2 * SSIM_SIGMA**2)).exp()
    matrix = torch.zeros(size - SSIM_WINDOW + 1, size, dtype=torch.float64)
    for row in range(len(matrix)):
        matrix[row, row : row + SSIM_WINDOW] = window / window.sum()
    return matrix.to(device, torch.float32)


def measure_motion(frames: Tensor) -> Tensor:
    """Return the amount of motion from each frame to the next, (n, length - 1), for frames (n, length, …).

    It is the sum over squares of 4 × 4 pixels and colours of max(|change of the mean| - 0.05, 0). The ratio
    of a prediction's motion to the true one is 0 for a frozen video, 1 for the true one, and hardly changed
    by independent pixel noise up to a standard deviation of 0.05.
    """
    cells = functional.avg_pool2d(frames.flatten(0, 1), MOTION_CELL)
    cells = cells.reshape(*frames.shape[:2], *cells.shape[1:])
    change = (cells[:, 1:] - cells[:, :-1]).abs()
    return (change - MOTION_THRESHOLD).clamp(min=0).sum(dim=(-3, -2, -1))


def repeat_last_frame(frames: Tensor, steps: int) -> Tensor:
    """Predict that nothing moves."""
    return to_unit(frames[:, -1:]).expand(-1, steps, -1, -1, -1)


def make_predictor(model: VideoModel, *, seed: int = 0, sampling: VideoSampling | None = None) -> Predictor:
    """Return a predictor that samples frames from a model, on the device that the model is on.

    The model sees the last frames of the context that it needs. `sampling` replaces its own settings.
    """
    generator = torch.Generator(model.increment_std.device).manual_seed(seed)

    def predict(frames: Tensor, steps: int) -> Tensor:
        context = frames[:, -model.config.history :]
        return model.generate(context, steps=steps, sampling=sampling, generator=generator)

    return predict


def cut_windows(videos: Videos, length: int, most: int) -> tuple[Tensor, Tensor]:
    """Cut videos into windows of `length` frames side by side; of more than `most`, take spread ones.

    Returns:
        Frames (n, length, size, size, 3) uint8, and the number of the video that each window comes from (n,).
    """
    counts = videos.lengths // length
    video = np.repeat(np.arange(len(videos)), counts)
    starts = videos.starts[video] + length * np.concatenate([np.arange(count) for count in counts])
    spread = np.linspace(0, len(starts) - 1, min(most, len(starts))).round().astype(int)
    _, number = np.unique(video[spread], return_inverse=True)
    return videos.read(starts[spread], length), torch.from_numpy(number)


@dataclass(frozen=True)
class FrameScores:
    """Figures of several predictors on the same videos."""

    context: int
    """Frames that predictors see."""
    steps: int
    """Frames that they predict."""
    videos: int
    windows: int
    """Predictions, one per video or several."""
    rows: Mapping[str, Mapping[str, EpisodeSums]]
    """Sums over each video, (videos,), by the label of the predictor and the figure."""

    def to_json(self, **facts: object) -> str:
        """Return the figures with their intervals as JSON, after further facts such as the seed."""
        facts |= {name: getattr(self, name) for name in ("context", "steps", "videos", "windows")}
        rows = {
            label: {name: sums.intervals.to_dict() for name, sums in row.items()}
            for label, row in self.rows.items()
        }
        return json.dumps({**facts, "rows": rows}, indent=2, allow_nan=False)

    def format_table(self) -> str:
        """Format the figures as a Markdown table with 95 % intervals over videos."""
        lines = [[label, *(str(row[name].at()) for name in FIGURES)] for label, row in self.rows.items()]
        return format_markdown(["predictor", *FIGURES.values()], lines)


def score_predictors(
    predictors: Mapping[str, Predictor],
    windows: Tensor,
    video: Tensor | None = None,
    *,
    steps: int,
    context: int = 4,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
) -> FrameScores:
    """Score predictors, and the repeated last frame, on the frames after the first `context` of each window.

    Args:
        predictors: Predictors by label.
        windows: Frames (n, context + steps or more, size, size, 3) uint8, on any device.
        video: Number of the video of each window, (n,), because intervals are over videos; None if each
            window is a video.
        steps: Frames to predict.
        context: Frames that predictors see.
        batch_size: Windows that are predicted together.
        device: Device of the predictors.
    """
    video = torch.arange(len(windows)) if video is None else video
    videos = int(video.max()) + 1
    rows = {}
    for label, predictor in {**predictors, NO_MODEL: repeat_last_frame}.items():
        batches = []
        for frames in torch.split(windows[:, : context + steps], batch_size):
            frames = frames.to(device)
            predicted = predictor(frames[:, :context], steps)
            if not bool(predicted.isfinite().all()):
                raise ComparisonError(f"{label} predicted values that are not finite: train it again")
            batches.append(_score_batch(predicted, to_unit(frames[:, context - 1 :])))
        sums = torch.zeros(videos, *batches[0].shape[1:], dtype=torch.float64)
        sums.index_add_(0, video, torch.cat(batches).double().cpu())
        rows[label] = {
            name: EpisodeSums(sums[:, k, 0].numpy(), sums[:, k, 1].numpy()) for k, name in enumerate(FIGURES)
        }
    return FrameScores(context, steps, videos, len(windows), rows)


def _score_batch(predicted: Tensor, frames: Tensor) -> Tensor:
    """Return total and count of each figure over the steps, (n, figures, 2), whose ratio is the figure.

    `frames` are the last frame of the context and the true ones.
    """
    last, true = frames[:, :1], frames[:, 1:]
    predicted = predicted.float().clamp(-1, 1)
    moved, moving = measure_motion(torch.cat([last, predicted], dim=1)), measure_motion(frames)
    one = torch.ones_like(moved)
    pairs = ((psnr(predicted, true), one), (ssim(predicted, true), one), (moved, moving))
    return torch.stack([torch.stack(pair, dim=1).sum(-1) for pair in pairs], dim=1)
