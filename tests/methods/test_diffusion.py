"""Tests for nsde_policy/methods/diffusion: schedule, samplers, conditioning, training."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import Sampling, TrainConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.diffusion.model import (
    LEVELS,
    PRESETS,
    Diffusion,
    DiffusionConfig,
    DiffusionSampling,
    TransformerConfig,
    UNetConfig,
    build_chain,
    build_denoiser,
    noise_schedule,
)
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.loop import fit
from nsde_policy.training.run import train_run
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import make_robot_demos

LAYOUT = StateSpec(
    obs_dim=3, act_dim=2, circular=(2,), low=(0.0, 0.0, -9.0, 0.0, -1.0), high=(10.0, 10.0, 9.0, 10.0, 1.0),
    increment_std=(0.5, 0.5, 0.1, 0.2, 0.2),
)  # fmt: skip
UNET = DiffusionConfig(horizon=8, unet=UNetConfig(channels=(8, 16, 16), kernel=3, groups=4, step_embedding=8))
TRANSFORMER = DiffusionConfig(
    horizon=6,
    network="transformer",
    transformer=TransformerConfig(layers=2, heads=2, embedding=16, dropout=0.3),
)
BOTH_NETWORKS = pytest.mark.parametrize("config", [UNET, TRANSFORMER], ids=["unet", "transformer"])
DDIM = DiffusionSampling("ddim", 5)


def build(config: DiffusionConfig, seed: int = 0) -> Diffusion:
    model = Diffusion(config, LAYOUT, generator=make_rng(seed)).eval()
    with torch.no_grad():  # the initial weights of the transformer are too small to see effects
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=make_rng(1)))
    return model


def make_batch(config: DiffusionConfig, n: int = 5) -> Windows:
    low, high = torch.tensor(LAYOUT.low), torch.tensor(LAYOUT.high)
    states = low + (high - low) * torch.rand(n, config.history, 5, generator=make_rng(2))
    actions = (low + (high - low) * torch.rand(n, config.horizon, 5, generator=make_rng(3)))[..., 3:]
    return Windows(states, actions)


def test_schedule_is_the_cosine_of_nichol_and_dhariwal():
    angle = [math.cos((t / LEVELS + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(LEVELS)]
    assert noise_schedule()[:-1] == pytest.approx([a / angle[0] for a in angle[1:]], rel=1e-3)
    assert 0 < noise_schedule()[-1] < 1e-6


def test_noise_added_step_by_step_has_the_marginals_of_the_schedule():
    """q(x_t | x₀) by 100 single steps x ← √α x + √β z: mean √ᾱ_t x₀, variance 1 − ᾱ_t."""
    n, x0, rng = 40_000, 0.8, make_rng()
    betas = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2").betas
    x = torch.full((n,), x0)
    for t, (beta, kept) in enumerate(zip(betas.tolist(), noise_schedule(), strict=True)):
        x = math.sqrt(1 - beta) * x + math.sqrt(beta) * torch.randn(n, generator=rng)
        if t in (0, 10, 50, 80, 99):
            std = math.sqrt(1 - kept)
            assert x.mean().item() == pytest.approx(math.sqrt(kept) * x0, abs=5 * std / math.sqrt(n))
            assert x.std().item() == pytest.approx(std, rel=0.02)


def test_add_noise_equals_diffusers():
    model, t = build(UNET), torch.arange(LEVELS)
    clean, noise = (torch.randn(LEVELS, 8, 2, generator=make_rng(s)) for s in (0, 1))
    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    torch.testing.assert_close(model.add_noise(clean, noise, t), scheduler.add_noise(clean, noise, t))


def epsilon(x: Tensor, t: int) -> Tensor:
    """Return a nonlinear function of the sample and the level, in place of a network."""
    return 0.9 * x + 0.3 * torch.sin(3 * x + t)


def run_chain(sampling: DiffusionSampling, x: Tensor, noise: Tensor) -> list[Tensor]:
    path = []
    for step, z in zip(build_chain(sampling), noise, strict=True):
        x = step.apply(x, epsilon(x, step.t), z if step.noise_std > 0 else None)
        path.append(x)
    return path


def test_ddpm_chain_equals_diffusers():
    scheduler = DDPMScheduler(
        num_train_timesteps=LEVELS,
        beta_schedule="squaredcos_cap_v2",
        variance_type="fixed_small",
        clip_sample=True,
        prediction_type="epsilon",
    )
    scheduler.set_timesteps(LEVELS)
    x0, rng = torch.randn(7, 8, 2, generator=make_rng(4)), make_rng(5)
    noise = torch.stack([torch.randn(x0.shape, generator=rng) for _ in range(LEVELS)])
    ours, theirs, rng = run_chain(DiffusionSampling(), x0, noise), x0, make_rng(5)
    for t, ours_now in zip(scheduler.timesteps, ours, strict=True):
        theirs = scheduler.step(epsilon(theirs, int(t)), t, theirs, generator=rng).prev_sample
        torch.testing.assert_close(ours_now, theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize("steps", [2, 4, 5, 10, 20, 25, 50, 100])
def test_ddim_chain_equals_diffusers(steps: int):
    scheduler = DDIMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2", clip_sample=True)
    scheduler.set_timesteps(steps)
    theirs = torch.randn(7, 8, 2, generator=make_rng(4))
    ours = run_chain(DiffusionSampling("ddim", steps), theirs, torch.zeros(steps, 1))
    for t, ours_now in zip(scheduler.timesteps, ours, strict=True):
        theirs = scheduler.step(epsilon(theirs, int(t)), t, theirs).prev_sample
        torch.testing.assert_close(ours_now, theirs, atol=1e-3, rtol=0)


@given(st.integers(1, LEVELS))
@settings(max_examples=20, deadline=None)
def test_ddim_with_any_number_of_steps_equals_diffusers_on_the_selected_levels(steps: int):
    """A scheduler of the selected levels only (Nichol & Dhariwal's respacing) takes the same steps."""
    chain = build_chain(DiffusionSampling("ddim", steps))
    kept = [1.0, *(noise_schedule()[step.t] for step in chain[::-1])]
    betas = [1 - after / before for before, after in itertools.pairwise(kept)]
    scheduler = DDIMScheduler(num_train_timesteps=steps, trained_betas=betas, clip_sample=True)
    scheduler.set_timesteps(steps)
    x = torch.randn(7, 8, 2, generator=make_rng(4))
    ours = run_chain(DiffusionSampling("ddim", steps), x, torch.zeros(steps, 1))
    for t, step, ours_now in zip(scheduler.timesteps, chain, ours, strict=True):
        x = scheduler.step(epsilon(x, step.t), t, x).prev_sample
        torch.testing.assert_close(ours_now, x, atol=1e-3, rtol=0)
    assert len({step.t for step in chain}) == steps
    assert chain[-1].t == 0
    assert chain[0].t >= LEVELS - math.ceil(LEVELS / steps)


@pytest.mark.parametrize("sampling", [DiffusionSampling(), DiffusionSampling("ddim", 50)])
def test_chain_with_the_exact_noise_samples_the_known_distribution(sampling: DiffusionSampling):
    """For x₀ ~ N(0.1, ¼²), ε̂ is known in closed form; with so few steps, σ is off by 5 %."""
    mean, std, n = 0.1, 0.25, 20_000
    x, rng = torch.randn(n, generator=make_rng()), make_rng(1)
    for step in build_chain(sampling):
        variance = step.alpha_bar * std**2 + 1 - step.alpha_bar
        exact = math.sqrt(1 - step.alpha_bar) * (x - math.sqrt(step.alpha_bar) * mean) / variance
        x = step.apply(x, exact, torch.randn(n, generator=rng) if step.noise_std > 0 else None)
    assert x.mean().item() == pytest.approx(mean, abs=0.01)
    assert x.std().item() == pytest.approx(std, rel=0.08)


def test_plan_equals_diffusers_with_the_same_network_and_noise():
    model, rows = build(UNET), make_batch(UNET, 3)
    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    scheduler.set_timesteps(LEVELS)
    noise = make_draws(3).normal(LEVELS, 8, 2)
    x, context = noise[:, 0], model.network.embed_observations(model.layout.obs_features(rows.states.flip(1)))
    with torch.no_grad():
        for k, t in enumerate(scheduler.timesteps):
            found = model.network(x, model.network.embed_levels(t[None]), context)
            mean = scheduler.step(found, t, x, generator=make_rng(9)).prev_sample
            if t > 0:  # replace the noise of diffusers by ours
                std = scheduler._get_variance(t) ** 0.5
                mean = mean + std * (noise[:, k + 1] - torch.randn(x.shape, generator=make_rng(9)))
            x = mean
    ours = model.plan(rows.states, steps=7, draws=make_draws(3))
    torch.testing.assert_close(ours, model.layout.from_unit(x)[:, 1:], atol=1e-2, rtol=0)


@BOTH_NETWORKS
def test_plan_starts_at_the_current_period_and_stays_in_the_demonstrated_range(config: DiffusionConfig):
    model, rows = build(config), make_batch(config)
    whole = model.plan(rows.states, steps=config.longest_chunk, draws=make_draws(5), sampling=DDIM)
    assert whole.shape == (5, config.horizon - 1, 2)
    assert bool((model.layout.to_unit(whole).abs() <= 1 + 1e-5).all())
    assert torch.equal(whole[:, :3], model.plan(rows.states, steps=3, draws=make_draws(5), sampling=DDIM))


@pytest.mark.slow
@BOTH_NETWORKS
def test_rows_are_planned_independently_by_all_levels_and_depend_only_on_their_seed(config: DiffusionConfig):
    model, states, calls = build(config), make_batch(config).states, []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    before = torch.random.get_rng_state()
    whole = model.plan(states, steps=4, draws=make_draws(5))
    assert len(calls) == model.network_calls(4) == LEVELS
    assert torch.equal(whole, model.plan(states, steps=4, draws=make_draws(5)))
    same, other = model.plan(states[[3, 3]], steps=4, draws=make_draws(2, seed=3))
    torch.testing.assert_close(whole[3], same, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(whole[3], other, atol=1e-2)
    assert torch.equal(before, torch.random.get_rng_state())


@BOTH_NETWORKS
def test_plan_makes_the_declared_number_of_network_calls(config: DiffusionConfig):
    model, calls = build(config), []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    model.plan(make_batch(config).states, steps=4, draws=make_draws(5), sampling=DDIM)
    assert len(calls) == model.network_calls(4, DDIM) == DDIM.steps


@BOTH_NETWORKS
def test_estimated_noise_depends_on_every_observation_and_level_but_not_on_past_actions(
    config: DiffusionConfig,
):
    model, rows = build(config), make_batch(config)
    x, t = torch.randn(5, config.horizon, 2, generator=make_rng()), torch.tensor([40])

    def estimate_noise(states: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            net = model.network
            out: Tensor = net(x, net.embed_levels(t), net.embed_observations(model._observations(states)))
        return out

    here = estimate_noise(rows.states, t)
    for age in range(config.history):
        for column in range(3):
            moved = rows.states.clone()
            moved[:, age, column] += 1.0
            assert (estimate_noise(moved, t) - here).abs().max() > 1e-4
    assert (estimate_noise(rows.states, t + 30) - here).abs().max() > 1e-4
    moved = rows.states.clone()
    moved[..., 3:] += 1.0
    assert torch.equal(estimate_noise(moved, t), here)


def test_film_scales_and_shifts_every_channel():
    """For given outputs of its convolutions, a block is affine in the FiLM parameters."""
    block = build(UNET).network.down[0][0]  # type: ignore[index]
    x, film = torch.randn(2, 2, 8, generator=make_rng()), torch.randn(2, 16, generator=make_rng(1))
    seen: list[Tensor] = []
    block.after.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        block(x, film)
        expected = film[:, :8, None] * block.before(x) + film[:, 8:, None]
    torch.testing.assert_close(seen[0], expected)


@BOTH_NETWORKS
def test_noise_is_the_same_for_levels_per_row_and_one_level_per_batch(config: DiffusionConfig):
    """One level per row and one level for all rows give the same noise."""
    model, rows = build(config), make_batch(config)
    net, x = model.network, torch.randn(5, config.horizon, 2, generator=make_rng())
    context = net.embed_observations(model._observations(rows.states))
    levels = torch.tensor([3, 50, 3, 99, 50])
    mixed = net(x, net.embed_levels(levels), context)
    for row, t in enumerate(levels.tolist()):
        torch.testing.assert_close(mixed[row], net(x, net.embed_levels(torch.tensor([t])), context)[row])


def test_transformer_is_causal_in_actions_and_observations():
    model, rows = build(TRANSFORMER), make_batch(TRANSFORMER)
    net, x = model.network, torch.randn(5, 6, 2, generator=make_rng(), requires_grad=True)
    obs = model._observations(rows.states).requires_grad_()
    out = net(x, net.embed_levels(torch.tensor([50])), net.embed_observations(obs))
    for i in range(6):
        by_action, by_obs = torch.autograd.grad(out[:, i].sum(), (x, obs), retain_graph=True)
        assert [bool(by_action[:, j].abs().max() > 0) for j in range(6)] == [j <= i for j in range(6)]
        assert [bool(by_obs[:, j].abs().max() > 0) for j in range(2)] == [j <= i for j in range(2)]


def test_explicit_attention_equals_that_of_torch():
    """Training computes attention explicitly for dropout of its weights; with tiny dropout both agree."""
    config = replace(TRANSFORMER, transformer=replace(TRANSFORMER.transformer, dropout=1e-6))
    model, rows = build(config), make_batch(config)
    here = model.loss(rows, make_rng()).parts["noise"]
    torch.testing.assert_close(model.train().loss(rows, make_rng()).parts["noise"], here)


def test_dropout_draws_from_the_generator_and_raises_without_one():
    model, rows = build(TRANSFORMER).train(), make_batch(TRANSFORMER)
    net, x = model.network, torch.zeros(5, 6, 2)
    clock, context = (
        net.embed_levels(torch.tensor([1])),
        net.embed_observations(model._observations(rows.states)),
    )
    assert torch.equal(net(x, clock, context, make_rng(1)), net(x, clock, context, make_rng(1)))
    assert not torch.equal(net(x, clock, context, make_rng(1)), net(x, clock, context, make_rng(2)))
    with pytest.raises(ConfigError, match="needs a random generator"):
        net(x, clock, context)


@BOTH_NETWORKS
def test_loss_is_the_mean_squared_error_of_the_noise_with_a_gradient_for_every_weight(
    config: DiffusionConfig,
):
    model, rows = build(config), make_batch(config, 64)
    rng = make_rng(7)
    t = torch.randint(LEVELS, (64,), generator=rng)
    noise = torch.randn(64, config.horizon, 2, generator=rng)
    noisy = model.add_noise(model.layout.to_unit(rows.actions), noise, t)
    net = model.network
    expected = (
        (net(noisy, net.embed_levels(t), net.embed_observations(model._observations(rows.states))) - noise)
        .square()
        .mean()
    )
    torch.testing.assert_close(model.loss(rows, make_rng(7)).parts["noise"], expected)
    model.train().loss(rows, make_rng(7)).total(("noise",)).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.abs().max() > 0) for p in model.parameters())


@BOTH_NETWORKS
def test_loss_needs_no_host_synchronisation(config: DiffusionConfig):
    """Fake tensors have no values: a host read, or control flow that depends on data, would raise."""
    model = build(config).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(make_batch(config), make_rng()).parts["noise"].shape == ()


@BOTH_NETWORKS
def test_loss_under_bfloat16_autocast_is_float32(config: DiffusionConfig):
    model, rows = build(config).train(), make_batch(config, 64)
    whole = model.loss(rows, make_rng()).parts["noise"]
    # A CPU without bf16 would make torch turn oneDNN off for the rest of the process, which changes rounding.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        half = model.loss(rows, make_rng()).parts["noise"]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=0.1, atol=0.05)


@BOTH_NETWORKS
def test_initial_weights_depend_only_on_the_generator(config: DiffusionConfig):
    before = torch.random.get_rng_state()
    one, two, other = (Diffusion(config, LAYOUT, generator=make_rng(s)).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("preset", "low", "high"),
    [("default", 62e6, 68e6), ("transformer", 8.5e6, 9.5e6), ("small", 2e6, 6e6), ("fast", 0.2e6, 2e6)],
)
def test_presets_have_the_expected_numbers_of_parameters(preset: str, low: float, high: float):
    config = PRESETS[preset].model
    assert isinstance(config, DiffusionConfig)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_denoiser(config, 2, 6).parameters())
    assert low < parameters < high


