"""Tests of eval/video/plan.py: predictions of camera frames under a policy's plan."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.config import TrainConfig
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.data.frames import resize_frames
from nsde_policy.errors import ConfigError
from nsde_policy.eval.video.evaluate import make_predictor
from nsde_policy.eval.video.plan import PlanConfig, PlanPlayer, predict_plans
from nsde_policy.inference.policy import Policy
from nsde_policy.tasks import get_task
from nsde_policy.video.base import VideoModel
from nsde_policy.video.config import BackboneConfig, UnrollConfig, VideoConfig
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.registry import get_video_method
from nsde_policy.video.run import VideoRecord, read_video_record, train_video
from nsde_policy.video.spaces import psnr
from nsde_policy.video.windows import open_videos
from tests.helpers.rng import make_rng

SIZE, SEED, PERIODS = 16, 200_003, 6
CONFIG = VideoConfig(
    NeuralSDEVideoConfig(backbone=BackboneConfig(width=16, depth=1, heads=2, stem=(8, 8), features=8)),
    train=TrainConfig(steps=2, batch_size=2),
    unroll=UnrollConfig(frames=0),
    size=SIZE,
    actions=True,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write camera frames and actions of Push-T under random targets."""
    path = tmp_path_factory.mktemp("store") / "pusht.zarr"
    env, rng = get_task("pusht").make_env(obs_type="pixels_state"), np.random.default_rng(0)
    with DemoWriter(path, rate_hz=10) as writer:
        for seed in (1, 2):
            obs, _ = env.reset(seed=seed)
            act = rng.uniform(50, 450, (12, 2))
            frames, states = [], []
            for action in act:
                frames.append(obs["pixels"])
                states.append(obs["state"])
                obs = env.step(action)[0]
            writer.append(Episode(np.array(states), act), {"img": np.array(frames)})
    return path


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "video"
    train_video(open_videos(store, size=SIZE, with_actions=True), CONFIG, path, seed=0)
    return path


