"""Tests of training, resuming and loading video models, and of `nsde-video`."""

import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nsde_policy.cli.main import main as run_nsde_policy
from nsde_policy.config import TrainConfig
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.errors import CheckpointError
from nsde_policy.eval.machine import device_name
from nsde_policy.run_directory import RunDirectory
from nsde_video.__main__ import NSDE_VIDEO
from nsde_video.collisions import CollisionsConfig, make_collisions
from nsde_video.settings import NeuralSDEVideoConfig, UnrollConfig, UViTConfig, VideoConfig
from nsde_video.video_run import FIRST_STAGE_FOLDER, load_video_model, train_video
from nsde_video.videos import Videos
from tests.helpers.video_files import write_scene

TRAIN = TrainConfig(steps=6, batch_size=2, log_every=2)
CONFIG = VideoConfig(
    NeuralSDEVideoConfig(network=UViTConfig(width=16, depth=3, heads=2, stem=(8, 8), features=8)),
    train=TRAIN,
    unroll=UnrollConfig(frames=2, train=replace(TRAIN, steps=8)),
    size=16,
)
FLAGS = [
    "--size", "16", "--train.steps", "3", "--train.batch-size", "2", "--unroll.frames", "2",
    "--unroll.train.steps", "2", "--unroll.train.batch-size", "2", "--model.network.width", "16",
    "--model.network.depth", "3", "--model.network.stem", "8", "8", "--model.network.features", "8",
    "--device", "cpu",
]  # fmt: skip
STORED_RUNS = Path(__file__).parent / "stored_runs"


@pytest.fixture(scope="module")
def videos() -> Videos:
    return Videos.from_tensor(make_collisions(4, CollisionsConfig(size=16, frames=8), seed=0))


