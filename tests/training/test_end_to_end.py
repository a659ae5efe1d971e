"""Tests of training an encoder together with the policy: learning, resuming, frames of a batch, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.config import ModelConfig, NetworkConfig, TrainConfig
from nsde_policy.core.targets import Windows
from nsde_policy.data.split import split_episodes
from nsde_policy.encoders.resnet.config import ResNetConfig
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.inference.loading import build_model
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.knn import NearestNeighboursConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.regression import RegressionConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory, fingerprint
from nsde_policy.tasks import get_task, with_observations
from nsde_policy.training import end_to_end
from nsde_policy.training.checkpoints import TrainingProgress
from nsde_policy.training.dataset import build_training_data
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.encoder import ImageTraining
from nsde_policy.training.end_to_end import EndToEndModel, EndToEndStage
from tests.helpers.camera_robot import observe, train_camera_run, write_camera_store

CONFIG = RunConfig(
    demos=DemoConfig(images=("top",), encoder="resnet", first_action_from=(0, 1)),
    encoder=ResNetConfig(size=40, crop=36, width=16, keypoints=4, features=6),
    model=RegressionConfig(network=NetworkConfig(width=16, depth=2, dropout=0.0)),
    train=TrainConfig(steps=16, batch_size=4, log_every=8, learning_rate=3e-3),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("cameras") / "store.zarr")


def train(store: Path, path: Path, config: RunConfig = CONFIG, **options: Any) -> RunDirectory:
    return train_camera_run(store, path, config, **{"save_every_s": 1e9, **options})


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(store, tmp_path_factory.mktemp("run") / "run", validation=0.3)


@pytest.fixture(scope="module")
def policy(run: RunDirectory) -> Policy:
    return Policy.from_pretrained(run.path)


def test_training_lowers_the_loss_and_changes_the_encoder(store: Path, run: RunDirectory, policy: Policy):
    stage = build_stage(store, run)
    first = stage.build_model(build_model(run.read_record())).eval()
    assert policy.encoder is not None
    last = EndToEndModel(policy.model, policy.encoder)
    known = split_episodes(stage.add_blank_codes(), 0.3, seed=0).training
    batch = stage.load_frames(stage.build_data(known)[torch.arange(0, 30, 3)])
    before, after = (model.loss(batch, torch.Generator()).parts["square"] for model in (first, last))
    assert after < 0.7 * before
    start, trained = first.encoder.state_dict(), policy.encoder.state_dict()
    assert all(not torch.equal(start[name], trained[name]) for name in start if "weight" in name)
    assert all("validation_square" in line for line in run.read_metrics())


def build_stage(store: Path, run: RunDirectory) -> EndToEndStage:
    record = run.read_record()
    demos = load_training_demos(CONFIG.demos, store)
    images = open_training_images(CONFIG.demos, store)
    held_out = record.demos.held_out
    return EndToEndStage(ImageTraining(demos, images, CONFIG, held_out, "none", run, seed=0, device="cpu"))


def test_codes_are_not_scaled_and_calibrated_after_training(run: RunDirectory, policy: Policy):
    layout = run.read_record().layout
    assert (layout.codes, layout.plain_dim) == (6, 2)
    assert {layout.low[2:8], layout.high[2:8]} == {(-1.0,) * 6, (1.0,) * 6}
    encoded = np.stack([policy.encode(observe(frame)) for frame in range(72)])
    held_out = run.read_record().demos.held_out
    known = [frame for frame in range(72) if frame // 12 not in held_out]
    expected = (encoded[known, 2:].mean(0) + 1) / 2
    assert policy.calibration.mean[2:8] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("held_out", [False, True])
def test_loss_of_a_batch_is_that_of_the_encoded_windows(
    held_out: bool, store: Path, run: RunDirectory, policy: Policy
):
    stage, encoder = build_stage(store, run), policy.encoder
    assert encoder is not None
    split = split_episodes(stage.add_blank_codes(), 0.3, seed=0)
    assert split.held_out == run.read_record().demos.held_out
    encoded = split_episodes(stage.encode(encoder), 0.3, seed=0)
    blank, full = (part.validation if held_out else part.training for part in (split, encoded))
    assert blank is not None
    assert full is not None
    model = EndToEndModel(policy.model, encoder).eval()
    rows = torch.arange(0, 24, 7)
    batch = build_stage(store, run).load_frames(stage.build_data(blank, held_out=held_out)[rows])
    windows = build_training_data(full, CONFIG, task="none")
    assert isinstance(windows, Windows)
    generator = torch.Generator()
    found = model.loss(batch, generator).parts["square"]
    torch.testing.assert_close(found, policy.model.loss(windows[rows], generator).parts["square"])


def test_mirrored_frames_follow_the_others_in_the_table(policy: Policy):
    assert policy.encoder is not None
    model = EndToEndModel(policy.model, policy.encoder)
    table = torch.randint(0, 256, (3, 4, 4, 3), dtype=torch.uint8)
    model.encoder.mirror = "left_right"
    try:
        found = model._gather(table, torch.tensor([2, 4]))
    finally:
        model.encoder.mirror = None
    assert found[0].equal(table[2])
    assert found[1].equal(table[1].flip(1))


@pytest.mark.parametrize("memory", [2**30, 0], ids=["in memory", "from a file"])
def test_interrupted_run_resumes_bit_for_bit(
    memory: int, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(end_to_end, "MEMORY_BYTES", memory)
    short = CONFIG.replace_parts(train={"steps": 4, "log_every": 2, "batch_size": 2})

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    whole = train(store, tmp_path / "whole", short)
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", short, monitor=stop)
    resumed = train(store, tmp_path / "run", short, resume=True)
    for one, two in (
        (whole, resumed),
        *[(RunDirectory(r.path / ENCODER_FOLDER) for r in (whole, resumed))],
    ):
        assert fingerprint(one.read_weights()) == fingerprint(two.read_weights())
    assert {file.name for file in resumed.encoder.path.iterdir()} == {"model.safetensors", "frames.json"}
    with pytest.raises(CheckpointError, match="holds other camera frames"):
        train(
            write_camera_store(tmp_path / "other.zarr", change_frames=True), resumed.path, short, resume=True
        )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NeuralSDEConfig(), "'neural_sde' predicts future observations.*--encoder keypoints"),
        (NearestNeighboursConfig(), "'knn' is not trained.*--encoder keypoints"),
    ],
)
def test_methods_that_cannot_train_an_encoder_are_refused(
    model: ModelConfig, message: str, store: Path, tmp_path: Path
):
    with pytest.raises(ConfigError, match=message):
        train(store, tmp_path / "run", replace(CONFIG, model=model, chunk=4))
    assert not (tmp_path / "run").exists()


def test_diffusion_trains_a_resnet_from_the_command_line(store: Path, tmp_path: Path):
    flags: dict[str, Any] = {"encoder": "resnet", "encoder.size": 40, "encoder.crop": 36}
    flags |= {"encoder.width": 16, "encoder.features": 4, "train.steps": 2, "train.batch-size": 2}
    flags |= {"policy": "diffusion", "preset": "fast", "device": "cpu", "out": tmp_path / "run"}
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    assert main(["train", "--demos", str(store), "--images", "top", *given]) == 0
    policy = Policy.from_pretrained(tmp_path / "run")
    actions = [policy.select_action(observe(frame)) for frame in range(3)]
    assert np.isfinite(actions).all()


def test_preset_of_diffusion_for_pixels_is_the_published_one():
    pixels = with_observations(get_task("pusht"), "pixels")
    config = pixels.preset("pixels", "diffusion")
    assert config.encoder == ResNetConfig(size=96, crop=84, width=64, keypoints=32, features=64)
    model: Any = config.model
    assert (model.unet.channels, model.unet.step_embedding) == ((512, 1024, 2048), 128)
    assert (model.history, model.horizon, config.chunk, config.demos.mirror) == (2, 16, 8, False)
    train = config.train
    assert (train.batch_size, train.learning_rate, train.weight_decay) == (64, 1e-4, 1e-6)
    assert (train.warmup * train.steps, train.ema, train.ema_power) == (500, 0.9999, 0.75)
    assert pixels.preset("default", "diffusion").demos.encoder == "keypoints"
