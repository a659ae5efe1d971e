"""Tests of the timm encoder with small networks of timm and random weights."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.encoder_model import to_unit_rgb
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.encoders.layers import locate_peaks
from nsde_policy.encoders.timm.config import TimmConfig
from nsde_policy.encoders.timm.model import TimmModel, import_timm
from nsde_policy.errors import ConfigError, MissingDependencyError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.loading import load_encoder
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training.options import TrainingProgress
from nsde_policy.training.presets import add_cameras
from tests.helpers.camera_robot import observe, train_camera_run, write_camera_store

CAMERAS = [CameraSpec("observation.images.top", 32, 32), CameraSpec("observation.images.wrist", 24, 40)]
SMALL = {"keypoints": 2, "width": 8, "anchors": 1, "shift": 4}


@pytest.fixture(scope="module")
def timm() -> Any:
    """Return the library, or skip the tests that need it."""
    try:
        return import_timm()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def weights(timm: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write random weights of networks; those of the vision transformer are for other frames."""
    folder = tmp_path_factory.mktemp("weights")
    files = {"test_resnet": folder / "resnet.safetensors", "test_vit": folder / "vit.pth"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(timm.create_model("test_resnet").state_dict(), files["test_resnet"])
        torch.save({"state_dict": timm.create_model("test_vit").state_dict()}, files["test_vit"])
        finetuned = timm.create_model("test_resnet", num_classes=7).state_dict()
        save_file(finetuned, folder / "finetuned.safetensors")
    return {**files, "finetuned": folder / "finetuned.safetensors"}


def build(name: str, weights: Path | str, **changes: Any) -> TimmModel:
    config = TimmConfig(model=name, weights=str(weights), **{**SMALL, "size": 64, **changes})
    return TimmModel(config, CAMERAS, plain_dim=2, generator=torch.Generator().manual_seed(1))


def get_backbone(model: TimmModel, camera: int = 0) -> dict[str, torch.Tensor]:
    backbone = model.autoencoders()[camera].encoder.get_submodule("backbone")
    return {name: tensor.clone() for name, tensor in backbone.state_dict().items()}


@pytest.mark.parametrize("file", ["test_resnet", "finetuned"])
def test_every_camera_starts_from_the_file_without_its_last_layers(file: str, weights: dict[str, Path]):
    model = build("test_resnet", weights[file])
    model.load_pretrained()
    expected = load_file(weights[file])
    for camera in (0, 1):
        backbone = get_backbone(model, camera)
        assert all(tensor.equal(expected[name]) for name, tensor in backbone.items())
        assert {name.partition(".")[0] for name in expected.keys() - backbone.keys()} == {"fc", "layer4"}


def test_vision_transformer_takes_frames_of_another_size(weights: dict[str, Path]):
    model = build("test_vit", weights["test_vit"])
    model.load_pretrained()
    saved = torch.load(weights["test_vit"])["state_dict"]
    backbone = get_backbone(model)
    assert backbone["pos_embed"].shape[1] == 1 + (64 // 16) ** 2 < saved["pos_embed"].shape[1]
    assert backbone["blocks.0.attn.qkv.weight"].equal(saved["blocks.0.attn.qkv.weight"])


def test_features_are_those_of_timm(timm: Any, weights: dict[str, Path]):
    model = build("test_resnet", weights["test_resnet"]).eval()
    model.load_pretrained()
    stage = timm.create_model("test_resnet", features_only=True, out_indices=(3,)).eval()
    stage.load_state_dict(load_file(weights["test_resnet"]), strict=False)
    frames = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    scale = timm.data.create_transform(**timm.data.resolve_data_config({}, model=stage)).transforms[-1]
    with torch.no_grad():
        (features,) = stage(scale(frames.permute(0, 3, 1, 2) / 255))
        network = model.autoencoders()[0].encoder
        points, _ = network(to_unit_rgb(frames))
        normed = torch.nn.functional.layer_norm(features, features.shape[1:])
        expected = locate_peaks(network.get_submodule("maps")(normed))
    torch.testing.assert_close(points, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "file", "changes", "message"),
    [
        ("test_resnet", "", {}, "starts from pretrained weights.*--encoder.weights FILE"),
        ("test_resnet", "missing.pth", {}, "there is no file missing.pth"),
        (
            "test_resnet",
            "test_vit",
            {},
            r"vit.pth \(--encoder.weights\) does not fit.*Missing.*Unexpected",
        ),
        ("resnet10t", "test_resnet", {}, "does not fit the timm model resnet10t.*size mismatch for conv1"),
        ("test_resnett", "test_resnet", {}, "no model 'test_resnett'.*did you mean test_resnet"),
        ("hf-hub:timm/resnet18", "test_resnet", {}, "no model 'hf-hub:timm/resnet18'"),
        ("resnet18.none", "test_resnet", {}, "resnet18.none cannot be built.*Invalid pretrained tag"),
        (
            "test_vit",
            "test_vit",
            {"size": 72},
            "frames of 72 × 72.*divisible by patch size.*--encoder.size",
        ),
    ],
)
def test_weights_and_networks_that_do_not_fit_are_refused(
    name: str, file: str, changes: dict[str, Any], message: str, weights: dict[str, Path]
):
    with pytest.raises(ConfigError, match=message):
        build(name, weights.get(file, file), **changes).load_pretrained()


def test_files_that_hold_no_weights_are_refused(timm: Any, tmp_path: Path):
    for file, content in {"text.pth": b"abc", "text.safetensors": b"abc", "empty.pth": b""}.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(ConfigError, match=f"{file} holds no weights that can be read"):
            build("test_resnet", tmp_path / file).load_pretrained()
    torch.save([1.0], tmp_path / "list.pth")
    with pytest.raises(ConfigError, match=r"list\.pth holds no weights"):
        build("test_resnet", tmp_path / "list.pth").load_pretrained()
    torch.save(timm.create_model("test_resnet"), tmp_path / "whole.pth")  # a pickle of code
    with pytest.raises(ConfigError, match=r"whole\.pth holds no weights.*Weights only load failed"):
        build("test_resnet", tmp_path / "whole.pth").load_pretrained()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camera_store(tmp_path_factory.mktemp("cameras") / "store.zarr")


@pytest.fixture
def config(weights: dict[str, Path], tmp_path: Path) -> RunConfig:
    """Return settings that name a copy of the weights."""
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights["test_resnet"].read_bytes())
    train = TrainConfig(steps=4, batch_size=2, log_every=1, learning_rate=1e-2, ema=0.0)
    return RunConfig(
        demos=DemoConfig(images=("top", "wrist"), encoder="timm", first_action_from=(0, 1)),
        encoder=TimmConfig(model="test_resnet", weights=str(copy), train=train, **SMALL, size=64),
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=4, batch_size=16, log_every=2),
    )


