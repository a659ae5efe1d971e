"""Tests for nsde_policy/methods/baselines/diffusion.py: schedule, samplers, conditioning, training."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.methods.baselines.diffusion import (
    LEVELS,
    Diffusion,
    DiffusionConfig,
    DiffusionSampling,
    UNetConfig,
    build_chain,
    noise_schedule,
)
from tests.helpers.rng import make_batch_rng, make_rng

LAYOUT = StateSpec(
    obs_dim=3, act_dim=2, circular=(2,), low=(0.0, 0.0, -9.0, 0.0, -1.0), high=(10.0, 10.0, 9.0, 10.0, 1.0),
    increment_std=(0.5, 0.5, 0.1, 0.2, 0.2),
)  # fmt: skip
UNET = DiffusionConfig(horizon=8, unet=UNetConfig(channels=(8, 16, 16), kernel=3, step_embedding=8))


def build(config: DiffusionConfig, seed: int = 0) -> Diffusion:
    return Diffusion(config, LAYOUT, generator=make_rng(seed)).eval()


def make_batch(config: DiffusionConfig, n: int = 5) -> Windows:
    low, high = torch.tensor(LAYOUT.low), torch.tensor(LAYOUT.high)
    states = low + (high - low) * torch.rand(n, config.history, 5, generator=make_rng(2))
    actions = (low + (high - low) * torch.rand(n, config.horizon, 5, generator=make_rng(3)))[..., 3:]
    return Windows(states, actions)


def estimate_noise(model: Diffusion, x: Tensor, t: Tensor, states: Tensor) -> Tensor:
    """Return the network's estimate at levels t, (k,)."""
    net = model.network
    context = net.embed_observations(model.layout.obs_features(states.flip(1)))
    out: Tensor = net(x, net.embed_levels(t), context)
    return out


def test_schedule_and_added_noise_equal_those_of_diffusers():
    from diffusers import DDPMScheduler  # takes seconds in every test process

    model, t = build(UNET), torch.arange(LEVELS)
    clean, noise = (torch.randn(LEVELS, 8, 2, generator=make_rng(s)) for s in (0, 1))
    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    assert noise_schedule() == tuple(scheduler.alphas_cumprod.tolist())
    torch.testing.assert_close(model.add_noise(clean, noise, t), scheduler.add_noise(clean, noise, t))


@given(st.integers(1, LEVELS))
@settings(max_examples=10, deadline=None)
def test_ddim_with_any_number_of_steps_equals_diffusers_on_the_selected_levels(steps: int):
    """A scheduler of the selected levels only (Nichol & Dhariwal's respacing) takes the same steps."""
    from diffusers import DDIMScheduler

    chain = build_chain(DiffusionSampling("ddim", steps))
    kept = [1.0, *(noise_schedule()[step.t] for step in chain[::-1])]
    betas = [1 - after / before for before, after in itertools.pairwise(kept)]
    scheduler = DDIMScheduler(num_train_timesteps=steps, trained_betas=betas, clip_sample=True)
    scheduler.set_timesteps(steps)
    ours = theirs = torch.randn(7, 8, 2, generator=make_rng(4))
    for t, step in zip(scheduler.timesteps, chain, strict=True):
        theirs = scheduler.step(0.9 * theirs + 0.3 * torch.sin(3 * theirs + step.t), t, theirs).prev_sample
        ours = step.apply(ours, 0.9 * ours + 0.3 * torch.sin(3 * ours + step.t), None)
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    assert len({step.t for step in chain}) == steps
    assert chain[-1].t == 0
    assert chain[0].t >= LEVELS - math.ceil(LEVELS / steps)


@pytest.mark.slow
def test_plan_equals_diffusers_with_the_same_network_and_noise():
    from diffusers import DDPMScheduler

    model, rows = build(UNET), make_batch(UNET, 3)
    scheduler = DDPMScheduler(num_train_timesteps=LEVELS, beta_schedule="squaredcos_cap_v2")
    scheduler.set_timesteps(LEVELS)
    noise = make_batch_rng(3).normal(LEVELS, 8, 2)
    x = noise[:, 0]
    with torch.no_grad():
        for k, t in enumerate(scheduler.timesteps):
            found = estimate_noise(model, x, t[None], rows.states)
            mean = scheduler.step(found, t, x, generator=make_rng(9)).prev_sample
            if t > 0:  # replace the noise of diffusers by ours
                std = scheduler._get_variance(t) ** 0.5
                mean = mean + std * (noise[:, k + 1] - torch.randn(x.shape, generator=make_rng(9)))
            x = mean
    ours = model.plan(rows.states, steps=7, rng=make_batch_rng(3))
    torch.testing.assert_close(ours, model.layout.from_unit(x)[:, 1:], atol=1e-2, rtol=0)


def test_estimated_noise_depends_on_every_observation_and_level():
    model, rows = build(UNET), make_batch(UNET)
    x, t = torch.randn(5, UNET.horizon, 2, generator=make_rng()), torch.tensor([40])
    here = estimate_noise(model, x, t, rows.states)
    for age in range(UNET.history):
        for column in range(3):
            moved = rows.states.clone()
            moved[:, age, column] += 1.0
            assert (estimate_noise(model, x, t, moved) - here).abs().max() > 1e-4
    assert (estimate_noise(model, x, t + 30, rows.states) - here).abs().max() > 1e-4


def test_loss_is_the_mean_squared_error_of_the_noise():
    model, rows = build(UNET), make_batch(UNET, 64)
    rng = make_rng(7)
    t = torch.randint(LEVELS, (64,), generator=rng)
    noise = torch.randn(64, UNET.horizon, 2, generator=rng)
    noisy = model.add_noise(model.layout.to_unit(rows.actions), noise, t)
    error = estimate_noise(model, noisy, t, rows.states) - noise
    torch.testing.assert_close(model.loss(rows, make_rng(7))["noise"], error.square().mean())
