"""Tests of the scores of predicted videos, against formulas written out and videos whose truth is known."""

import json
import math

import numpy as np
import pytest
import torch

from examples.collisions import CollisionsConfig, make_collisions
from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.video.evaluate import VideosToScore, evaluate_video
from nsde_policy.eval.video.metrics import measure_motion, ssim
from nsde_policy.video.base import psnr, to_unit

PIXELS = torch.Generator().manual_seed(3)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=PIXELS)


@pytest.fixture(scope="module")
def videos():
    return make_collisions(6, CollisionsConfig(frames=8), seed=5)


@pytest.fixture(scope="module")
def frames(videos):
    return to_unit(videos)


def test_frames_between_frames_do_not_change_them(videos):
    fine = make_collisions(6, CollisionsConfig(frames=8, substeps=5), seed=5)
    assert fine.shape == (6, 40, 64, 64, 3)
    assert torch.equal(fine[:, ::5], videos)


def direct_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Evaluate the formula of Wang et al. (2004), window by window, for one channel of range 2."""
    offset = np.arange(11) - 5
    window = np.exp(-(offset[:, None] ** 2 + offset**2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for i in range(a.shape[0] - 10):
        for j in range(a.shape[1] - 10):
            x, y = a[i : i + 11, j : j + 11], b[i : i + 11, j : j + 11]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            cov = (window * (x - mx) * (y - my)).sum()
            c1, c2 = 0.02**2, 0.06**2
            found.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return float(np.mean(found))


def test_ssim_agrees_with_the_formula_evaluated_window_by_window():
    true = noise(2, 3, 3, 14, 17).clamp(-1, 1)
    predicted = (0.7 * true + 0.2 * noise(*true.shape)).clamp(-1, 1)
    found = ssim(predicted, true)
    assert found.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        pairs = zip(predicted[i, j].double().numpy(), true[i, j].double().numpy(), strict=True)
        assert float(found[i, j]) == pytest.approx(np.mean([direct_ssim(*pair) for pair in pairs]), abs=1e-5)
    with pytest.raises(ConfigError, match="at least 11"):
        ssim(true[..., :10], true[..., :10])


def test_psnr_of_a_constant_error():
    frame = torch.zeros(2, 3, 3, 12, 12)
    assert psnr(frame, frame + 0.02).flatten().tolist() == pytest.approx([40.0] * 6, abs=1e-4)
    assert psnr(frame, frame).unique().tolist() == [60.0]


def test_motion_is_zero_for_a_frozen_video_and_hardly_changed_by_pixel_noise(frames):
    true = measure_motion(frames).sum()
    noisy = (frames + 0.05 * noise(*frames.shape)).clamp(-1, 1)
    assert float(measure_motion(frames[:, :1].expand_as(frames)).sum()) == 0
    assert float(measure_motion(noisy).sum() / true) == pytest.approx(1, abs=0.03)
    assert float(measure_motion(noisy[:, :1] + 0.05 * noise(*frames.shape)).sum() / true) < 0.03


def test_figures_of_the_truth_and_of_baselines_in_batches(videos, frames):
    def look_up_truth(context, steps):
        found = [part for part in frames for each in to_unit(context) if part[:4].equal(each)]
        return torch.stack(found)[:, 4 : 4 + steps]

    whole, parts = (
        evaluate_video({"truth": look_up_truth}, VideosToScore(videos), steps=4, batch_size=size)
        for size in (6, 4)
    )
    row = whole.rows["truth"]
    assert [row.estimates[name].value for name in ("psnr", "motion")] == [60, 1]
    assert row.estimates["ssim"].value == pytest.approx(1, abs=1e-5)
    frozen, straight = whole.rows["repeat the last frame"], whole.rows["linear extrapolation"]
    assert frozen.estimates["motion"].value == 0
    assert 10 < straight.estimates["psnr"].value < frozen.estimates["psnr"].value < 30
    for label, each in whole.rows.items():
        for name, sums in each.sums.items():
            assert sums.total.shape == (6, 4)
            assert np.allclose(sums.total, parts.rows[label].sums[name].total, atol=1e-4), (label, name)
    assert json.loads(whole.to_json())["rows"].keys() == whole.rows.keys()
    lines = whole.format_table().splitlines()
    assert len(lines) == 5
    assert "PSNR, dB" in lines[0]


def test_linear_extrapolation_is_exact_for_brightness_that_changes_at_a_constant_rate():
    ramp = torch.arange(6, dtype=torch.uint8)[None, :, None, None, None] * 10 + 100
    scores = evaluate_video({}, VideosToScore(ramp.expand(2, 6, 16, 16, 3)), steps=2)
    assert scores.rows["linear extrapolation"].estimates["psnr"].value == 60
    assert scores.rows["repeat the last frame"].sums["psnr"].intervals.value.tolist() == pytest.approx(
        [20 * math.log10(25.5), 20 * math.log10(12.75)], abs=1e-3
    )


@pytest.mark.parametrize(
    ("steps", "predictor", "message"),
    [
        (2, lambda frames, steps: torch.zeros(len(frames), steps + 1, 3, 64, 64), "expected"),
        (2, lambda frames, steps: torch.full((len(frames), steps, 3, 64, 64), math.nan), "not finite"),
        (5, None, "6 videos of 8 frames"),
    ],
)
def test_unusable_predictions_and_short_videos_are_rejected(videos, steps, predictor, message):
    with pytest.raises(ComparisonError, match=message):
        evaluate_video({"bad": predictor}, VideosToScore(videos), steps=steps)
