"""Tests for nsde_policy/methods/baselines/knn.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsde_policy.config import TrainConfig
from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.errors import CheckpointError
from nsde_policy.methods.baselines.knn import (
    NearestNeighbours,
    NearestNeighboursConfig,
    NearestNeighboursSampling,
)
from nsde_policy.policy.loading import load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.training.train import train_run
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import make_robot_demos

LAYOUT = StateSpec(
    obs_dim=2, act_dim=2, circular=(1, 3), low=(0.0, -9.0, -1.0, -9.0), high=(10.0, 9.0, 3.0, 9.0),
    increment_std=(0.5, 0.1, 0.2, 0.1),
)  # fmt: skip


def make_windows(n: int = 40, history: int = 2, horizon: int = 5) -> Windows:
    states = torch.randn(n, history, 4, generator=make_rng(1)) * torch.tensor([3.0, 2.0, 1.0, 2.0])
    return Windows(states, torch.randn(n, horizon, 2, generator=make_rng(2)))


def build(data: Windows | None = None, **sampling: Any) -> NearestNeighbours:
    config = NearestNeighboursConfig(horizon=5, sampling=NearestNeighboursSampling(**sampling))
    model = NearestNeighbours(config, LAYOUT, generator=make_rng())
    model.prepare(make_windows() if data is None else data)
    return model.eval()


def compute_features(states: Tensor) -> Tensor:
    """Compute the features of each state: two scaled positions, then sines, then cosines."""
    unit = torch.stack([states[..., 0] / 5 - 1, (states[..., 2] + 1) / 2 - 1], dim=-1)
    angles = states[..., [1, 3]]
    return torch.cat([unit, angles.sin(), angles.cos()], dim=-1).flatten(-2)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_plan_is_that_of_the_nearest_found_by_brute_force(seed: int):
    data, model = make_windows(), build()
    query = torch.randn(3, 2, 4, generator=make_rng(seed)) * 2
    for row, plan in zip(query, model.plan(query, steps=3, rng=make_batch_rng(3)), strict=True):
        distances = [(compute_features(row) - compute_features(known)).norm().item() for known in data.states]
        nearest = min(range(len(distances)), key=distances.__getitem__)
        torch.testing.assert_close(plan, data.actions[nearest, 1:4])


def test_relative_actions_are_offsets_from_the_previous_action():
    data, model = make_windows(), build(actions="relative")
    moved = data.states.clone()
    moved[:, 0, 2] += 1e-3
    plan = model.plan(moved, steps=4, rng=make_batch_rng(40))
    torch.testing.assert_close(plan, data.actions[:, 1:] + torch.tensor([1e-3, 0.0]))
    torch.testing.assert_close(build().plan(moved, steps=4, rng=make_batch_rng(40)), data.actions[:, 1:])


def test_loaded_run_replays_a_demonstration_and_damaged_weights_raise(tmp_path: Path):
    demos = make_robot_demos()
    config = RunConfig(model=NearestNeighboursConfig(), train=TrainConfig(steps=7))
    saved = train_run(demos, config, tmp_path / "run")
    _, model = load_model(saved)
    states = np.concatenate([demos.obs[5:7], demos.act[4:6]], axis=-1)[::-1].copy()
    plan = model.plan(torch.from_numpy(states)[None], steps=8, rng=make_batch_rng(1))
    np.testing.assert_array_equal(plan[0].numpy(), demos.act[6:14])
    weights = saved.read_weights()
    actions = weights.pop("actions")
    for damaged in (weights, {**weights, "actions": actions[:, :3]}):
        saved.save_weights(damaged)
        with pytest.raises(CheckpointError, match=r"does not match its config\.json"):
            load_model(saved)