def test_interrupted_training_is_reported_and_continues_bit_for_bit(
    videos: Videos, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    whole = train_video(videos, CONFIG, tmp_path / "whole", seed=0)
    path = tmp_path / "parts"
    for stage in (CONFIG.train, CONFIG.unroll.train):

        def interrupt(progress, steps=stage.steps):
            if (progress.step, progress.steps) == (4, steps):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_video(videos, CONFIG, path, seed=0, monitor=interrupt, resume=path.exists())
        if stage is CONFIG.train:
            with pytest.raises(CheckpointError, match=r"no weights yet.*--resume"):
                load_video_model(path)
    load_video_model(path, first_stage=True)
    assert "stopped at" not in caplog.text
    load_video_model(path)
    assert "stopped at step 4 of 8: finish it with `video train --resume`" in caplog.text
    parts = train_video(videos, CONFIG, path, seed=0, resume=True)
    assert whole.model.read_bytes() == parts.model.read_bytes()
    first = [RunDirectory(run.path / FIRST_STAGE_FOLDER).model.read_bytes() for run in (whole, parts)]
    assert first[0] == first[1] != whole.model.read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run"):
        train_video(videos, CONFIG, path, seed=0)
    with pytest.raises(CheckpointError, match="other settings"):
        train_video(videos, CONFIG, path, seed=1, resume=True)


def test_video_files_are_trained_on_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stores = {part: str(tmp_path / f"{part}.zarr") for part in ("train", "test")}
    for number, (part, store) in enumerate(stores.items()):
        write_scene(tmp_path / part / "scene.mp4", number, 16)
        command = ["data", str(tmp_path / part), "--size", "16", "--stride", "2", "--out", store]
        assert NSDE_VIDEO.run(command) == 0
    run = tmp_path / "run"
    assert NSDE_VIDEO.run(["train", stores["train"], "--out", str(run), *FLAGS]) == 0
    capsys.readouterr()
    score = ["eval", str(run), "--steps", "2", "--json", "-", "--device", "cpu", "--seed", "3"]
    assert NSDE_VIDEO.run([*score, "--data", stores["test"], "--substeps", "2"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {str(run), "repeat the last frame"} == {*results["rows"]}
    assert (results["run"], results["data"], results["seed"]) == (str(run), stores["test"], 3)
    assert results["sampling"] == {"alpha": 0.5, "diffusion": 0.0, "substeps": 2}
    assert results["device"] == device_name("cpu")
    copied = str(shutil.copytree(stores["train"], tmp_path / "copy.zarr"))
    for trained_on in (stores["train"], copied):
        assert NSDE_VIDEO.run([*score, "--data", trained_on]) == 2
        assert f"the model was trained on the videos of {trained_on}: score it" in capsys.readouterr().err
    assert run_nsde_policy(["eval", str(run)]) == 2
    assert "this run holds a video model, not a policy" in capsys.readouterr().err


def write_store(path: Path) -> None:
    """Write videos with actions."""
    rng = np.random.default_rng(0)
    with DemoWriter(path, rate_hz=10) as writer:
        for video in rng.integers(0, 256, (5, 16, 16, 16, 3), dtype=np.uint8):
            writer.append(Episode(np.zeros((16, 1)), rng.normal(size=(16, 2))), {"img": video})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "nowhere.zarr"], "nowhere.zarr"),
        (
            ["train", "x.zarr", "--method", "flow_matching", "--preset", "paper"],
            "has no preset 'paper'; available: default, fast",
        ),
        (["train", "x.zarr", "--size", "60"], "size must be a multiple of 8"),
        (["eval", "nowhere"], "nowhere does not exist"),
        (["eval", str(STORED_RUNS / "neural_sde"), "--steps", "13"], "holds no video of 17 frames"),
    ],
)
def test_bad_video_flags_are_refused(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    write_store(tmp_path / "store.zarr")
    paths = {"train": ["--out", str(tmp_path / "run")], "eval": ["--data", str(tmp_path / "store.zarr")]}
    assert NSDE_VIDEO.run([*args, *paths[args[0]], "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {}}, "config.json is not a valid record of a video run"),
        ({"method": "magic"}, "unknown video method 'magic'"),
        ({"width": 32}, "does not match its config.json.*train it again"),
    ],
)
def test_damaged_config_is_refused(tmp_path: Path, change: dict[str, Any], message: str):
    damaged = RunDirectory(Path(shutil.copytree(STORED_RUNS / "neural_sde", tmp_path / "run")))
    record = json.loads(damaged.config.read_text())
    network = record["config"]["model"]["network"]
    for part in (record, record["config"], network):
        part.update({name: value for name, value in change.items() if name in part})
    damaged.config.write_text(json.dumps(record))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=message):
        load_video_model(damaged.path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("name", ["neural_sde", "neural_sde.noise", "flow_matching", "interpolants"])
def test_stored_runs_predict_what_they_predicted(name: str):
    stored = load_file(STORED_RUNS / "predictions.safetensors")
    model = load_video_model(STORED_RUNS / name.partition(".")[0])
    noisy = {"alpha": 1.0, "diffusion": 1.0} if name.endswith("noise") else {}
    for key in (key for key in stored if key.rpartition(".")[0] == name):
        substeps = key.rpartition(".")[2]
        changes = noisy | ({} if substeps == "default" else {"substeps": int(substeps)})
        sampling = replace(model.config.sampling, **changes)
        rng = torch.Generator().manual_seed(0)
        predicted = model.generate(stored["context"], steps=2, sampling=sampling, generator=rng)
        torch.testing.assert_close(predicted, stored[key], atol=1e-5, rtol=0)


def test_run_of_a_policy_is_no_video_model(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="was not written by `nsde-video train`"):
        load_video_model(tmp_path)


@pytest.mark.gpu
def test_captured_training_in_bf16_learns(tmp_path: Path):
    frames = make_collisions(32, CollisionsConfig(size=16, frames=8), seed=0, device="cuda")
    train = replace(TRAIN, steps=200, batch_size=16, log_every=50, precision="bf16")
    config = replace(CONFIG, train=train, unroll=UnrollConfig(frames=2, train=replace(train, steps=20)))
    run = train_video(Videos.from_tensor(frames), config, tmp_path, seed=0, device="cuda")
    metrics = [*RunDirectory(run.path / FIRST_STAGE_FOLDER).read_metrics()]
    assert metrics[-1]["flow"] < 0.8 * metrics[0]["flow"]
    assert load_video_model(run.path, device="cuda").network.channels == CONFIG.model.network.features + 12
