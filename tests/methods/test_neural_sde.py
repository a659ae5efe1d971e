"""Tests for nsde_policy/methods/neural_sde/model.py."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import NetworkConfig
from nsde_policy.core.sde import euler_maruyama, trajectory_nll
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Transitions, pair_states, stack_history
from nsde_policy.errors import ConfigError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from tests.helpers.rng import make_rng

NETWORK = NetworkConfig(width=16, depth=2)
LAYOUT = StateSpec(
    obs_dim=2, act_dim=1, circular=(1,), low=(0.0, -9.0, -1.0), high=(10.0, 9.0, 1.0),
    increment_std=(0.5, 0.1, 0.2),
)  # fmt: skip
OFF = SamplingConfig(denoiser="off")


def build(layout: StateSpec = LAYOUT, **changes: Any) -> NeuralSDE:
    config = NeuralSDEConfig(**{"network": NETWORK, **changes})
    return NeuralSDE(config, layout, generator=make_rng()).eval()


def make_states(n: int = 20, steps: int = 6) -> Tensor:
    """Make paths (steps + 1, n, 3) whose increments have the size of the layout."""
    walk = torch.randn(steps + 1, n, 3, generator=make_rng(1)) * torch.tensor(LAYOUT.increment_std)
    return walk.cumsum(0) + torch.tensor([5.0, 3.0, 0.0])


def make_batch(history: int = 2, dt: float = 1.0) -> Transitions:
    return pair_states(make_states(), dt=dt, history=history)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"objective": "joint"},
    {"flow_loss": "log", "diffusion_loss": "squared", "interpolation": "uniform"},
    {"history": 1, "noise_kind": "absolute", "network": dataclasses.replace(NETWORK, kind="separate")},
    {"history": 3, "history_noise": "shared", "learned_strength": True},
    {"denoiser": False, "noise": 0.0, "sampling": OFF},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_part_of_the_loss_is_finite_and_reaches_its_weights(options: dict[str, Any]):
    model = build(**options).train()
    parts = model.loss(make_batch(model.config.history), make_rng())
    (stage,) = model.stages()
    assert set(stage.losses) == set(parts.parts)
    parts.total(stage.losses).backward()
    used = [p for name, p in model.named_parameters() if model.config.denoiser or "score" not in name]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in used)


@pytest.mark.parametrize("options", OPTIONS)
def test_loss_needs_no_host_synchronisation(options: dict[str, Any]):
    """Fake tensors have no values: a host read, or control flow that depends on data, would raise."""
    model = build(**options).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows = make_batch(model.config.history)
        assert model.loss(rows, make_rng()).total(model.stages()[0].losses).shape == ()


def test_loss_draws_only_from_the_given_generator():
    model, before = build().train(), torch.random.get_rng_state()
    names = model.stages()[0].losses
    one, two = (model.loss(make_batch(), make_rng(5)).total(names) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(before, torch.random.get_rng_state())


def test_loss_does_not_depend_on_the_unit_of_a_coordinate():
    """Metres or millimetres: the same layout in other units gives the same loss."""
    unit = torch.tensor([1000.0, 1.0, 0.01])
    scaled = dataclasses.replace(
        LAYOUT,
        **{
            name: tuple((torch.tensor(getattr(LAYOUT, name)) * unit).tolist())
            for name in ("low", "high", "increment_std")
        },
    )
    here = build().loss(make_batch(), make_rng()).parts
    there = build(scaled).loss(pair_states(make_states() * unit, history=2), make_rng()).parts
    for name, part in here.items():
        torch.testing.assert_close(part, there[name], rtol=1e-3, atol=1e-4)


def test_loss_and_paths_do_not_depend_on_the_unit_of_time():
    """Appendix B: any Δt may stand for one control period."""
    one, other = build(dt=1.0), build(dt=0.1)
    for name, part in one.loss(make_batch(dt=1.0), make_rng()).parts.items():
        torch.testing.assert_close(part, other.loss(make_batch(dt=0.1), make_rng()).parts[name])
    x0 = make_batch().x
    torch.testing.assert_close(
        one.sample_paths(x0, steps=5, generator=make_rng()),
        other.sample_paths(x0, steps=5, generator=make_rng()),
    )


def test_full_turns_of_an_angle_change_nothing():
    model, turn = build(), torch.tensor([0.0, 2 * math.pi, 0.0])
    path = make_states()
    turned = path.clone()
    turned[3:] += turn
    here, there = (model.loss(pair_states(p, history=2), make_rng()).parts for p in (path, turned))
    for name, part in here.items():
        torch.testing.assert_close(part, there[name], rtol=1e-4, atol=1e-4)


def test_one_step_per_period_shifts_the_history_exactly():
    model, x0 = build(history=3), make_batch(3).x
    path = euler_maruyama(model.sde(), x0, dt=1.0, steps=4, generator=make_rng())
    torch.testing.assert_close(path[1:, :, 3:], path[:-1, :, :-3], atol=1e-5, rtol=1e-5)


def test_several_steps_per_period_lag_the_history_by_one_period():
    model = build(sampling=OFF)
    for parameter in model.learned.networks.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(model.learned.networks.drift.bias)  # type: ignore[arg-type]
    x0 = stack_history(torch.stack([torch.zeros(1, 3), torch.tensor([LAYOUT.increment_std])]), 2)[-1]
    silent = torch.zeros(40, 1, 6)
    path = euler_maruyama(model.sde(), x0, dt=1.0, steps=10, substeps=4, noise=silent)
    lag = path[..., :3] - path[..., 3:]
    torch.testing.assert_close(lag, torch.tensor(LAYOUT.increment_std).expand(11, 1, 3), atol=1e-4, rtol=1e-4)


def test_a_path_costs_one_network_call_per_step():
    model, calls = build(), []
    model.learned.networks.register_forward_hook(lambda *_: calls.append(1))
    path = model.sample_paths(make_batch().x, steps=8, generator=make_rng())
    assert path.shape == (9, 120, 3)
    assert len(calls) == 8


def test_a_path_does_not_depend_on_the_batch_it_is_sampled_in():
    model, x0 = build(), make_batch().x
    noise = torch.randn(5, len(x0), 3, generator=make_rng())
    whole = model.sample_paths(x0, steps=5, noise=noise)
    torch.testing.assert_close(whole[:, 3:4], model.sample_paths(x0[3:4], steps=5, noise=noise[:, 3:4]))


def test_step_std_is_the_spread_of_the_next_state():
    model, x = build(), make_batch().x[:1]
    paths = model.sample_paths(x.expand(20_000, -1), steps=1, generator=make_rng())
    torch.testing.assert_close(paths.std(dim=1)[1], model.step_std(x)[0], rtol=0.03, atol=0)
    assert paths.std(dim=1)[0].abs().max() < 1e-5


def test_path_log_prob_is_the_likelihood_of_the_sampled_equation():
    model = build(history=1, network=dataclasses.replace(NETWORK, kind="separate"))
    path = model.sample_paths(make_batch(1).x, steps=6, generator=make_rng())
    expected = -trajectory_nll(model.sde(), path, dt=1.0)
    torch.testing.assert_close(model.path_log_prob(path), expected, rtol=1e-3, atol=1e-3)


def test_sampled_paths_are_likelier_than_paths_of_another_model():
    model, other = build(), NeuralSDE(build().config, LAYOUT, generator=make_rng(9)).eval()
    x0 = stack_history(make_states()[:1], 2)[0]
    own = model.sample_paths(x0, steps=20, generator=make_rng())
    strange = other.sample_paths(x0, steps=20, generator=make_rng())
    assert model.path_log_prob(own).mean() > model.path_log_prob(strange).mean()


def test_constant_strength_of_one_removes_the_noise_that_the_denoiser_estimates():
    """By Tweedie's formula, one period adds σ² d(x) = σ d̂(x)."""
    model, x0 = build(), make_batch().x
    still = torch.zeros(1, len(x0), 3)
    with_pull, without = (
        model.sample_paths(x0, steps=1, noise=still, sampling=SamplingConfig(denoiser=kind, alpha=1.0))
        for kind in ("constant", "off")
    )
    pull = model.learned.noise_std * model.learned.outputs(model.learned.features(x0)).score
    torch.testing.assert_close(with_pull[1] - without[1], pull, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("denoiser", ["constant", "cancelling", "learned", "off"])
def test_every_kind_of_strength_can_be_sampled(denoiser: Any):
    model = build(learned_strength=True)
    sampling = SamplingConfig(denoiser=denoiser, substeps=2)
    path = model.sample_paths(make_batch().x, steps=3, generator=make_rng(), sampling=sampling)
    assert path.shape == (4, 120, 3)
    assert path.isfinite().all()


def test_paths_from_one_state_are_equal_without_diffusion():
    model, x0 = build(), make_batch().x[:1].expand(5, -1)
    path = model.sample_paths(x0, steps=3, generator=make_rng(), sampling=SamplingConfig(diffusion=0.0))
    assert path.std(dim=1).max() < 1e-5


def test_sequential_training_has_stages_flow_denoiser_diffusion():
    model = build(
        schedule="sequential",
        learned_strength=True,
        network=dataclasses.replace(NETWORK, kind="separate"),
    )
    flow, denoiser, diffusion = model.stages()
    assert (flow.losses, denoiser.losses, diffusion.losses) == (
        ("flow",),
        ("denoiser", "strength"),
        ("diffusion",),
    )
    owned = [id(p) for stage in model.stages() for p in stage.parameters]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())


def test_sampling_rejects_parts_that_are_not_trained():
    model = build(denoiser=False, sampling=OFF)
    with pytest.raises(ConfigError, match="the denoiser is not trained"):
        model.sample_paths(
            make_batch().x, steps=1, generator=make_rng(), sampling=SamplingConfig(denoiser="constant")
        )


def test_state_dict_holds_weights_and_layout():
    model, other = build(), NeuralSDE(build().config, LAYOUT, generator=make_rng(9)).eval()
    other.load_state_dict(model.state_dict())
    x0 = make_batch().x
    assert torch.equal(
        model.sample_paths(x0, steps=3, generator=make_rng()),
        other.sample_paths(x0, steps=3, generator=make_rng()),
    )
