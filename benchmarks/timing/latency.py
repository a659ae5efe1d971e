"""Latency of a chunk: the shipped policy exported to ONNX and with torch, against Diffusion Policy.

With --run, another policy for Push-T. Of a policy with cameras, "frames and chunk" encodes the frames of a
history and plans. The frames show the run's background, seen by a camera in its place, or shifted by two
pixels, which costs a second look.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.core.spec import StateSpec
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.eval.machine import device_name
from nsde_policy.methods.base import BatchRng
from nsde_policy.policy.loading import build_encoder, build_model
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from timing.common import Options, time_in_turns

OBS = np.array([235.0, 124.0, 299.6, 145.2, 5.378])
ACTIONS = 8
BASELINE = "diffusion, DDPM-100"
SHIFT = 2
Job = Callable[[], object]
Observation = dict[str, np.ndarray]


def measure_latency(options: Options) -> list[dict[str, Any]]:
    """Time all contenders in turns, on one thread; the baseline takes few turns."""
    torch.set_num_threads(1)
    rounds = 2 if options.smoke else options.rounds
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder)
        policy = Policy.from_pretrained(options.run)
        jobs = _list_camera_jobs(policy, path) if policy.spec.cameras else _list_state_jobs(policy, path)
        turns = {
            name: min(rounds, 1 if options.smoke else 5) if name == BASELINE else rounds for name in jobs
        }
        rows = time_in_turns(jobs, turns)
    slowest = rows[-1]["median_ms"]
    return [
        {**row, "baseline_over_this": round(slowest / row["median_ms"], 1), "machine": device_name("cpu")}
        for row in rows
    ]


def _list_state_jobs(policy: Policy, folder: Path) -> dict[str, Job]:
    export_policy(policy, folder / "policy.onnx", steps=ACTIONS, cases=64)
    export_policy(policy, folder / "first.onnx", steps=1, cases=64)
    runtime, runtime_first = (RuntimePolicy.load(folder / name) for name in ("policy.onnx", "first.onnx"))
    memory = runtime.spec.new_history()
    memory.add_observation(OBS)
    states = memory.states()
    record = RunDirectory(SHIPPED_POLICY).read_record()
    record = replace(record, config=get_task("pusht").preset("default", "diffusion"))
    baseline = build_model(record).eval()
    tensor, rng = torch.from_numpy(states)[None], BatchRng([torch.Generator().manual_seed(0)])
    return {
        "onnx, plan_from": lambda: runtime.plan_from(states, steps=ACTIONS, seed=0),
        "onnx, plan_from, first action": lambda: runtime_first.plan_from(states, steps=1, seed=0),
        "torch, plan_from": lambda: policy.plan_from(states, steps=ACTIONS, seed=0),
        "torch, plan_from, first action": lambda: policy.plan_from(states, steps=1, seed=0),
        BASELINE: lambda: baseline.plan(tensor, steps=ACTIONS, rng=rng),
    }


def _list_camera_jobs(policy: Policy, folder: Path) -> dict[str, Job]:
    export_policy(policy, folder / "policy.onnx", steps=ACTIONS, cases=64)
    runtime = RuntimePolicy.load(folder / "policy.onnx")
    here, shifted = _observe(policy, 0), _observe(policy, SHIFT)
    history = policy.spec.new_history()
    for each in here:
        history.add_observation(runtime.encode(each))
    states = history.states()

    return {
        "onnx, frames and chunk": _make_chunk(runtime, here),
        "onnx, frames and chunk, camera shifted": _make_chunk(runtime, shifted),
        "onnx, one observation": lambda: runtime.encode(here[0]),
        "onnx, one observation, camera shifted": lambda: runtime.encode(shifted[0]),
        "onnx, plan_from": lambda: runtime.plan_from(states, steps=ACTIONS, seed=0),
        "torch, frames and chunk": _make_chunk(policy, here),
        "torch, one observation": lambda: policy.encode(here[0]),
        "torch, plan_from": lambda: policy.plan_from(states, steps=ACTIONS, seed=0),
        BASELINE: _make_chunk(_build_image_diffusion(policy), here),
    }


def _build_image_diffusion(policy: Policy) -> Policy:
    """Build the image recipe of Diffusion Policy, ResNet-18 and U-Net, with random weights."""
    preset = get_task("pusht").training.presets("diffusion")["pixels"]
    config, spec = RunConfig.from_preset(preset, policy.record.config.demos), policy.spec
    encoder = build_encoder(config, spec.cameras, plain_dim=spec.plain_dim, seed=0).eval()
    obs_dim = spec.plain_dim + encoder.feature_dim
    ends = (1.0,) * (obs_dim + spec.act_dim)
    measured = StateSpec(
        obs_dim, spec.act_dim, (), (-1.0,) * len(ends), ends, ends, image_features=encoder.feature_dim
    )
    record = replace(policy.record, config=config, spec=measured)
    return Policy(record, build_model(record).eval(), encoder=encoder)


def _make_chunk(policy: Policy | RuntimePolicy, observed: list[Observation]) -> Job:
    """Return a job that encodes the frames of a history and plans a chunk."""

    def plan() -> object:
        history = policy.spec.new_history()
        for each in observed[: policy.spec.history]:
            history.add_observation(policy.encode(each))
        return policy.plan_from(history.states(), steps=ACTIONS, seed=0)

    return plan


def _observe(policy: Policy, shift: int) -> list[Observation]:
    """Return two observations: the background of each camera, shifted by some pixels."""
    assert isinstance(policy.encoder, KeypointModel)
    spec = policy.spec
    middle = 0.5 * (np.array(spec.low) + np.array(spec.high))[: spec.plain_dim]
    frames = {}
    for camera, network in zip(spec.cameras, policy.encoder.autoencoders(), strict=True):
        rows, columns = (np.arange(side) * policy.encoder.size // side for side in camera.shape[:2])
        frames[camera.name] = np.roll(network.background.numpy()[rows[:, None], columns], shift, axis=1)
    return [{"observation.state": middle, **frames}] * 2
