"""Tests for nsde_policy/methods/neural_sde: the learned equation, its losses and its options."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.core import losses
from nsde_policy.core.networks import MLP
from nsde_policy.core.sde import euler_maruyama
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import stack_history
from nsde_policy.errors import ConfigError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from tests.helpers.rng import make_rng
from tests.helpers.state_pairs import pair_states

SPREAD = (0.5, 0.1, 0.2)
LAYOUT = StateSpec(
    obs_dim=2, act_dim=1, circular=(1,), low=(0.0, -9.0, -1.0), high=(10.0, 9.0, 1.0), increment_std=SPREAD
)
SEPARATE = NetworkConfig(width=16, depth=2, dropout=0.0, kind="separate")
SHARED = replace(SEPARATE, kind="shared")
STILL = SamplingConfig(alpha=0.0, diffusion=0.0)


def build(layout: StateSpec = LAYOUT, **changes: Any) -> NeuralSDE:
    """Build a model without dropout, so that its losses can be recomputed."""
    config = NeuralSDEConfig(**{"history": 1, "network": SEPARATE, **changes})
    return NeuralSDE(config, layout, generator=make_rng()).eval()


def make_path(steps: int = 6, n: int = 20) -> Tensor:
    """Make paths (steps + 1, n, 3) whose increments have the size of the layout."""
    walk = torch.randn(steps + 1, n, 3, generator=make_rng(1)) * torch.tensor(SPREAD)
    return walk.cumsum(0) + torch.tensor([5.0, 3.0, 0.0])


def test_action_noise_scales_the_noise_of_actions_only():
    usual, blurred = (build(action_noise=factor).learned.noise_std for factor in (1.0, 3.0))
    factors = torch.tensor([1.0] * LAYOUT.obs_dim + [3.0] * LAYOUT.act_dim)
    torch.testing.assert_close(blurred, factors * usual)


def test_loss_does_not_depend_on_the_unit_of_a_coordinate():
    """Metres or millimetres: the same layout in other units gives the same loss."""
    unit = torch.tensor([1000.0, 1.0, 0.01])
    names = ("low", "high", "increment_std")
    other = {name: tuple((torch.tensor(getattr(LAYOUT, name)) * unit).tolist()) for name in names}
    here = build(history=2).loss(pair_states(make_path(), history=2), make_rng())
    scaled = build(replace(LAYOUT, **other), history=2)
    there = scaled.loss(pair_states(make_path() * unit, history=2), make_rng())
    for name, part in here.items():
        torch.testing.assert_close(part, there[name], rtol=1e-3, atol=1e-4)


def test_loss_and_paths_do_not_depend_on_the_unit_of_time():
    """Appendix B: any Δt may stand for one control period."""
    one, other = build(history=2, dt=1.0), build(history=2, dt=0.1)
    data, same = (pair_states(make_path(), dt=dt, history=2) for dt in (1.0, 0.1))
    for name, part in one.loss(data, make_rng()).items():
        torch.testing.assert_close(part, other.loss(same, make_rng())[name])
    noise = torch.randn(5, len(data.x), 3, generator=make_rng())
    paths = (model.sample_paths(data.x, steps=5, noise=noise) for model in (one, other))
    torch.testing.assert_close(*paths)


def test_one_step_per_period_shifts_the_history_exactly():
    model, x0 = build(history=3), pair_states(make_path(), history=3).x
    noise = torch.randn(4, *x0.shape, generator=make_rng())
    path = euler_maruyama(model.sde(), x0, dt=1.0, steps=4, noise=noise)
    torch.testing.assert_close(path[1:, :, 3:], path[:-1, :, :-3], atol=1e-5, rtol=1e-5)


def test_several_steps_per_period_lag_the_history_by_one_period():
    model = build(history=2, network=SHARED, sampling=STILL)
    for parameter in model.learned.networks.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(model.learned.networks.drift.bias)  # type: ignore[arg-type]
    x0 = stack_history(torch.stack([torch.zeros(1, 3), torch.tensor([SPREAD])]), 2)[-1]
    silent = torch.zeros(40, 1, 6)
    path = euler_maruyama(model.sde(), x0, dt=1.0, steps=10, substeps=4, noise=silent)
    lag = path[..., :3] - path[..., 3:]
    torch.testing.assert_close(lag, torch.tensor(SPREAD).expand(11, 1, 3), atol=1e-4, rtol=1e-4)


def test_sampling_rejects_parts_that_are_not_trained():
    model, noise = build(**without_noise()), torch.zeros(1, 20, 3)
    with pytest.raises(ConfigError, match="the denoiser is not trained"):
        model.sample_paths(make_path()[0], steps=1, noise=noise, sampling=SamplingConfig(alpha=0.5))


def test_settings_of_version_0_2_are_read():
    assert SamplingConfig.from_dict({"denoiser": "off", "alpha": 0.5}) == SamplingConfig(alpha=0.0)
    assert SamplingConfig.from_dict({"denoiser": "constant", "alpha": 0.5}) == SamplingConfig(alpha=0.5)
    assert NeuralSDEConfig.from_dict({"objective": "joint", "history_noise": "none"}) == NeuralSDEConfig()
    with pytest.raises(ConfigError, match="no setting 'denoiser'"):
        SamplingConfig.from_dict({"denoiser": "cancelling"})


def without_noise(**changes: Any) -> dict[str, Any]:
    """Return settings without noise on the training states."""
    return {"noise": 0.0, "denoiser": False, "sampling": STILL, **changes}


@pytest.mark.parametrize("dt", [1.0, 0.25])
def test_each_objective_computes_its_formula(dt: float):
    data, at = pair_states(make_path(), dt=dt), build(**without_noise()).learned
    f, log_g2, _ = at.outputs(at.features(data.x))
    v = at.increment(data.x, data.x_next) / data.dt / torch.tensor(SPREAD)
    squared = losses.diffusion_squared_loss(log_g2.exp(), f, v, data.dt)
    paper = {"flow_loss": "log", "delta": 0.3, "diffusion_loss": "squared"}
    for options, part, expected in (
        ({}, "flow", losses.flow_loss(f, v, delta=math.inf)),
        ({}, "diffusion", losses.diffusion_nll(log_g2, f, v, data.dt)),
        (paper, "flow", losses.flow_loss(f, v, delta=0.3)),
        (paper, "diffusion", squared),
    ):
        found = build(**without_noise(**options)).loss(data, make_rng())[part]
        torch.testing.assert_close(found, expected)


def test_zero_weight_gives_zero_gradient():
    model, data = build(**without_noise()), pair_states(make_path())
    weight = data.weight.clone()
    weight[:, 0] = 0.0
    changed = replace(data, weight=weight, x_next=data.x_next + torch.tensor([99.0, 0.0, 0.0]))
    plain = replace(data, weight=weight)
    one, two = (model.loss(d, make_rng()) for d in (plain, changed))
    for name in one:
        torch.testing.assert_close(one[name], two[name])
    heavy = model.loss(replace(data, weight=3 * data.weight), make_rng())
    for name, loss in model.loss(data, make_rng()).items():
        torch.testing.assert_close(heavy[name], 3 * loss)


def test_interpolation_takes_the_shorter_way_around_the_circle():
    """Across ±π a point between two states lies between them, not on the far side of the circle."""
    near_pi = torch.tensor([[[5.0, math.pi - 0.02, 0.0]], [[5.0, -math.pi + 0.02, 0.0]]]).expand(2, 400, 3)
    model, seen = build(**without_noise(interpolation="uniform")), []
    hook = model.learned.networks.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.loss(pair_states(near_pi), make_rng())
    hook.remove()
    sine, cosine = seen[0][:, -2], seen[0][:, -1]
    assert float(cosine.max()) < -0.999
    assert float(sine.min()) < -0.01 < 0.01 < float(sine.max())  # points on both sides of π


def test_the_denoiser_adds_alpha_sigma_squared_times_the_score():
    model, x = build(noise=0.7), make_path()[0]
    out = model.learned.outputs(model.learned.features(x))
    one, off = (
        model.sample_paths(x, steps=1, noise=torch.zeros(1, len(x), 3), sampling=SamplingConfig(alpha))[1]
        for alpha in (0.3, 0.0)
    )
    correction = 0.3 * model.learned.noise_std * out.score  # σ² times score / σ
    torch.testing.assert_close(one - off, correction.detach(), rtol=1e-3, atol=1e-5)
    assert float((one - off).abs().max()) > 1e-4


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_predicted_std_equals_the_sampled_standard_deviation(factor: float):
    model, x = build(), make_path()[0, :1]
    sampling, noise = SamplingConfig(diffusion=factor), torch.randn(1, 20_000, 3, generator=make_rng())
    paths = model.sample_paths(x.expand(20_000, -1), steps=1, noise=noise, sampling=sampling)
    expected = model.predict_step(x[:, None], sampling=sampling).std[0]
    torch.testing.assert_close(paths[1].std(0), expected, rtol=0.03, atol=0.0)


def test_variance_stays_above_its_floor():
    model = build(variance_floor=0.04)
    with torch.no_grad():
        model.learned.networks.log_variance.output.bias.fill_(-50.0)
    lowest = model.learned.terms(make_path()[0]).diffusion / torch.tensor(SPREAD)
    assert lowest.min().item() == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("network", [SHARED, SEPARATE], ids=["shared", "separate"])
def test_step_inputs_respond_to_steps_and_to_nothing_else(network: NetworkConfig):
    wide = replace(network, width=256)

    def run_first_layer(states: Tensor, strength: float) -> Tensor:
        model = build(history=3, network=wide, step_inputs=strength)
        trunk = next(module for module in model.learned.networks.modules() if isinstance(module, MLP))
        out: Tensor = trunk.layers[0](model.learned.features(states.flatten(-2)))
        return out

    still = make_path()[0][:, None].expand(-1, 3, -1)
    steps = torch.tensor(SPREAD) * torch.randn(20, 1, 3, generator=make_rng(2))
    moving = still - torch.arange(3.0)[:, None] * steps
    changes = [run_first_layer(states, 1.0) - run_first_layer(states, 0.0) for states in (still, moving)]
    assert changes[0].abs().max() < 1e-3
    assert 0.3 < changes[1].std() < 3.0, "typical steps are inputs of size 1"
