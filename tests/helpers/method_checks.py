"""Assertions that hold for every method: reproducible losses, saved runs, rows planned independently."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import Sampling, TrainConfig, WindowConfig
from nsde_policy.core.targets import Windows
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.base import LossParts, PolicyModel
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory, RunRecord, fingerprint
from nsde_policy.training.run import train_run
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import make_robot_demos, make_states


class RecordingNetwork(nn.Module):
    """Network that returns a constant and records its inputs."""

    def __init__(self, outputs: int, value: float) -> None:
        super().__init__()
        self.outputs, self.value = outputs, value
        self.inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        self.inputs.append(x)
        return x.new_full((len(x), self.outputs), self.value)


def check_loss(
    model: PolicyModel[Any], make_batch: Callable[[], Windows], names: tuple[str, ...]
) -> LossParts:
    """Assert that the loss needs no host synchronisation and draws only from its generator; return it.

    Fake tensors have no values: a host read, or control flow that depends on data, would raise.
    """
    before = torch.random.get_rng_state()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(make_batch(), make_rng()).total(names).shape == ()
    one, two = (model.loss(make_batch(), make_rng()) for _ in range(2))
    assert all(torch.equal(one.parts[name], two.parts[name]) for name in names)
    assert torch.equal(before, torch.random.get_rng_state())
    return one


def check_plan_rows(
    model: PolicyModel[Any],
    states: torch.Tensor,
    *,
    steps: int,
    act_dim: int,
    sampling: Sampling | None = None,
    deterministic: bool = False,
) -> None:
    """Assert that a plan depends only on its state and seed, or only on its state if deterministic."""

    def plan(rows: torch.Tensor, seed: int) -> torch.Tensor:
        return model.plan(rows, steps=steps, draws=make_draws(len(rows), seed=seed), sampling=sampling)

    whole = plan(states, 0)
    assert whole.shape == (len(states), steps, act_dim)
    assert torch.equal(whole, plan(states, 0))
    alone = [plan(row[None], 9 if deterministic else i) for i, row in enumerate(states)]
    torch.testing.assert_close(whole, torch.cat(alone))


def check_ramp_plans(model: PolicyModel[Any], *, steps: int, atol: float) -> None:
    """Check the plans of a model that was fitted to `make_ramps`: actions are 3 · observation · period."""
    obs = torch.linspace(-0.9, 0.9, 7)
    plan = model.plan(make_states(obs, model.config.history), steps=steps, draws=make_draws(7))
    torch.testing.assert_close(plan[..., 0], 3 * obs[:, None] * torch.arange(1, steps + 1), atol=atol, rtol=0)


def train_and_load(
    config: WindowConfig, path: Path, *, chunk: int, **train: Any
) -> tuple[RunDirectory, PolicyModel[Any]]:
    """Train on the demonstrations of the robot and load the model.

    Assert that saved and loaded weights are equal, and that an interrupted and resumed run ends with the
    weights of an uninterrupted one.
    """
    settings = TrainConfig(steps=20, batch_size=16, log_every=5)
    run_config = RunConfig(
        demos=DemoConfig(first_action_from=()),
        model=config,
        train=dataclasses.replace(settings, **train),
        chunk=chunk,
    )
    whole = train_run(make_robot_demos(), run_config, path / "whole", task="none", seed=3)

    def stop(progress: Any) -> None:
        if progress.step == 10:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train_run(make_robot_demos(), run_config, path / "parts", task="none", seed=3, monitor=stop)
    parts = train_run(make_robot_demos(), run_config, path / "parts", task="none", seed=3, resume=True)
    assert fingerprint(parts.read_weights()) == fingerprint(whole.read_weights())
    record, model = load_model(whole)
    assert record.config == run_config
    assert fingerprint(model.state_dict()) == fingerprint(whole.read_weights())
    assert not model.training
    return whole, model


def make_robot_states(n: int, history: int) -> torch.Tensor:
    """Make states of the robot, (n, history, 7)."""
    return torch.randn(n, history, 7, generator=make_rng(4))


def check_loaded_twice(config: WindowConfig, path: Path) -> tuple[RunRecord, PolicyModel[Any]]:
    """Train one run, load it twice, assert that both models plan the same finite actions, and return one."""
    run_config = RunConfig(
        demos=DemoConfig(first_action_from=()),
        model=config,
        train=TrainConfig(steps=20, batch_size=16, log_every=10),
        chunk=1,
    )
    demos = make_robot_demos(6, 15, obs_dim=3, act_dim=2)
    run = train_run(demos, run_config, path / "run", task="none", seed=1)
    record, one = load_model(run)
    _, two = load_model(run)
    assert record.config == run_config
    states = torch.randn(5, config.history, 5, generator=make_rng())
    plan = one.plan(states, steps=1, draws=make_draws(5))
    assert plan.isfinite().all()
    assert torch.equal(plan, two.plan(states, steps=1, draws=make_draws(5)))
    assert fingerprint(one.state_dict()) == fingerprint(run.read_weights())
    return record, one