def load(run: RunDirectory) -> TimmModel:
    model = load_encoder(run, run.read_record())
    assert isinstance(model, TimmModel)
    return model


def test_run_is_loaded_without_the_file_and_resumes_bit_for_bit(
    config: RunConfig, store: Path, tmp_path: Path
):
    whole = train_camera_run(store, tmp_path / "whole", config)

    def stop(progress: TrainingProgress) -> None:
        if progress.step >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_camera_run(store, tmp_path / "run", config, monitor=stop, save_every_s=0.0)
    run = train_camera_run(store, tmp_path / "run", config, resume=True)
    for one, two in ((whole, run), (whole.encoder, run.encoder)):
        assert fingerprint(one.read_weights()) == fingerprint(two.read_weights())
    file = Path(config.encoder.to_dict()["weights"])
    saved = load_file(file)
    file.unlink()
    policy = Policy.from_pretrained(run.path)
    assert np.isfinite(policy.select_action(observe(3))).all()
    assert all(tensor.equal(saved[name]) for name, tensor in get_backbone(load(run)).items())
    again = train_camera_run(store, tmp_path / "run", config, resume=True)  # the encoder is finished
    assert fingerprint(again.read_weights()) == fingerprint(run.read_weights())


@pytest.mark.slow
def test_checkpoint_of_a_frozen_network_has_no_moments_of_it(config: RunConfig, store: Path, tmp_path: Path):
    frozen, tuned = (
        train_camera_run(store, tmp_path / f"{name}", replace(config, encoder=encoder))
        for name, encoder in (("a", config.encoder), ("b", replace(config.encoder, frozen=False)))
    )
    before, after = get_backbone(load(frozen)), get_backbone(load(tuned))
    statistics = {name for name in before if "running" in name or "num_batches" in name}
    assert statistics
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == before.keys() - statistics
    sizes = [run.encoder.training.stat().st_size for run in (frozen, tuned)]
    weights = 4 * sum(before[name].numel() for name in changed) * 2  # both cameras
    assert sizes[1] - sizes[0] == pytest.approx(3 * weights, rel=0.05)  # an average and two moments


@pytest.mark.slow
def test_occlusion_is_learned_by_the_keypoints_alone(config: RunConfig, store: Path, tmp_path: Path):
    taught = replace(config, encoder=replace(config.encoder, occlusion_steps=3))
    run = train_camera_run(store, tmp_path / "run", taught)
    teacher = RunDirectory(run.encoder.path / "teacher").read_weights()
    student = run.encoder.read_weights()
    changed = {name for name in teacher if not teacher[name].equal(student[name])}
    assert any(name.endswith("encoder.maps.weight") for name in changed)
    assert not any("backbone" in name for name in changed)


@pytest.mark.slow
def test_command_trains_scores_and_exports(
    weights: dict[str, Path], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = str(tmp_path / "run")
    flags = {"encoder": "timm", "encoder.model": "test_vit", "encoder.weights": weights["test_vit"]}
    flags |= {"steps": 4, "encoder.train.steps": 2, "encoder.train.batch-size": 4, "device": "cpu"}
    settings = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    train = ["train", "--demos", str(store), "--images", "top", *settings, "--out", run]
    assert main(train) == 0
    assert main(["score", run, "--demos", str(store)]) == 0
    assert main(["export", run]) == 0
    assert "policy.encoder.onnx: features of 1 camera" in capsys.readouterr().out


@pytest.mark.usefixtures("timm")
def test_refused_training_leaves_no_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train = ["train", "--demos", str(store), "--images", "top", "--encoder", "timm", "--steps", "2"]
    assert main([*train, "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    assert "--encoder.weights FILE" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_missing_timm_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="needs timm, which is not installed: pip install"):
        build("resnet18", "file")


def test_torchvision_of_another_torch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"nms does not exist.*torchvision that is built for"):
        build("resnet18", "file")


def test_another_encoder_replaces_the_settings_of_timm():
    demos = DemoConfig(images=("top",), encoder="timm")
    preset = RunConfig(demos=demos, encoder=TimmConfig(), model=NeuralSDEConfig())
    assert add_cameras(preset, demos).encoder == TimmConfig()
    assert add_cameras(preset, replace(demos, encoder="keypoints")).encoder == KeypointConfig()
