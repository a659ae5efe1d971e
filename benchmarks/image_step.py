"""Measure one training step and one plan of Diffusion Policy from images, on made-up frames.

    python benchmarks/image_step.py --device cuda [--profile]

Prints milliseconds of the captured step of the preset `pixels`, of its parts alone, and of plans for a batch
of episodes. `--profile` lists the slowest kernels of a step. `--tiny` makes everything small, for a try.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsde_policy.core.spec import CameraSpec, StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.encoders.resnet.config import ResNetConfig
from nsde_policy.encoders.resnet.model import ResNetModel
from nsde_policy.methods.base import Draws, LossParts
from nsde_policy.methods.diffusion.model import Diffusion, DiffusionSampling
from nsde_policy.tasks import get_task
from nsde_policy.training.end_to_end import EndToEndModel, FrameWindows
from nsde_policy.training.loop import Training

FRAMES = 25_650


class EncoderAlone(EndToEndModel):
    """The encoder with a loss on its codes."""

    def loss(self, batch: FrameWindows, generator: torch.Generator) -> LossParts:
        (frames,) = (self._gather(camera, batch.index.flatten()) for camera in batch.frames)
        codes = self.encoder(batch.states, self.encoder.augment(frames, generator))
        return LossParts({"noise": codes.float().square().mean()})

    def stages(self) -> Any:
        (stage,) = super().stages()
        return (replace(stage, parameters=tuple(self.encoder.parameters())),)


class PolicyAlone(EndToEndModel):
    """The policy with codes of 0."""

    def loss(self, batch: FrameWindows, generator: torch.Generator) -> LossParts:
        return self.policy.loss(Windows(batch.states, batch.actions), generator)

    def stages(self) -> Any:
        return self.policy.stages()


def synchronize(device: str) -> None:
    """Wait until the device has finished."""
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plans", type=int, nargs="*", default=[1, 64, 200], help="episodes of a plan")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    config = get_task("pusht").with_observations("pixels").preset("pixels", "diffusion")
    model_config: Any = config.model
    encoder_config = config.encoder
    assert isinstance(encoder_config, ResNetConfig)
    count = FRAMES
    if args.tiny:
        model_config = replace(model_config, unet=replace(model_config.unet, channels=(16, 32, 64)))
        encoder_config, count = replace(encoder_config, width=16), 100
    size, codes, obs = encoder_config.size, encoder_config.features, 2 + encoder_config.features
    spec = StateSpec(obs, 2, (), (-1.0,) * (obs + 2), (1.0,) * (obs + 2), (1.0,) * (obs + 2), codes=codes)

    def draw(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, device=args.device) - 1

    pixels = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, device=args.device)
    index = torch.randint(0, count, (count, 2), device=args.device)
    data = FrameWindows(draw(count, 2, obs + 2), draw(count, model_config.horizon, 2), index, (pixels,))
    for name, kind in {"step": EndToEndModel, "encoder": EncoderAlone, "policy": PolicyAlone}.items():
        generator = torch.Generator().manual_seed(0)
        policy = Diffusion(model_config, spec, generator=generator)
        camera = CameraSpec("observation.images.img", size, size)
        encoder = ResNetModel(encoder_config, [camera], plain_dim=2, generator=generator)
        model = kind(policy, encoder).to(args.device)
        training = Training(model, data, config.train, seed=0)
        training.advance(10)  # three eager steps, the capture and a few replays
        synchronize(args.device)
        started = time.perf_counter()
        training.advance(args.steps)
        synchronize(args.device)
        each = (time.perf_counter() - started) / args.steps
        params = sum(p.numel() for p in training.model.stages()[0].parameters) / 1e6
        print(f"{name}: {1e3 * each:.2f} ms, {params:.1f} M parameters", flush=True)
        if name == "step" and args.profile:
            with torch.profiler.profile() as profile:
                training.advance(5)
                synchronize(args.device)
            key = "self_cuda_time_total" if args.device != "cpu" else "self_cpu_time_total"
            print(profile.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=80))
        del training
    policy = policy.to(args.device).eval()
    for rows in args.plans:
        for sampling in (DiffusionSampling(), DiffusionSampling("ddim", 10)):
            for _ in range(2):  # the first one initialises
                draws = Draws([torch.Generator().manual_seed(i) for i in range(rows)], args.device)
                synchronize(args.device)
                started = time.perf_counter()
                policy.plan(draw(rows, 2, obs + 2), steps=8, draws=draws, sampling=sampling)
                synchronize(args.device)
            spent = 1e3 * (time.perf_counter() - started)
            print(
                f"plan of {rows} episodes, {sampling.scheduler}-{sampling.steps}: {spent:.0f} ms", flush=True
            )


if __name__ == "__main__":
    main()
