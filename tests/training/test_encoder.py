"""Tests of training with cameras: two stages in one run directory, resumed bit for bit, and bad frames."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nsde_policy.cli.main import main
from nsde_policy.config import EncoderConfig, NetworkConfig, TrainConfig
from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import FaultKind
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.errors import CheckpointError, ConfigError, PolicyInputError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory, fingerprint
from nsde_policy.training.checkpoints import TrainingProgress
from tests.helpers.camera_robot import (
    SIZES,
    STATE,
    TOP,
    WRIST,
    make_arrays,
    observe,
    train_camera_run,
    write_camera_store,
)

CONFIG = RunConfig(
    demos=DemoConfig(images=tuple(SIZES), encoder="keypoints", first_action_from=(0, 1)),
    encoder=KeypointConfig(
        train=TrainConfig(steps=4, batch_size=4, log_every=1), size=32, keypoints=2, width=8, anchors=1
    ),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=20, batch_size=16, log_every=5),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("cameras") / "store.zarr")


def train(store: Path, path: Path, config: RunConfig = CONFIG, **options: Any) -> RunDirectory:
    return train_camera_run(store, path, config, **{"save_every_s": 0.0, **options})


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(store, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def policy(run: RunDirectory) -> Policy:
    return Policy.from_pretrained(run.path)


def test_run_holds_both_stages_and_plays(run: RunDirectory, policy: Policy):
    record = run.read_record()
    assert [(camera.name, camera.shape) for camera in record.cameras] == [
        (TOP, (32, 32, 3)),
        (WRIST, (24, 40, 3)),
    ]
    assert (record.layout.obs_dim, record.layout.codes, record.layout.plain_dim) == (2 + 8, 8, 2)
    assert [m["step"] for m in RunDirectory(run.path / ENCODER_FOLDER).read_metrics()] == [1, 2, 3, 4]
    policy.reset(seed=0)
    actions = [policy.select_action(observe(frame)) for frame in range(10)]
    assert np.isfinite(actions).all()
    assert np.shape(actions) == (10, 2)


def test_codes_of_training_are_those_of_the_policy(run: RunDirectory, policy: Policy):
    codes = RunDirectory(run.path / ENCODER_FOLDER).read_tensors(
        run.path / ENCODER_FOLDER / "codes.safetensors"
    )
    for frame in (0, 17, 71):
        encoded = policy.encode(observe(frame))
        assert encoded[:2] == pytest.approx(make_arrays()["state"][frame])
        assert encoded[2:] == pytest.approx(codes["codes"][frame].double().numpy(), abs=1e-5)


def test_batch_of_observations_is_encoded_row_by_row(policy: Policy):
    rows = [observe(frame) for frame in (3, 40)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert policy.encode(batch) == pytest.approx(np.stack([policy.encode(row) for row in rows]), abs=1e-5)
    assert policy.predict_action_chunk(batch).shape == (2, CONFIG.chunk, 2)


@pytest.mark.parametrize("where", ["encoder", "policy"])
def test_run_interrupted_in_either_stage_resumes_bit_for_bit(
    where: str, store: Path, run: RunDirectory, tmp_path: Path
):
    def stop(progress: TrainingProgress) -> None:
        if progress.step >= progress.steps // 2:
            raise KeyboardInterrupt

    monitor = {"encoder": "encoder_monitor", "policy": "monitor"}[where]
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", **{monitor: stop})
    resumed = train(store, tmp_path / "run", resume=True)
    for one, two in ((run, resumed), *[(RunDirectory(r.path / ENCODER_FOLDER) for r in (run, resumed))]):
        assert fingerprint(one.read_weights()) == fingerprint(two.read_weights())


def test_resume_with_another_encoder_is_refused(store: Path, tmp_path: Path):
    def stop(progress: TrainingProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", encoder_monitor=stop)
    other = replace(CONFIG, encoder=replace(CONFIG.encoder, blur=0.1))
    with pytest.raises(CheckpointError, match="other settings"):
        train(store, tmp_path / "run", other, resume=True)
    with pytest.raises(CheckpointError, match="already holds a run; continue with --resume"):
        train(store, tmp_path / "run")
    for changed in (CONFIG.replace_parts(train={"steps": 9}), CONFIG.replace_parts(model={"noise": 0.2})):
        with pytest.raises(CheckpointError, match="encoder that was begun with other settings"):
            train(store, tmp_path / "run", changed, resume=True)
    plain = replace(CONFIG, demos=DemoConfig(first_action_from=(0, 1)), encoder=EncoderConfig())
    with pytest.raises(CheckpointError, match="encoder that was begun with other settings"):
        train(store, tmp_path / "run", plain, resume=True)


@pytest.mark.parametrize("when", ["stopped", "finished"])
def test_resume_with_other_frames_is_refused_until_the_encoder_is_finished(
    when: str, store: Path, run: RunDirectory, tmp_path: Path
):
    def stop(progress: TrainingProgress) -> None:
        raise KeyboardInterrupt

    monitor = {"stopped": "encoder_monitor", "finished": "monitor"}[when]
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", **{monitor: stop})
    other = write_camera_store(tmp_path / "store.zarr", change_frames=True)
    if when == "stopped":
        with pytest.raises(CheckpointError, match=r"holds other camera frames than when .* was begun"):
            train(other, tmp_path / "run", resume=True)
        other = store
    resumed = train(other, tmp_path / "run", resume=True)
    assert fingerprint(resumed.read_weights()) == fingerprint(run.read_weights())


def test_encoder_of_another_run_is_refused(store: Path, run: RunDirectory, tmp_path: Path):
    other = train(store, tmp_path / "other", seed=1)
    mixed = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "mixed")))
    mixed.encoder.model.write_bytes(other.encoder.model.read_bytes())
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another encoder"):
        Policy.from_pretrained(mixed.path)
    with pytest.raises(CheckpointError, match=r"codes\.safetensors belongs to another encoder"):
        train(store, mixed.path, resume=True)
    shutil.copy(other.encoder.path / "codes.safetensors", mixed.encoder.path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another encoder"):
        train(store, mixed.path, resume=True)
    for file in (run.model, run.encoder.model):  # as an earlier version wrote them
        save_file(load_file(file), mixed.path / file.relative_to(run.path))
    assert Policy.from_pretrained(mixed.path).encoder is not None


def test_held_out_episodes_do_not_train_the_encoder(store: Path, run: RunDirectory, tmp_path: Path):
    held = train(store, tmp_path / "run", validation=0.3)
    assert len(held.read_record().demos.held_out) == 2
    weights = (RunDirectory(r.path / ENCODER_FOLDER).read_weights() for r in (run, held))
    assert len({fingerprint(each) for each in weights}) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({TOP: None}, "observation.images.top is missing"),
        ({TOP: np.zeros((32, 32, 3))}, "got float64; convert values from 0 to 1 by .* 0 to 255 by"),
        ({TOP: np.zeros((32, 32, 3), np.int64)}, "must hold uint8 from 0 to 255, got int64$"),
        ({TOP: np.zeros((3, 32, 32), np.uint8)}, r"must have shape \(32, 32, 3\), got \(3, 32, 32\); move"),
        ({TOP: np.zeros((16, 16, 3), np.uint8)}, r"must have shape \(32, 32, 3\), got \(16, 16, 3\)"),
        ({TOP: np.zeros((32, 32), np.uint8)}, r"must have shape \(32, 32, 3\), got \(32, 32\)"),
        ({WRIST: "picture"}, "must hold uint8"),
        (
            {TOP: np.zeros((1, 32, 32, 3), np.uint8)},
            r"must have shape \(32, 32, 3\), got \(1, 32, 32, 3\); give observation.state and frames both",
        ),
        ({STATE: np.zeros((1, 2))}, r"must have shape \(n, 32, 32, 3\), got \(32, 32, 3\); give"),
        (
            {
                STATE: np.zeros((1, 2)),
                TOP: np.zeros((1, 32, 32, 3), np.uint8),
                WRIST: np.zeros((2, 24, 40, 3), np.uint8),
            },
            "observation.images.wrist has 2 rows, observation.images.top has 1",
        ),
    ],
)
def test_wrong_frames_are_named_and_refused(change: dict[str, Any], message: str, policy: Policy):
    with pytest.raises(PolicyInputError, match=message):
        policy.select_action({**observe(), **change})


def test_vector_instead_of_a_dict_is_refused(policy: Policy):
    with pytest.raises(PolicyInputError, match=r"needs a dict of observations: 'observation.state' \(2,\)"):
        policy.select_action([0.1, 0.2])
    with pytest.raises(PolicyInputError, match="must have 2 values"):
        policy.select_action({**observe(), STATE: np.zeros(3)})


def test_images_need_an_encoder_and_an_encoder_needs_images():
    with pytest.raises(ConfigError, match="no images are named"):
        replace(CONFIG, demos=replace(CONFIG.demos, images=()))
    with pytest.raises(ConfigError, match="needs settings EncoderConfig"):
        replace(CONFIG, demos=replace(CONFIG.demos, encoder="identity"))
    assert RunConfig.from_dict(CONFIG.to_dict()) == CONFIG


def test_losses_weigh_all_codes_together(policy: Policy):
    assert policy.model.dimension_weight.tolist() == [1.0] * 2 + [0.5] * 8 + [1.0] * 2
    assert not any("dimension_weight" in name for name in policy.model.state_dict())


def test_camera_folder_missing_in_a_run_is_reported(run: RunDirectory, tmp_path: Path):
    for name in ("config.json", "model.safetensors", "calibration.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"encoder/model\.safetensors"):
        Policy.from_pretrained(tmp_path)


def test_training_uses_the_threads_of_the_environment_and_leaves_those_of_the_caller(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    used: list[int] = []
    config = CONFIG.replace_parts(train={"steps": 2}, encoder={"train": TrainConfig(steps=1)})
    torch.set_num_threads(2)
    try:
        train(store, tmp_path / "run", config, encoder_monitor=lambda _: used.append(torch.get_num_threads()))
        assert (used, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_session_takes_frames_and_names_bad_ones(policy: Policy):
    now = [0.0]
    config = SessionConfig(rate_hz=10.0)
    with Session(policy, config, calibration=policy.calibration, clock=lambda: now[0]) as session:
        commands = []
        for frame in range(3):
            now[0] = 0.1 * frame
            commands.append(session.step(observe(frame)))
        now[0] = 0.3
        commands.append(session.step({**observe(3), TOP: np.zeros((8, 8, 3), np.uint8)}))
        assert session.last is not None
        (fault,) = session.last.faults
    assert (fault.kind, fault.camera) == (FaultKind.WRONG_FRAME, TOP)
    assert "observation.images.top must have shape (32, 32, 3), got (8, 8, 3)" in fault.detail
    assert np.isfinite(commands).all()


def test_own_cameras_are_named_on_the_command_line(store: Path, tmp_path: Path):
    flags = {"encoder.train.steps": 1, "encoder.train.batch-size": 2, "encoder.size": 32, "encoder.width": 8}
    flags |= {
        "encoder.keypoints": 1,
        "train.steps": 4,
        "preset": "fast",
        "device": "cpu",
        "out": tmp_path / "run",
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    assert main(["train", "--demos", str(store), "--images", "wrist", *given]) == 0
    record = RunDirectory(tmp_path / "run").read_record()
    assert [camera.name for camera in record.cameras] == [WRIST]
    assert record.layout.codes == 2