def test_presets_are_valid_runs_and_survive_json():
    for preset in get_method("diffusion").presets.values():
        config = RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert RunConfig.from_json(config.to_json()) == config
        assert (config.method, config.chunk) == ("diffusion", 8)
        assert (preset.model.history, preset.model.longest_chunk) == (2, 15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiffusionConfig(horizon=14), "3 levels needs a horizon that is a multiple of 4, got 14"),
        (lambda: replace(UNET, unet=UNetConfig(channels=(8,) * 5), horizon=8), "multiple of 16"),
        (lambda: UNetConfig(channels=()), "positive sizes"),
        (lambda: UNetConfig(channels=(12,)), "multiples of groups, 8"),
        (lambda: UNetConfig(kernel=4), "odd kernel"),
        (lambda: UNetConfig(step_embedding=7), "even step_embedding"),
        (lambda: TransformerConfig(layers=0), "layers >= 1"),
        (lambda: TransformerConfig(embedding=30, heads=4), "multiple of heads"),
        (lambda: TransformerConfig(dropout=1.0), "dropout"),
        (lambda: DiffusionSampling(steps=10), "DDPM needs 100 steps, got 10"),
        (lambda: DiffusionSampling("ddim", 0), "steps >= 1"),
        (lambda: DiffusionSampling("ddim", 101), "steps <= 100"),
        (lambda: DiffusionConfig(horizon=0), "need horizon >= 1"),
        (lambda: DiffusionConfig.from_dict({"network": "mlp"}), "must be one of"),
    ],
)
def test_invalid_settings_raise(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_transformer_accepts_any_horizon():
    assert DiffusionConfig(network="transformer", horizon=13).longest_chunk == 12


def test_sampling_of_another_method_raises():
    model = build(UNET)
    with pytest.raises(ConfigError, match="got Sampling"):
        model.plan(make_batch(UNET).states, steps=2, draws=make_draws(5), sampling=Sampling())
    with pytest.raises(ConfigError, match="got Sampling"):
        model.network_calls(2, Sampling())


FORK = StateSpec(
    obs_dim=1, act_dim=1, circular=(), low=(-1.0,) * 2, high=(1.0,) * 2, increment_std=(1.0,) * 2
)


def make_fork(n: int) -> Windows:
    """Make windows with a = o/2 ± 0.4, the same sign for the whole window."""
    obs = torch.rand(n, 1, 1, generator=make_rng()) * 2 - 1
    side = torch.randint(2, (n, 1, 1), generator=make_rng(1)) * 2 - 1
    states = torch.cat([obs, torch.zeros_like(obs)], dim=-1)
    return Windows(states, (obs / 2 + 0.4 * side).expand(-1, 4, -1).clone())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "min_agreement"),
    [
        (DiffusionConfig(history=1, horizon=4, unet=UNetConfig((16, 16), 3, 4, 16)), 0.85),
        (
            DiffusionConfig(
                history=1,
                horizon=4,
                network="transformer",
                transformer=TransformerConfig(layers=2, heads=2, embedding=32, dropout=0.0),
            ),
            0.6,
        ),
    ],
    ids=["unet", "transformer"],
)
def test_both_modes_of_a_fork_are_learned(config: DiffusionConfig, min_agreement: float):
    """Regression would return o/2, 0.4 away from every demonstration.

    Independent signs of four actions would agree in one chunk of eight. The threshold of the transformer is
    lower: its first action does not attend to the others, so its noise is estimated less accurately.
    """
    model = Diffusion(config, FORK, generator=make_rng())
    train = TrainConfig(steps=400, batch_size=64, learning_rate=4e-3, ema=0.99)
    fit(model, make_fork(2000), train, seed=0)
    obs = torch.linspace(-0.8, 0.8, 200)
    states = torch.stack([obs, torch.zeros(200)], dim=-1)[:, None]
    for sampling in (DiffusionSampling(), DiffusionSampling("ddim", 20)):
        plans = model.plan(states, steps=4, draws=make_draws(200), sampling=sampling)[..., 0]
        offset = plans - obs[:, None] / 2
        right = (offset.mean(1) > 0).float()
        for half in (right[:100], right[100:]):
            assert 0.3 < half.mean().item() < 0.7
        assert (offset.abs() - 0.4).abs().mean().item() < 0.08
        assert (offset.sign() == offset[:, :1].sign()).all(dim=1).float().mean().item() > min_agreement


@BOTH_NETWORKS
def test_run_is_saved_and_loaded_identically(config: DiffusionConfig, tmp_path: Path):
    run_config = RunConfig(
        demos=DemoConfig(first_action_from=()),
        model=config,
        train=TrainConfig(steps=6, batch_size=8, log_every=3),
        chunk=4,
    )
    run = train_run(
        make_robot_demos(5, obs_dim=3, act_dim=2), run_config, tmp_path / "run", task="none", seed=1
    )
    (record, one), (_, two) = (load_model(RunDirectory(run.path)) for _ in range(2))
    assert record.config == run_config
    assert isinstance(one, Diffusion)
    assert {"noise", "step"} <= set(next(run.read_metrics()))
    weights = run.read_weights()
    assert set(weights) == set(one.state_dict())
    assert all(torch.equal(weights[name], value) for name, value in one.state_dict().items())
    states = make_batch(config).states
    assert torch.equal(
        one.plan(states, steps=4, draws=make_draws(5), sampling=DDIM),
        two.plan(states, steps=4, draws=make_draws(5), sampling=DDIM),
    )
