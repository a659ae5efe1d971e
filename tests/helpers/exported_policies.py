"""Small untrained policies and their exports, for tests of the exporter and the runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.config import ModelConfig, NetworkConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.inference.loading import build_model
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.diffusion.model import DiffusionConfig, DiffusionSampling, UNetConfig
from nsde_policy.methods.knn import NearestNeighbours
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunRecord

LAYOUT = StateSpec(
    obs_dim=3,
    act_dim=2,
    circular=(1, 4),
    low=(0.0, -4.0, 100.0, -5.0, -3.2),
    high=(1.0, 4.0, 600.0, 5.0, 3.2),
    increment_std=(0.02, 0.1, 9.0, 0.3, 0.1),
)
"""An observation of three numbers and a command of two, an angle in each."""
SMALL = NetworkConfig(width=16, depth=2, dropout=0.0)

DDIM = DiffusionConfig(
    unet=UNetConfig(channels=(8,), kernel=3, groups=4, step_embedding=8),
    sampling=DiffusionSampling("ddim", 2),
)
"""A Diffusion Policy with two network calls."""


def make_neural_sde_config(**changes: Any) -> NeuralSDEConfig:
    return NeuralSDEConfig(**{"network": SMALL, **changes})


def build_policy(config: ModelConfig, *, chunk: int = 4, seed: int = 0, layout: StateSpec = LAYOUT) -> Policy:
    """Build an untrained policy; nearest neighbours get random data."""
    demos = DemoRecord("made up", "", 1, 2)
    record = RunRecord(RunConfig(model=config, chunk=chunk), layout, "none", seed, demos, {})
    model = build_model(record)
    if isinstance(model, NearestNeighbours):
        model.prepare(_draw_windows(model.config, layout))
    return Policy(record, model.eval())


def _draw_windows(config: Any, layout: StateSpec) -> Windows:
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(layout.low), torch.tensor(layout.high)
    states = low + (high - low) * torch.rand(200, config.history, layout.dim, generator=generator)
    span = torch.rand(200, config.horizon, layout.act_dim, generator=generator)
    return Windows(states, low[layout.obs_dim :] + (high - low)[layout.obs_dim :] * span)


def draw_states(history: int, layout: StateSpec = LAYOUT, seed: int = 0) -> np.ndarray:
    """Draw states within the range, (history, d) float32."""
    rng, low, high = np.random.default_rng(seed), np.array(layout.low), np.array(layout.high)
    return (low + (high - low) * rng.random((history, layout.dim))).astype(np.float32)


def export_small_policy(folder: Path, **changes: Any) -> Path:
    """Export a small Neural SDE as ONNX."""
    from nsde_policy.deploy.export import export_policy

    export_policy(build_policy(make_neural_sde_config(**changes)), folder / "policy.onnx", cases=8)
    return folder / "policy.onnx"
