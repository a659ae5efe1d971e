"""Tests of training with cameras: the encoder before the policy or together with it, resumed bit for bit."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nsde_policy.cli.main import main
from nsde_policy.config import EncoderConfig, ModelConfig, NetworkConfig, TrainConfig
from nsde_policy.core.batches import Windows
from nsde_policy.data import Demonstrations
from nsde_policy.data.frames import FrameFile
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.encoders.resnet.config import ResNetConfig
from nsde_policy.errors import CheckpointError, ConfigError, PolicyInputError
from nsde_policy.interface.observation import encode_observation, parse_observation
from nsde_policy.methods.baselines.knn import NearestNeighboursConfig
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training.dataset import TrainingSet, build_training_data
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.encoder import EncoderTraining
from nsde_policy.training.frames import FrameTable, PolicyWithEncoder
from nsde_policy.training.options import TrainingProgress, TrainOptions
from tests.helpers.camera_robot import (
    EPISODES,
    SIZES,
    STATE,
    STEPS,
    TOP,
    WRIST,
    make_arrays,
    observe,
    train_camera_run,
    write_camera_store,
)

STAGED = RunConfig(
    demos=DemoConfig(images=tuple(SIZES), encoder="keypoints", first_action_from=(0, 1)),
    encoder=KeypointConfig(
        train=TrainConfig(steps=4, batch_size=4, log_every=1), size=32, keypoints=2, width=8, anchors=1
    ),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=20, batch_size=16, log_every=5),
)
JOINT = RunConfig(
    demos=DemoConfig(images=("top",), encoder="resnet", first_action_from=(0, 1)),
    encoder=ResNetConfig(size=40, crop=36, width=16, keypoints=4, features=6),
    model=RegressionConfig(network=NetworkConfig(width=16, depth=2, dropout=0.0)),
    train=TrainConfig(steps=16, batch_size=4, log_every=8, learning_rate=3e-3),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("cameras") / "store.zarr")


def train(store: Path, path: Path, config: RunConfig = STAGED, **options: Any) -> RunDirectory:
    return train_camera_run(store, path, config, **{"save_every_s": 0.0, **options})


def interrupt(
    store: Path, path: Path, title: str, step: int = 0, config: RunConfig = STAGED, **options: Any
) -> None:
    """Interrupt the training of the encoder or of the policy."""

    def stop(progress: TrainingProgress) -> None:
        if progress.title == title and progress.step >= step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(store, path, config, monitor=stop, **options)


def assert_same_weights(one: RunDirectory, two: RunDirectory) -> None:
    for a, b in ((one, two), (one.encoder, two.encoder)):
        assert fingerprint(a.read_weights()) == fingerprint(b.read_weights())


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(store, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def policy(run: RunDirectory) -> Policy:
    return Policy.from_pretrained(run.path)


@pytest.fixture(scope="module")
def joint_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(store, tmp_path_factory.mktemp("run") / "run", JOINT, validation=0.3)


@pytest.fixture(scope="module")
def joint_policy(joint_run: RunDirectory) -> Policy:
    return Policy.from_pretrained(joint_run.path)


def test_run_holds_both_stages_and_acts(run: RunDirectory, policy: Policy):
    record = run.read_record()
    assert [(camera.name, camera.shape) for camera in record.cameras] == [
        (TOP, (32, 32, 3)),
        (WRIST, (24, 40, 3)),
    ]
    assert (record.spec.obs_dim, record.spec.image_features, record.spec.plain_dim) == (2 + 8, 8, 2)
    assert [m["step"] for m in run.encoder.read_metrics()] == [1, 2, 3, 4]
    assert policy.model.dimension_weight.tolist() == [1.0] * 2 + [0.5] * 8 + [1.0] * 2
    policy.reset(seed=0)
    actions = [policy.select_action(observe(frame)) for frame in range(10)]
    assert np.isfinite(actions).all()
    assert np.shape(actions) == (10, 2)


def test_features_of_training_are_those_of_the_policy(run: RunDirectory, policy: Policy):
    features = load_file(run.encoder.path / "codes.safetensors")["codes"]
    for frame in (0, 17, 71):
        encoded = policy.encode(observe(frame))
        assert encoded[:2] == pytest.approx(make_arrays()["state"][frame])
        assert encoded[2:] == pytest.approx(features[frame].double().numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("config", "title", "step"), [(STAGED, "encoder", 2), (STAGED, "training", 10), (JOINT, "training", 8)]
)
def test_run_interrupted_in_any_stage_resumes_bit_for_bit(
    config: RunConfig, title: str, step: int, store: Path, request: pytest.FixtureRequest, tmp_path: Path
):
    name, validation = ("run", 0.0) if config is STAGED else ("joint_run", 0.3)
    whole: RunDirectory = request.getfixturevalue(name)
    interrupt(store, tmp_path / "run", title, step, config, validation=validation)
    assert_same_weights(whole, train(store, tmp_path / "run", config, resume=True, validation=validation))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clean", "titles"), [(STAGED, ("encoder", "occlusion", "training")), (JOINT, ("training", "occlusion"))]
)
def test_an_encoder_learns_occlusion_from_a_teacher_and_resumes_in_each_phase(
    clean: RunConfig, titles: tuple[str, ...], store: Path, tmp_path: Path
):
    config = replace(clean, encoder=replace(clean.encoder, occlusion_steps=4))
    run, plain = train(store, tmp_path / "run", config), train(store, tmp_path / "plain", clean)
    teacher = RunDirectory(run.encoder.path / "teacher")
    teacher = teacher if clean is STAGED else teacher.encoder
    taught, teaching = (fingerprint(each.read_weights()) for each in (run.encoder, teacher))
    assert taught != teaching == fingerprint(plain.encoder.read_weights())
    found = load_file(run.encoder.path / "codes.safetensors")
    assert {"copy_0_codes", "copy_1_codes"} <= found.keys()
    assert not torch.equal(found["copy_0_codes"], found["codes"])
    policy = Policy.from_pretrained(run.path)
    values, frames = parse_observation(observe(17), policy.spec)
    (encoded,), (visible,) = encode_observation(policy, values[None], frames)
    assert encoded[2:] == pytest.approx(found["codes"][17].double().numpy(), abs=1e-5)
    assert 0 <= visible <= 1
    for title in titles:
        interrupt(store, tmp_path / title, title, 2, config)
        assert_same_weights(run, train(store, tmp_path / title, config, resume=True))


def test_copies_are_trained_on_beside_the_demonstrations():
    demos = Demonstrations(np.eye(4), np.ones((4, 1)), np.array([4]), rate_hz=10.0)
    plain = TrainingSet(demos, image_features=1)
    disturbed = TrainingSet(replace(demos, obs=2 * np.eye(4)), image_features=1)
    chosen = DemoConfig(first_action=(1.0,), first_action_from=(-1,))
    config = replace(STAGED, demos=chosen, encoder=EncoderConfig())
    rows = len(build_training_data(plain, config))
    data = build_training_data(replace(plain, copies=(disturbed, disturbed)), config)
    assert data.x_next[:, :4].amax(1).tolist() == rows * [1.0] + 2 * rows * [2.0]


def test_resume_with_another_encoder_is_refused(store: Path, tmp_path: Path):
    interrupt(store, tmp_path / "run", "encoder")
    other = replace(STAGED, encoder=replace(STAGED.encoder, blur=0.1))
    with pytest.raises(CheckpointError, match="other settings"):
        train(store, tmp_path / "run", other, resume=True)
    with pytest.raises(CheckpointError, match="already holds a run; continue with --resume"):
        train(store, tmp_path / "run")


def test_encoder_of_another_run_is_refused(store: Path, run: RunDirectory, tmp_path: Path):
    other = train(store, tmp_path / "other", seed=1)
    mixed = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "mixed")))
    mixed.encoder.model.write_bytes(other.encoder.model.read_bytes())
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another encoder"):
        Policy.from_pretrained(mixed.path)
    for file in ("codes", "model"):
        with pytest.raises(CheckpointError, match=rf"{file}\.safetensors belongs to another encoder"):
            train(store, mixed.path, resume=True)
        shutil.copy(other.encoder.path / "codes.safetensors", mixed.encoder.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({TOP: None}, "observation.images.top is missing"),
        ({TOP: np.zeros((32, 32, 3))}, "of uint8 from 0 to 255, got .* of float64"),
        ({STATE: np.zeros((1, 2))}, r"must be an array \(n, 32, 32, 3\) of.*, got \(32, 32, 3\)"),
        ({STATE: np.zeros(3)}, r"must have shape \(2,\)"),
    ],
)
def test_wrong_frames_are_named_and_refused(change: dict[str, Any], message: str, policy: Policy):
    with pytest.raises(PolicyInputError, match=message):
        policy.select_action({**observe(), **change})


def test_batch_of_observations_is_encoded_row_by_row(policy: Policy):
    rows = [observe(frame) for frame in (3, 40)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert policy.encode(batch) == pytest.approx(np.stack([policy.encode(row) for row in rows]), abs=1e-5)
    uneven = {**batch, WRIST: batch[WRIST][:1]}
    with pytest.raises(PolicyInputError, match=r"images\.wrist has 1 rows, observation\.\S+ has 2"):
        policy.encode(uneven)
    with pytest.raises(PolicyInputError, match=r"needs a dict of observations: 'observation.state' \(2,\)"):
        policy.select_action([0.1, 0.2])


def test_training_uses_the_threads_of_the_environment_and_leaves_those_of_the_caller(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    used: list[int] = []
    config = STAGED.replace_parts(train={"steps": 1}, encoder={"train": TrainConfig(steps=1, batch_size=2)})
    torch.set_num_threads(3)
    try:
        train(store, tmp_path / "run", config, monitor=lambda _: used.append(torch.get_num_threads()))
        assert (used, torch.get_num_threads()) == ([2, 1], 3)  # convolutions, then a small network
    finally:
        torch.set_num_threads(1)


def start_training(store: Path, run: RunDirectory) -> EncoderTraining:
    demos, images = load_training_demos(JOINT.demos, store), open_training_images(JOINT.demos, store)
    held_out = run.read_record().demos.held_out
    return EncoderTraining(TrainingSet(demos), images, JOINT, run, TrainOptions(), held_out=held_out)


def test_joint_training_changes_the_encoder_and_calibrates_its_features(
    store: Path, joint_run: RunDirectory, joint_policy: Policy
):
    record = joint_run.read_record()
    assert (record.spec.image_features, record.spec.plain_dim) == (6, 2)
    assert {record.spec.low[2:8], record.spec.high[2:8]} == {(-1.0,) * 6, (1.0,) * 6}
    losses = [line["square"] for line in joint_run.read_metrics()]
    assert losses[-1] < losses[0]
    assert all("validation_square" in line for line in joint_run.read_metrics())
    start, trained = start_training(store, joint_run).model.state_dict(), joint_policy.encoder.state_dict()
    assert all(not torch.equal(start[name], trained[name]) for name in start if "weight" in name)
    known = [frame for frame in range(72) if frame // 12 not in record.demos.held_out]
    encoded = np.stack([joint_policy.encode(observe(frame)) for frame in known])
    expected = (encoded[:, 2:].mean(0) + 1) / 2
    assert joint_policy.calibration.mean[2:8] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("held_out", [False, True])
def test_joint_loss_is_that_of_the_encoded_windows(
    held_out: bool, store: Path, joint_run: RunDirectory, joint_policy: Policy
):
    training = start_training(store, joint_run)
    split = joint_run.read_record().demos.held_out
    episodes = split if held_out else tuple(i for i in range(EPISODES) if i not in split)
    blank, full = (
        data.select(episodes) for data in (training.make_blank_features(), training.read_features(joint_run))
    )
    model = PolicyWithEncoder(joint_policy.model, joint_policy.encoder).eval()
    rows = torch.arange(0, 24, 7)
    batch = training.build_windows(blank, JOINT, held_out=held_out)[rows]
    windows = build_training_data(full, JOINT)
    generator = torch.Generator()
    found = model.loss(batch, generator)["square"]
    torch.testing.assert_close(found, joint_policy.model.loss(windows[rows], generator)["square"])


def test_windows_of_mirror_images_hold_mirrored_frames(store: Path, joint_policy: Policy, tmp_path: Path):
    images = open_training_images(JOINT.demos, store)
    file = FrameFile([*images.values()], EPISODES * STEPS, size=40, folder=tmp_path)
    frames = torch.from_numpy(file.read(np.arange(3))[0])
    windows = Windows(torch.zeros(3, 2, 10), torch.zeros(3, JOINT.model.horizon, 2))
    rows = np.array([[2, 0], [0, 0], [1, 0]]) + np.array([[0], [0], [EPISODES * STEPS]])
    batch = FrameTable(windows, rows, file)[torch.tensor([0, 2])]
    assert batch.frames[0].flatten(0, 1).equal(frames[[2, 0, 1, 0]])
    assert batch.is_mirrored.tolist() == [[False, False], [True, True]]
    seen: list[torch.Tensor] = []
    encoder = copy.deepcopy(joint_policy.encoder).eval()
    encoder.mirror = "left_right"
    encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    PolicyWithEncoder(joint_policy.model, encoder).eval().loss(batch, torch.Generator())
    assert seen[0].equal(torch.stack([frames[2], frames[0], frames[1].flip(1), frames[0].flip(1)]))


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
        train(store, tmp_path / "run", replace(JOINT, model=model, chunk=4))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("camera", "settings"),
    [
        (
            "wrist",
            {
                "encoder": "keypoints",
                "encoder.train.steps": 1,
                "encoder.train.batch-size": 2,
                "encoder.keypoints": 1,
            },
        ),
        ("top", {"encoder": "resnet", "policy": "diffusion", "encoder.crop": 36, "encoder.features": 4}),
    ],
)
def test_own_cameras_are_named_on_the_command_line(
    camera: str, settings: dict[str, Any], store: Path, tmp_path: Path
):
    flags = {"encoder.size": 40, "encoder.width": 16, "train.steps": 2, "train.batch-size": 2, **settings}
    flags |= {"preset": "fast", "device": "cpu", "out": tmp_path / "run"}
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    assert main(["train", "--demos", str(store), "--images", camera, *given]) == 0
    policy = Policy.from_pretrained(tmp_path / "run")
    assert [each.name for each in policy.spec.cameras] == [f"observation.images.{camera}"]
    assert np.isfinite(policy.select_action(observe(0))).all()
