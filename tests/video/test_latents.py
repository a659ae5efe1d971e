"""Tests of video prediction in the latent space of an own or a given autoencoder."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nsde_policy.cli.main import main
from nsde_policy.config import TrainConfig
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.loop import fit
from nsde_policy.video.autoencoder import FrameAutoencoder
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.collisions import CollisionsConfig, make_collisions
from nsde_policy.video.config import AutoencoderConfig, BackboneConfig, UnrollConfig, VideoConfig
from nsde_policy.video.latent_stage import AUTOENCODER_FOLDER, SCALE_FILE, load_space
from nsde_policy.video.latents import LatentScale, LatentSpace
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.presets import make_video_preset
from nsde_policy.video.pretrained import load_pretrained_autoencoder
from nsde_policy.video.registry import VIDEO_METHODS, get_video_method
from nsde_policy.video.run import load_video_model, train_video
from nsde_policy.video.spaces import to_unit
from nsde_policy.video.windows import Videos
from tests.helpers.rng import make_rng

SIZE = 16
FRAMES = make_collisions(4, CollisionsConfig(size=SIZE, frames=8), seed=0).frames
TINY = BackboneConfig(kind="plain", patch=1, width=16, depth=3, heads=2, features=8)
OWN = AutoencoderConfig(channels=5, width=8, train=TrainConfig(steps=4, batch_size=2, log_every=2))
CONFIG = VideoConfig(
    NeuralSDEVideoConfig(backbone=TINY),
    train=TrainConfig(steps=4, batch_size=2, log_every=2),
    unroll=UnrollConfig(frames=2, train=TrainConfig(steps=4, batch_size=2, log_every=2)),
    size=SIZE,
    latents="own",
    autoencoder=OWN,
)
FLAGS = [
    "--videos", "4", "--size", "16", "--train.steps", "2", "--train.batch-size", "2", "--unroll.frames", "0",
    "--model.backbone.width", "16", "--model.backbone.depth", "3", "--model.backbone.features", "8",
    "--device", "cpu",
]  # fmt: skip


def build_kl(**changes: Any) -> nn.Module:
    """Return an `AutoencoderKL` with random weights, whose latents are 4 × 8 × 8."""
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4}
    from diffusers import AutoencoderKL  # takes seconds

    return AutoencoderKL(**{**blocks, **sizes, **changes})


def build_tiny() -> nn.Module:
    """Return an `AutoencoderTiny` with random weights, whose latents are 2 × 4 × 4."""
    channels = {f"{part}_block_out_channels": (8, 8, 8) for part in ("encoder", "decoder")}
    blocks = {f"num_{part}_blocks": (1, 1, 1) for part in ("encoder", "decoder")}
    from diffusers import AutoencoderTiny

    return AutoencoderTiny(**channels, **blocks, latent_channels=2)


@pytest.fixture(scope="module")
def kl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kl") / "vae"
    build_kl().save_pretrained(folder)
    return folder


def test_own_autoencoder_learns_to_draw_frames():
    frames = FRAMES.flatten(0, 1)
    autoencoder = FrameAutoencoder(replace(OWN, width=16), generator=make_rng(0)).eval()
    before = LatentScale.measure(autoencoder, frames).psnr
    config = TrainConfig(steps=80, batch_size=16, learning_rate=5e-3, ema=0.9, weight_decay=0.0)
    fit(autoencoder, VideoBatch(frames[:, None], torch.zeros(len(frames), 1, 0)), config, seed=0)
    after = LatentScale.measure(autoencoder, frames)
    assert after.psnr > before + 6
    assert min(after.std) > 2 * OWN.noise, "latents are larger than the noise on them"
    assert max(after.std) < 5, "and bounded by the penalty"


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_latents_have_unit_size_and_are_decoded_in_place(levels: int):
    autoencoder = FrameAutoencoder(replace(OWN, levels=levels), generator=make_rng(0)).eval()
    scale = LatentScale.measure(autoencoder, FRAMES.flatten(0, 1))
    space = LatentSpace(autoencoder, scale, SIZE, "cpu")
    latents = space.encode(FRAMES)
    assert latents.shape == (4, 8, 5, SIZE // 2**levels, SIZE // 2**levels)
    assert (space.channels, space.size) == latents.shape[2:4]
    by_channel = latents.transpose(0, 2).flatten(1)
    assert by_channel.mean(1) == pytest.approx(torch.zeros(5), abs=1e-4)
    assert by_channel.std(1) == pytest.approx(torch.ones(5), abs=1e-3)
    with torch.no_grad():
        drawn = autoencoder.decode(autoencoder.encode(to_unit(FRAMES[1, 2:3]))).clamp(-1, 1)
    torch.testing.assert_close(space.decode(latents)[1, 2:3], drawn, atol=1e-4, rtol=0)
    assert space.decode(latents).shape == (4, 8, 3, SIZE, SIZE)


@pytest.mark.parametrize("method", VIDEO_METHODS.names())
def test_every_method_predicts_latents(method: str):
    autoencoder = FrameAutoencoder(OWN, generator=make_rng(0)).eval().requires_grad_(False)
    space = LatentSpace(autoencoder, LatentScale.measure(autoencoder, FRAMES[0]), SIZE, "cpu")
    found = get_video_method(method)
    model = found.model_class()(
        found.config(backbone=TINY),
        size=SIZE,
        act_dim=0,
        increment_std=0.5,
        generator=make_rng(0),
        space=space,
    )
    assert not any("autoencoder" in name for name in model.state_dict())
    model.unrolled = UnrollConfig(frames=3, calls=2)
    (stage,) = model.stages()
    batch = VideoBatch(FRAMES, torch.zeros(4, 8, 0))
    model.loss(batch, make_rng(0)).total(stage.losses).backward()
    assert all(parameter.grad is not None for parameter in model.outputs.parameters())
    assert all(parameter.grad is None for parameter in autoencoder.parameters())
    generated = model.generate(FRAMES[:, :4], torch.zeros(4, 3, 0), steps=3, calls=2, generator=make_rng(0))
    assert generated.shape == (4, 3, 3, SIZE, SIZE)
    assert generated.abs().max() <= 1


def test_untrained_neural_sde_repeats_the_drawn_frame():
    autoencoder = FrameAutoencoder(OWN, generator=make_rng(0)).eval().requires_grad_(False)
    space = LatentSpace(autoencoder, LatentScale.measure(autoencoder, FRAMES[0]), SIZE, "cpu")
    model = get_video_method("neural_sde").model_class()(
        CONFIG.model, size=SIZE, act_dim=0, increment_std=0.5, generator=make_rng(0), space=space
    )
    generated = model.generate(FRAMES[:, :4], torch.zeros(4, 2, 0), steps=2, generator=make_rng(0))
    torch.testing.assert_close(generated[:, 1], space.decode(space.encode(FRAMES[:, 3])))


def test_interrupted_training_in_latents_continues_bit_for_bit(tmp_path: Path):
    videos = Videos.from_tensor(FRAMES)
    whole = train_video(videos, CONFIG, tmp_path / "whole", seed=0)
    for k, stop in enumerate([(0, 2), (1, 2), (2, 2)]):  # in the autoencoder, then in both phases

        def interrupt(progress: Any, stop: tuple[int, int] = stop) -> None:
            model = progress.training.model
            phase = 0 if isinstance(model, FrameAutoencoder) else 2 if model.unrolled else 1
            if (phase, progress.step) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_video(videos, CONFIG, tmp_path / "parts", seed=0, monitor=interrupt, resume=k > 0)
    parts = train_video(videos, CONFIG, tmp_path / "parts", seed=0, resume=True)
    assert whole.model.read_bytes() == parts.model.read_bytes()
    for name in ("model.safetensors", SCALE_FILE):
        assert len({(run.path / AUTOENCODER_FOLDER / name).read_bytes() for run in (whole, parts)}) == 1
    steps = [line["step"] for line in RunDirectory(whole.path / AUTOENCODER_FOLDER).read_metrics()]
    assert steps == [2, 4]
    with pytest.raises(CheckpointError, match="other settings"):
        train_video(videos, replace(CONFIG, latents=None), tmp_path / "parts", seed=0, resume=True)
    model = load_video_model(parts.path)
    assert (model.space.channels, model.space.size) == (5, 4)
    (tmp_path / "parts" / AUTOENCODER_FOLDER / SCALE_FILE).unlink()
    with pytest.raises(CheckpointError, match=SCALE_FILE):
        load_video_model(parts.path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "AutoencoderKL", "AutoencoderTiny"])
def test_command_trains_and_scores_in_latents(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given, run, film = tmp_path / "given", tmp_path / "run", tmp_path / "film"
    flags = ["--latents", "own" if kind == "own" else str(given)]
    if kind == "own":
        flags += ["--autoencoder.train.steps", "2", "--autoencoder.train.batch-size", "2"]
        flags += ["--autoencoder.width", "8", "--autoencoder.channels", "2", "--model.backbone.patch", "1"]
    else:
        {"AutoencoderKL": build_kl, "AutoencoderTiny": build_tiny}[kind]().save_pretrained(given)
    assert main(["video", "train", "collisions", "--out", str(run), *flags, *FLAGS]) == 0
    shutil.rmtree(given, ignore_errors=True)  # the run is complete in itself
    capsys.readouterr()
    score = ["--steps", "2", "--videos", "2", "--json", "-", "--device", "cpu", "--film", str(film)]
    assert main(["video", "eval", str(run), *score]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"run", "repeat the last frame", "linear extrapolation"} == set(rows)
    assert (film / "film_strip.png").stat().st_size > 1000
    assert main(["video", "train", "collisions", "--out", str(run), *flags, *FLAGS, "--resume"]) == 0


def test_given_autoencoder_encodes_without_noise(kl_folder: Path):
    from diffusers import AutoencoderKL

    model, frames = load_pretrained_autoencoder(kl_folder), to_unit(FRAMES[0])
    reference = AutoencoderKL.from_pretrained(kl_folder)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(frames), reference.encode(frames).latent_dist.mean)
        assert model.decode(model.encode(frames)).shape == frames.shape


def damage_weights(folder: Path) -> None:
    file = folder / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def drop_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    save_file({name: each for name, each in weights.items() if "conv_out" not in name}, file)


def use_grey_frames(folder: Path) -> None:
    build_kl(in_channels=1, out_channels=1).save_pretrained(folder)


def use_another_model(folder: Path) -> None:
    (folder / "config.json").write_text('{"_class_name": "UNet2DModel"}')


def quantise(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**values, "quantization_config": {"quant_method": "gguf"}})
    )


def test_a_run_never_opens_the_folder_that_its_settings_name(tmp_path: Path):
    config = replace(CONFIG, latents=str(tmp_path / "elsewhere"))
    with pytest.raises(CheckpointError, match=SCALE_FILE):
        load_space(config, RunDirectory(tmp_path), device="cpu")


BAD_FOLDERS: dict[str, tuple[Any, str]] = {
    "missing": (shutil.rmtree, "does not exist: expected `own`, or a folder of diffusers"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "damaged config": (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
    "empty config": (lambda folder: (folder / "config.json").write_text("{}"), "holds another model"),
    "another model": (use_another_model, "holds UNet2DModel: expected a folder of diffusers with an Auto"),
    "no weights": (
        lambda folder: (folder / "diffusion_pytorch_model.safetensors").unlink(),
        "cannot be read",
    ),
    "damaged weights": (damage_weights, "weights of this AutoencoderKL cannot be read"),
    "incomplete weights": (drop_weights, "weights of this AutoencoderKL are missing, such as"),
    "quantised": (quantise, "holds quantised weights: expected plain ones"),
    "grey": (use_grey_frames, "maps 1 to 1 channels, expected 3 to 3"),
}


@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_bad_folder_is_refused_in_one_line(
    kind: str, kl_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    spoil, message = BAD_FOLDERS[kind]
    folder, out = Path(shutil.copytree(kl_folder, tmp_path / "vae")), tmp_path / "run"
    spoil(folder)
    assert main(["video", "train", "collisions", "--latents", str(folder), "--out", str(out), *FLAGS]) == 2
    error = capfd.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not out.exists()


def test_file_pipeline_and_size_are_refused_with_advice(
    kl_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def train(*flags: str) -> str:
        assert main(["video", "train", "collisions", "--out", str(tmp_path / "run"), *FLAGS, *flags]) == 2
        return capsys.readouterr().err

    assert "is a file" in train("--latents", str(kl_folder / "config.json"))
    assert f"try {kl_folder}" in train("--latents", str(kl_folder.parent))
    assert "patches of 8" in train(
        "--latents", str(kl_folder), "--size", "8", "--model.backbone.kind", "stem"
    )
    assert "cannot encode and decode frames of 15" in train("--latents", str(kl_folder), "--size", "15")
    assert "size must be a multiple of 8" in train("--latents", "own", "--size", "18")
    assert not (tmp_path / "run").exists()


def test_presets_cut_latents_into_eight_patches_per_side():
    for preset in ("default", "fast", "paper"):
        config = make_video_preset(preset, latents="own")
        backbone = config.model.backbone
        assert (backbone.kind, config.size // config.autoencoder.stride // backbone.patch) == ("plain", 8)
    assert make_video_preset("default", latents="/models/vae").model.backbone.patch == 1
    with pytest.raises(ConfigError, match="width must be a multiple of 8"):
        AutoencoderConfig(width=12)
