"""Training steps on a share of a batch, as one of several GPUs computes it; nothing is exchanged here."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from experiment import change_config
from torch import Tensor

from nsde_policy.assets import find_demos
from nsde_policy.config import TrainConfig
from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.base import IMAGE_KEY
from nsde_policy.encoders.base_model import CameraBatch
from nsde_policy.eval.latency import device_name
from nsde_policy.inference.loading import build_encoder, build_model
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.tasks import get_task, with_observations
from nsde_policy.training.batches import BatchSource, TableSource
from nsde_policy.training.dataset import build_training_data, measure_demonstrations, resolve_first_action
from nsde_policy.training.demos import load_training_demos
from nsde_policy.training.loop import Training
from nsde_policy.video.settings import VideoConfig
from nsde_policy.video.video_run import VideoRecord
from nsde_policy.video.videos import Videos
from timing.common import MB, Options, run_fresh

STEPS, FRAMES = 300, 2048
NOTHING = DemoRecord("", "", 0, 0)

Workload = tuple[Any, BatchSource[Any], TrainConfig]
"""A model, its batches, and the settings of its training."""


def measure_shares(options: Options) -> list[dict[str, Any]]:
    """Train a few steps of every workload on the whole batch and on shares of it, each in a new process."""
    names, shares = ([*WORKLOADS], SHARES) if not options.smoke else ([*WORKLOADS][:1], SHARES[-1:])
    return [
        run_fresh(_train, name, share, options.device, 2 if options.smoke else STEPS)
        for name in names
        for share in shares
    ]


def _train(name: str, share: int, device: str, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    model, source, config = WORKLOADS[name](share, device)
    training = Training(model, source, config, seed=0)
    training.advance(10)  # captures the step
    began = time.perf_counter()
    training.advance(steps)
    return {
        "device": device_name(device),
        "workload": name,
        "share": 1 / share,
        "batch": config.batch_size,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "training_steps": config.steps,
        "step_ms": 1e3 * (time.perf_counter() - began) / steps,
        "gpu_memory_mb": torch.cuda.max_memory_allocated() / MB if device != "cpu" else None,
    }


def _divide(config: TrainConfig, share: int) -> TrainConfig:
    return replace(config, batch_size=config.batch_size // share)


def _make_policy(share: int, device: str, *, method: str = "neural_sde", width: int = 0) -> Workload:
    """Return a policy on the demonstrations of Push-T, with the preset `default`."""
    config = get_task("pusht").preset("default", method)
    if width:
        config = change_config(config, {"model": {"network": {"width": width}}})
    demos = load_training_demos(config.demos, find_demos("pusht"), task="pusht")
    config = resolve_first_action(demos, config)
    record = RunRecord(config, measure_demonstrations(demos, config), "pusht", 0, NOTHING)
    data, train = build_training_data(demos, config, None), _divide(config.train, share)
    model = build_model(record)
    model.prepare(data)
    return model.to(device), TableSource(data.to(torch.device(device)), train.batch_size), train


class _Frames(BatchSource[CameraBatch]):
    """Draws random frames on the device; training reads them from a file ahead of time."""

    def __init__(self, size: int, batch_size: int, device: str) -> None:
        self._frames = torch.randint(0, 256, (FRAMES, size, size, 3), dtype=torch.uint8, device=device)
        self._batch_size = batch_size

    def draw(self, generator: torch.Generator) -> CameraBatch:
        device = generator.device
        index = torch.randint(FRAMES, (self._batch_size,), generator=generator, device=device)
        values = torch.rand(self._batch_size, 2, generator=generator, device=device)
        return CameraBatch(values, values, (self._frames[index],), (values, values))


def _make_encoder(share: int, device: str) -> Workload:
    """Return the encoder of the preset `pixels`, on random frames."""
    config = with_observations(get_task("pusht"), "pixels").preset("pixels")
    model = build_encoder(config, (CameraSpec(IMAGE_KEY, height=96, width=96),), plain_dim=2, seed=0)
    bounds, background = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.zeros(96, 96, 3, dtype=torch.uint8)
    model.set_scene(*bounds, [background])
    train = _divide(config.encoder.train, share)  # type: ignore[union-attr]
    return model.to(device), _Frames(model.size, train.batch_size, device), train


def _make_video(share: int, device: str) -> Workload:
    """Return the Neural SDE of the preset `default` for videos, on random frames."""
    config = VideoConfig.from_preset("default", "neural_sde")
    frames: Tensor = torch.randint(0, 256, (FRAMES // 16, 16, config.size, config.size, 3), dtype=torch.uint8)
    videos, train = Videos.from_tensor(frames.to(device)), _divide(config.train, share)
    model = VideoRecord(config, 0, NOTHING, videos.increment_std()).build_model().to(device)
    return model, TableSource(videos.windows(model.window), train.batch_size), train


SHARES = (1, 8, 64)
WORKLOADS: dict[str, Callable[[int, str], Workload]] = {
    "state policy": _make_policy,
    "state policy, width 1024": lambda share, device: _make_policy(share, device, width=1024),
    "Diffusion Policy": lambda share, device: _make_policy(share, device, method="diffusion"),
    "keypoint encoder": _make_encoder,
    "video": _make_video,
}