def make_record(run: Path, stride: int) -> VideoRecord:
    record = read_video_record(run)
    return replace(
        record,
        config={**record.config, "stride": stride},
        act_low=record.act_low * stride,
        act_high=record.act_high * stride,
        rate_hz=10 / stride,
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_frames_are_those_of_the_executed_plan(run: Path, stride: int):
    record = make_record(run, stride)
    player = PlanPlayer(None, record, PlanConfig(step=9, seconds=0.6))
    found = player.play(SEED)
    assert found is not None
    period, trace = found
    assert (period, player.steps, player.period_s) == (16, PERIODS // stride, stride / 10)
    history = trace.histories[-1][1]
    policy = Policy.from_pretrained()
    generator = torch.Generator().manual_seed(SEED)
    for _, past in trace.histories[:-1]:
        policy.plan(past, generator=generator)
    planned = policy.plan(history, generator=generator, chunk=PERIODS).actions
    assert np.allclose(trace.actions[period:], np.clip(planned, 0, 512))
    frames, actions = player.cut(trace, period)
    env = get_task("pusht").make_env(obs_type="pixels_state")
    obs, _ = env.reset(seed=SEED)
    pictures = [obs["pixels"], *(env.step(action)[0]["pixels"] for action in trace.actions)]
    rows = np.arange(period - 3 * stride, period + PERIODS + 1, stride)
    assert np.array_equal(frames, resize_frames(np.array(pictures)[rows], SIZE))
    low, high = np.array(record.act_low), np.array(record.act_high)
    executed = (actions[:-1] * (high - low) / 2 + (low + high) / 2).reshape(-1, 2)
    assert np.allclose(executed, np.array(trace.actions)[rows[0] :], atol=0.05)


def test_command_writes_pictures_and_figures(run: Path, tmp_path: Path):
    out, file = tmp_path / "out", tmp_path / "found.json"
    flags = ["--policy", "shipped", "--seed", str(SEED), "--episodes", "2", "--step", "4", "--seconds", "0.3"]
    assert main(["video", "predict", str(run), *flags, "--out", str(out), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["seconds"], found["seeds"]) == (pytest.approx(0.3), [SEED, SEED + 1])
    assert found["control_periods"] == [8, 8]
    assert set(found["rows"]) == {"predicted", "repeat the last frame", "linear extrapolation"}
    assert found["rows"]["predicted"]["psnr"]["value"] > 30
    assert all((out / name).stat().st_size > 1000 for name in ("film_strip.png", "prediction.gif"))


def test_frames_that_are_shown_are_the_scored_ones(run: Path, tmp_path: Path):
    record = read_video_record(run)
    model = {**record.config["model"], "diffusion_scale": 1.0}
    (tmp_path / "config.json").write_text(replace(record, config={**record.config, "model": model}).to_json())
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    found = predict_plans(tmp_path, SHIPPED_POLICY, PlanConfig(seed=SEED, step=4, seconds=0.3))
    scored = found.scores.rows["predicted"].per_frame("psnr").value
    assert psnr(found.rows["predicted"], found.rows["true"]).tolist() == pytest.approx(scored, rel=1e-4)


def test_report_shows_predicted_frames(run: Path, tmp_path: Path):
    page = tmp_path / "report.html"
    flags = ["--episodes", "1", "--videos", "0", "--latency-rounds", "0", "--workers", "1"]
    flags += ["--seed-start", str(SEED), "--cache", str(tmp_path / "cache"), "--out", str(page)]
    assert main(["report", "shipped", "--video-model", str(run), *flags]) == 0
    text = page.read_text()
    section = text[text.index('<section id="prediction">') :]
    section = section[: section.index("</section>")]
    assert 'href="#prediction"' in text
    assert section.count("data:image/png") == section.count("data:image/gif") == 1
    assert f"start {SEED}, control period 24" in section
    assert "The next 1.6 s" in section


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"act_low": (), "act_high": ()}, {}, "trained without actions"),
        ({"act_low": (0.0,), "act_high": (1.0,)}, {}, "have 2 numbers under this policy"),
        ({"rate_hz": 5.0}, {}, "predicts 5 frames per second, the camera gives 10"),
        ({}, {"env_kwargs": {"obs_type": "state"}}, "has no camera"),
        ({}, {"step": 299}, "no episode lasts to the end of a plan of 1.6 s"),
    ],
)
def test_models_that_do_not_fit_are_refused(run: Path, tmp_path: Path, changes, config, message: str):
    record = replace(read_video_record(run), **changes)
    (tmp_path / "config.json").write_text(record.to_json())
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=message):
        predict_plans(tmp_path, SHIPPED_POLICY, PlanConfig(seed=SEED, **config))


def test_predictor_takes_the_strength_of_the_denoiser():
    def build(method: str, **changes: Any) -> VideoModel:
        found = get_video_method(method)
        backbone = CONFIG.model.backbone
        model = found.model_class()(
            found.config(backbone=backbone, **changes),
            size=SIZE,
            act_dim=0,
            increment_std=0.1,
            generator=make_rng(0),
        )
        for head in model.outputs.values():
            torch.nn.init.normal_(head.weight, std=0.1, generator=make_rng(1))
        return model.eval()

    frames = torch.randint(0, 256, (2, 6, SIZE, SIZE, 3), dtype=torch.uint8, generator=make_rng(2))
    actions, model = torch.zeros(2, 2, 0), build("neural_sde")
    usual, same, without = (
        make_predictor(model, alpha=alpha)(frames, actions, 2) for alpha in (None, model.config.alpha, 0.0)
    )
    assert torch.equal(usual, same)
    assert not torch.allclose(usual, without)
    with pytest.raises(ConfigError, match="a model of flow_matching has no denoiser"):
        make_predictor(build("flow_matching"), alpha=0.5)
    with pytest.raises(ConfigError, match=r"of neural_sde .*no-denoiser\) has no denoiser"):
        make_predictor(build("neural_sde", denoiser=False), alpha=0.5)
