"""Small untrained policies and their exports, for tests of the exporter and the runtime."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from nsde_policy.config import ModelConfig, NetworkConfig, SelectionConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import CameraSpec, StateSpec
from nsde_policy.deploy.runtime.metadata import NO_CHECKSUM, RECORD_KEY, add_checksum
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.methods.baselines.diffusion import DiffusionConfig, DiffusionSampling, UNetConfig
from nsde_policy.methods.baselines.knn import StoredWindows
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.loading import build_encoder, build_model
from nsde_policy.policy.policy import Policy
from nsde_policy.policy.selection import build_dynamics
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.selection.rule import Kind, SelectionRule
from nsde_policy.selection.selector import PlanSelector
from tests.helpers.camera_robot import SIZES, draw_robot

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
    unet=UNetConfig(channels=(8,), kernel=3, step_embedding=8),
    sampling=DiffusionSampling("ddim", 2),
)
"""A Diffusion Policy with two network calls."""


def make_neural_sde_config(**changes: Any) -> NeuralSDEConfig:
    return NeuralSDEConfig(**{"network": SMALL, **changes})


def sign_graph(
    model: onnx.ModelProto, change: Callable[[dict[str, Any]], object] = lambda record: None
) -> bytes:
    """Serialize a model with a record whose checksum fits, as a forger could."""
    (entry,) = [entry for entry in model.metadata_props if entry.key == RECORD_KEY]
    record = json.loads(entry.value)
    record["sha256"] = NO_CHECKSUM
    change(record)
    entry.value = json.dumps(record)
    return add_checksum(model.SerializeToString())


def build_policy(config: ModelConfig, *, chunk: int = 4, seed: int = 0, layout: StateSpec = LAYOUT) -> Policy:
    """Build an untrained policy; methods that store demonstrations get random data."""
    demos = DemoRecord("made up", "", 1, 2)
    record = RunRecord(RunConfig(model=config, chunk=chunk), layout, "none", seed, demos, {})
    model = build_model(record)
    if isinstance(model, StoredWindows):
        model.prepare(_draw_windows(model.config, layout))
    return Policy(record, model.eval())


GOAL = (0.5, 3.0)
"""Goal of `build_selecting_policy` in the first two columns; the second is an angle."""


def build_selecting_policy(config: ModelConfig, *, kind: Kind = "goal", chunk: int = 2) -> Policy:
    """Build an untrained policy that compares plans near `GOAL`, or everywhere."""
    policy = build_policy(config, chunk=chunk)
    selection = SelectionConfig(network=SMALL)
    record = replace(policy.record, config=replace(policy.record.config, selection=selection))
    rule = SelectionRule(kind, columns=(0, 1), threshold=1.2)
    selector = PlanSelector(rule, build_dynamics(record), directions=2, references=50)
    selector.goal.copy_(torch.tensor(GOAL))
    selector.whitening.copy_(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    states = np.concatenate([draw_states(1, seed=seed) for seed in range(50)])
    selector.set_references(torch.from_numpy(states[:, : LAYOUT.obs_dim]))
    return Policy(record, policy.model, selector=selector.eval().requires_grad_(False))


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


CAMERA_SIZE = 32
"""Height and width of the frames that the encoder of `build_camera_policy` takes."""


def build_camera_policy(*cameras: str, anchors: int = 0, level: bool = False) -> Policy:
    """Build an untrained policy with cameras of the made-up robot; its keypoints follow the picture."""
    specs = tuple(CameraSpec(f"observation.images.{name}", *SIZES[name]) for name in cameras)
    config = RunConfig(
        demos=DemoConfig(images=cameras, encoder="keypoints"),
        encoder=KeypointConfig(
            size=CAMERA_SIZE, keypoints=2, width=8, anchors=anchors, level_brightness=level
        ),
        model=RegressionConfig(network=SMALL),
        chunk=4,
    )
    encoder = build_encoder(config, specs, plain_dim=2, seed=0)
    assert isinstance(encoder, KeypointModel)
    with torch.no_grad():
        for camera in encoder.autoencoders():
            camera.encoder.maps.weight[:2].mul_(5.0)
            camera.encoder.maps.weight[2:].mul_(0.3)
            picture = torch.from_numpy(draw_robot(*np.full((2, 2), 0.5), CAMERA_SIZE, CAMERA_SIZE))
            camera.background.copy_(picture)
            if camera.locate_anchors is not None:  # the measured shift depends on the state, and may be 0
                camera.locate_anchors.output.bias.copy_(camera.find_points(picture[None])[1].flatten())
                camera.locate_anchors.output.weight.mul_(0.1)
    d = 2 + encoder.feature_dim + 2
    layout = StateSpec(
        obs_dim=d - 2,
        act_dim=2,
        circular=(),
        low=(0.0, 0.0, *[-1.0] * encoder.feature_dim, 0.0, 0.0),
        high=(1.0,) * d,
        increment_std=(0.1,) * d,
        image_features=encoder.feature_dim,
    )
    demos = DemoRecord("made up", "", 1, 2)
    record = RunRecord(config, layout, "none", 0, demos, {}, cameras=specs)
    return Policy(record, build_model(record).eval(), encoder=encoder.eval())


def observe_robot(policy: Policy, seed: int) -> dict[str, np.ndarray]:
    """Return state and frames of the made-up robot at a random place, by name."""
    robot, block = np.random.default_rng(seed).uniform(size=(2, 2))
    frames = {c.name: draw_robot(robot, block, c.height, c.width) for c in policy.spec.cameras}
    return {"observation.state": robot, **frames}
