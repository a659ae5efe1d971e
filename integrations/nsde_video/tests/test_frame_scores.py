"""Tests of the scores of predicted frames, against formulas written out and videos whose truth is known."""

import json
import math

import numpy as np
import pytest
import torch

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_video.collisions import CollisionsConfig, make_collisions
from nsde_video.frame_scores import (
    NO_MODEL,
    cut_windows,
    measure_motion,
    psnr,
    score_predictors,
    ssim,
)
from nsde_video.next_frame import to_unit
from nsde_video.videos import Videos

PIXELS = torch.Generator().manual_seed(3)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=PIXELS)


@pytest.fixture(scope="module")
def videos():
    return make_collisions(6, CollisionsConfig(frames=8), seed=5)


def direct_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Evaluate the formula of Wang et al. (2004), window by window, for one channel of range 2."""
    offset = np.arange(11) - 5
    window = np.exp(-(offset[:, None] ** 2 + offset**2) / (2 * 1.5**2))
    window /= window.sum()
    values = []
    for i in range(a.shape[0] - 10):
        for j in range(a.shape[1] - 10):
            x, y = a[i : i + 11, j : j + 11], b[i : i + 11, j : j + 11]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            cov = (window * (x - mx) * (y - my)).sum()
            c1, c2 = 0.02**2, 0.06**2
            values.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return float(np.mean(values))


def test_ssim_agrees_with_the_formula_evaluated_window_by_window():
    true = noise(2, 3, 3, 14, 17).clamp(-1, 1)
    predicted = (0.7 * true + 0.2 * noise(*true.shape)).clamp(-1, 1)
    similarity = ssim(predicted, true)
    assert similarity.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        pairs = zip(predicted[i, j].double().numpy(), true[i, j].double().numpy(), strict=True)
        expected = np.mean([direct_ssim(*pair) for pair in pairs])
        assert float(similarity[i, j]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ConfigError, match="at least 11"):
        ssim(true[..., :10], true[..., :10])


def test_psnr_of_a_constant_error():
    frame = torch.zeros(2, 3, 3, 12, 12)
    assert psnr(frame, frame + 0.02).flatten().tolist() == pytest.approx([40.0] * 6, abs=1e-4)
    assert psnr(frame, frame).unique().tolist() == [60.0]


def test_motion_is_zero_for_a_frozen_video_and_hardly_changed_by_pixel_noise(videos):
    frames = to_unit(videos)
    true = measure_motion(frames).sum()
    noisy = (frames + 0.05 * noise(*frames.shape)).clamp(-1, 1)
    assert float(measure_motion(frames[:, :1].expand_as(frames)).sum()) == 0
    assert float(measure_motion(noisy).sum() / true) == pytest.approx(1, abs=0.03)
    assert float(measure_motion(noisy[:, :1] + 0.05 * noise(*frames.shape)).sum() / true) < 0.03


def test_figures_of_the_truth_and_of_the_repeated_last_frame_in_batches(videos):
    def look_up_truth(context, steps):
        matches = [video for part in context for video in videos if video[:4].equal(part)]
        return to_unit(torch.stack(matches))[:, 4 : 4 + steps]

    whole, parts = (
        score_predictors({"truth": look_up_truth}, videos, steps=4, batch_size=size) for size in (6, 4)
    )
    truth, frozen = whole.rows["truth"], whole.rows[NO_MODEL]
    figures = [truth[name].at().value for name in ("psnr", "motion", "ssim")]
    assert figures == pytest.approx([60, 1, 1], abs=1e-5)
    assert frozen["motion"].at().value == 0
    assert 10 < frozen["psnr"].at().value < 30
    for label, row in whole.rows.items():
        for name, sums in row.items():
            assert sums.total.shape == (6,)
            assert np.allclose(sums.total, parts.rows[label][name].total, atol=1e-3), (label, name)
    assert json.loads(whole.to_json(seed=1))["rows"].keys() == whole.rows.keys()
    assert "| truth | 60" in whole.format_table()


def test_windows_of_one_video_count_as_one_for_intervals(videos):
    windows, video = cut_windows(Videos.from_tensor(videos), 4, 100)
    assert video.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert torch.equal(windows[1], videos[0, 4:])
    scores, apart = (score_predictors({}, windows, part, steps=2, context=2) for part in (video, None))
    assert (scores.videos, scores.windows, apart.videos) == (6, 12, 12)
    one, two = (each.rows[NO_MODEL]["psnr"].at() for each in (scores, apart))
    assert one.value == pytest.approx(two.value)
    assert (one.n, two.n) == (6, 12)
    assert cut_windows(Videos.from_tensor(videos), 4, 3)[1].tolist() == [0, 1, 2]


def test_predictions_that_are_not_finite_are_refused(videos):
    def diverge(frames, steps):
        return torch.full((len(frames), steps, 3, 64, 64), math.nan)

    with pytest.raises(ComparisonError, match="not finite"):
        score_predictors({"bad": diverge}, videos, steps=2)
