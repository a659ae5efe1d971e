"""Tests of training, resuming and loading video models, and of `nsde-policy video`."""

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

from examples.collisions import CollisionsConfig, make_collisions
from nsde_policy.cli.main import main
from nsde_policy.config import TrainConfig
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.eval.latency import device_name
from nsde_policy.run_directory import RunDirectory
from nsde_policy.video.settings import NeuralSDEVideoConfig, UnrollConfig, UViTConfig, VideoConfig
from nsde_policy.video.video_run import FIRST_STAGE_FOLDER, VideoRecord, load_video_model, train_video
from nsde_policy.video.videos import Videos, open_videos
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
    assert "stopped at step 2 of 8: finish it with `video train --resume`" in caplog.text
    parts = train_video(videos, CONFIG, path, seed=0, resume=True)
    assert whole.model.read_bytes() == parts.model.read_bytes()
    first = [RunDirectory(run.path / FIRST_STAGE_FOLDER).model.read_bytes() for run in (whole, parts)]
    assert first[0] == first[1] != whole.model.read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run"):
        train_video(videos, CONFIG, path, seed=0)
    with pytest.raises(CheckpointError, match="other settings"):
        train_video(videos, CONFIG, path, seed=1, resume=True)


def test_video_files_are_trained_on_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root, store, run = tmp_path / "videos", tmp_path / "videos.zarr", tmp_path / "run"
    for number in range(2):
        write_scene(root / f"{number}.mp4", number, 16)
    assert main(["video", "data", str(root), "--size", "16", "--stride", "2", "--out", str(store)]) == 0
    assert main(["video", "train", str(store), "--out", str(run), "--validation", "0.3", *FLAGS]) == 0
    capsys.readouterr()
    assert main(["video", "eval", str(run), "--steps", "2", "--json", "-", "--device", "cpu"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {str(run), "repeat the last frame", "linear extrapolation"} == set(rows)
    assert main(["eval", str(run)]) == 2
    assert "this run holds a video model, not a policy" in capsys.readouterr().err


def write_store(path: Path, *, episodes: int = 5, length: int = 11) -> np.ndarray:
    """Write videos with actions, and return the frames."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (episodes, length, 16, 16, 3), dtype=np.uint8)
    with DemoWriter(path, rate_hz=10) as writer:
        for video in frames:
            act = rng.normal(size=(length, 2))
            writer.append(Episode(np.zeros((length, 1)), act), {"img": video})
    return frames


def test_only_held_out_videos_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store, run = tmp_path / "robot.zarr", tmp_path / "run"
    frames = write_store(store)
    assert main(["video", "train", str(store), "--out", str(run), "--validation", "0.6", *FLAGS]) == 0
    record = VideoRecord.read(run)

    def select_unseen(path: Path) -> list[int]:
        return record.select_unseen(open_videos(path, size=16)).indices.tolist()

    held_out = list(record.videos.held_out)
    assert len(held_out) == 3
    assert select_unseen(store) == held_out
    assert select_unseen(Path(shutil.copytree(store, tmp_path / "copy.zarr"))) == held_out
    write_store(tmp_path / "other.zarr", length=13)
    assert select_unseen(tmp_path / "other.zarr") == [0, 1, 2, 3, 4]
    capsys.readouterr()
    assert main(["video", "eval", str(run), "--steps", "1", "--json", "-", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["videos"] == 3
    videos = open_videos(store, size=16)
    trained_on_all = replace(record.videos, held_out=(), fingerprint=videos.fingerprint)
    with pytest.raises(ConfigError, match="--validation"):
        replace(record, videos=trained_on_all).select_unseen(videos)
    with DemoWriter(store, resume=True, rate_hz=10) as writer:
        writer.append(Episode(np.zeros((11, 1)), np.zeros((11, 2))), {"img": frames[0]})
    assert select_unseen(store) == [*held_out, 5]
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "other.zarr", store)
    with pytest.raises(ConfigError, match="has changed since training"):
        select_unseen(store)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "nowhere.zarr"], "nowhere.zarr"),
        (["train", "x.zarr", "--method", "magic"], "magic"),
        (
            ["train", "x.zarr", "--method", "flow_matching", "--preset", "paper"],
            "has no preset 'paper'; available: default, fast",
        ),
        (["train", "x.zarr", "--size", "60"], "size must be a multiple of 8"),
        (["eval", "nowhere"], "nowhere does not exist"),
        (["eval"], "name at least one run"),
        (["eval", "a", "--substeps", "0"], "need --substeps >= 1, got 0"),
        (["eval", str(STORED_RUNS / "interpolants"), "--alpha", "1"], "sampled without alpha"),
    ],
)
def test_bad_video_flags_are_refused(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    write_store(tmp_path / "store.zarr", length=16)
    paths = {"train": ["--out", str(tmp_path / "run")], "eval": ["--data", str(tmp_path / "store.zarr")]}
    assert main(["video", *args, *paths[args[0]], "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_several_runs_are_scored_on_the_same_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [str(STORED_RUNS / name) for name in ("neural_sde", "flow_matching")]
    store = str(tmp_path / "test.zarr")
    write_store(Path(store), length=16)
    flags = ["--data", store, "--videos", "3", "--json", "-", "--device", "cpu", "--seed", "3"]
    assert main(["video", "eval", *runs, *flags, "--substeps", "2"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {*runs} < results["rows"].keys()
    assert (results["runs"], results["data"], results["seed"]) == (runs, store, 3)
    assert results["windows"] == 3
    assert (results["substeps"], results["alpha"], results["device"]) == (2, None, device_name("cpu"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {}}, "config.json is not a valid record of a video run"),
        ({"method": "magic"}, "unknown video method 'magic'"),
        ({"width": 32}, "does not match its config.json.*train it again"),
        ({"width": 8192}, "make more than [0-9]+ parameters"),
    ],
)
def test_damaged_config_is_refused_before_memory_is_taken(
    tmp_path: Path, change: dict[str, Any], message: str
):
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
    assert main(["video", "eval", str(damaged.path), "--device", "cpu"]) == 2


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


def test_run_of_a_policy_is_no_video_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.json").write_text('{"format": 1}')
    assert main(["video", "eval", str(tmp_path), "--device", "cpu"]) == 2
    assert "was not written by `nsde-policy video train`" in capsys.readouterr().err


@pytest.mark.gpu
def test_captured_training_in_bf16_learns(tmp_path: Path):
    frames = make_collisions(32, CollisionsConfig(size=16, frames=8), seed=0, device="cuda")
    train = replace(TRAIN, steps=200, batch_size=16, log_every=50, precision="bf16")
    config = replace(CONFIG, train=train, unroll=UnrollConfig(frames=2, train=replace(train, steps=20)))
    run = train_video(Videos.from_tensor(frames), config, tmp_path, seed=0, device="cuda")
    metrics = [*RunDirectory(run.path / FIRST_STAGE_FOLDER).read_metrics()]
    assert metrics[-1]["flow"] < 0.8 * metrics[0]["flow"]
    assert load_video_model(run.path, device="cuda").network.channels == CONFIG.model.network.features + 12
