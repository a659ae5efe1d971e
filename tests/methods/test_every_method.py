"""Tests of what every method promises: its losses, its plans, its sampling settings and its saved runs."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import ModelConfig, NetworkConfig, Sampling, TrainConfig, WindowConfig
from nsde_policy.core.batches import Transitions, Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.baselines.bet import BehaviourTransformerConfig
from nsde_policy.methods.baselines.diffusion import DiffusionConfig, DiffusionSampling, UNetConfig
from nsde_policy.methods.baselines.flow import StreamingFlowConfig, StreamingFlowSampling
from nsde_policy.methods.baselines.gpi import GPIConfig, GPISampling
from nsde_policy.methods.baselines.ibc import ImplicitBCConfig, ImplicitBCSampling
from nsde_policy.methods.baselines.knn import NearestNeighboursConfig, NearestNeighboursSampling
from nsde_policy.methods.baselines.l1_flow import L1FlowConfig
from nsde_policy.methods.baselines.lstm_gmm import LSTMGMMConfig, LSTMGMMSampling
from nsde_policy.methods.baselines.mip import MIPConfig
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.registry import METHODS, get_method
from nsde_policy.policy.loading import load_model
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import fingerprint
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.state_pairs import pair_states
from tests.helpers.toy_problems import WITH_ANGLE, make_robot_demos

NETWORK = NetworkConfig(width=16, depth=2)
SEPARATE = replace(NETWORK, kind="separate")
UNET = UNetConfig(channels=(8, 16, 16), kernel=3, step_embedding=8)
DDIM = DiffusionSampling("ddim", 5)
SMALL_IBC: dict[str, Any] = {"width": 32, "depth": 3, "negatives": 32, "horizon": 3}
SEARCH = ImplicitBCSampling(samples=64)


class Case(NamedTuple):
    """A small model of a method."""

    config: ModelConfig
    steps: int = 4
    """Length of its plans."""
    network: str = "network"
    """Name of the module whose calls are counted; "" if there is none."""


def neural_sde(**changes: Any) -> Case:
    return Case(NeuralSDEConfig(**{"network": NETWORK, **changes}), network="learned.networks")


CASES = {
    "neural_sde": neural_sde(),
    "neural_sde log": neural_sde(flow_loss="log", diffusion_loss="squared", interpolation="uniform"),
    "neural_sde separate": neural_sde(history=1, noise_kind="absolute", network=SEPARATE),
    "neural_sde shared noise": neural_sde(history=3, history_noise="shared"),
    "neural_sde plain": neural_sde(denoiser=False, noise=0.0, sampling=SamplingConfig(alpha=0.0, substeps=2)),
    "regression": Case(RegressionConfig(network=NETWORK)),
    "mip": Case(MIPConfig(network=NETWORK)),
    "flow": Case(StreamingFlowConfig(network=NETWORK, sampling=StreamingFlowSampling(substeps=2, start=1.0))),
    "l1_flow": Case(L1FlowConfig(horizon=6, network=NETWORK)),
    "gpi": Case(GPIConfig(sampling=GPISampling(neighbours=3, attraction=0.5)), network=""),
    "knn": Case(NearestNeighboursConfig(sampling=NearestNeighboursSampling(actions="relative")), network=""),
    "ibc": Case(ImplicitBCConfig(**SMALL_IBC, sampling=SEARCH), steps=2),
    "ibc best": Case(ImplicitBCConfig(**SMALL_IBC, sampling=replace(SEARCH, answer="best")), steps=2),
    "lstm_gmm": Case(
        LSTMGMMConfig(
            history=4, horizon=4, hidden=12, dropout=0.3, noise=0.5, sampling=LSTMGMMSampling("full")
        ),
        steps=1,
        network="head",
    ),
    "bet": Case(
        BehaviourTransformerConfig(bins=5, width=12, depth=2, heads=3),
        steps=1,
        network="transformer",
    ),
    "diffusion": Case(DiffusionConfig(horizon=8, unet=UNET, sampling=DDIM)),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
EVERY_METHOD = pytest.mark.parametrize("method", METHODS.names())


def build(case: Case, seed: int = 0) -> PolicyModel[Any]:
    model_class = get_method(case.config.method).model_class()
    model: PolicyModel[Any] = model_class(case.config, WITH_ANGLE, generator=make_rng(seed))
    model.prepare(make_batch(case.config))
    return model


def make_path(length: int, n: int) -> Tensor:
    """Make paths (length, n, 4) whose increments have the size of the layout."""
    walk = torch.randn(length, n, 4, generator=make_rng(1)) * torch.tensor(WITH_ANGLE.increment_std)
    return walk.cumsum(0) + torch.tensor([5.0, 3.0, 0.0, 200.0])


def make_batch(config: ModelConfig, n: int = 12) -> Transitions | Windows:
    if not isinstance(config, WindowConfig):
        return pair_states(make_path(4, n), history=config.history)
    return Windows(make_states(config, n), make_path(config.horizon, n).transpose(0, 1)[..., 2:])


def make_states(config: ModelConfig, n: int = 12) -> Tensor:
    return make_path(config.history, n).transpose(0, 1).flip(1)


def test_every_method_is_tested():
    assert {case.config.method for case in CASES.values()} == set(METHODS.names())


@EVERY_CASE
def test_losses_are_finite_and_reach_every_weight(case: Case):
    model = build(case).train()
    parts = model.loss(make_batch(case.config), make_rng())
    if parts:
        torch.stack([*parts.values()]).sum().backward()  # type: ignore[no-untyped-call]
    unused = [] if getattr(case.config, "denoiser", True) else ["score"]
    weights = [value for name, value in model.named_parameters() if not any(part in name for part in unused)]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights)


@EVERY_CASE
def test_losses_need_no_host_synchronisation(case: Case):
    """Fake tensors have no values: a host read, or control flow that depends on data, would raise."""
    model = build(case).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        parts = model.loss(make_batch(case.config), make_rng())
        assert all(part.shape == () for part in parts.values())


@EVERY_CASE
def test_weights_and_losses_depend_only_on_their_generators(case: Case):
    before = torch.random.get_rng_state()
    one, two, other = (build(case, seed).train() for seed in (0, 0, 1))
    assert fingerprint(one.state_dict()) == fingerprint(two.state_dict())
    assert fingerprint(one.state_dict()) != fingerprint(other.state_dict()) or not case.network
    losses = [dict(one.loss(make_batch(case.config), make_rng(seed))) for seed in (5, 5, 6)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2] or not losses[0]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["ibc", "diffusion"])
def test_losses_under_bfloat16_autocast_are_float32(name: str):
    model, batch = build(CASES[name]).train(), make_batch(CASES[name].config, 64)
    (whole,) = model.loss(batch, make_rng()).values()
    # A CPU without bf16 would make torch turn oneDNN off for the rest of the process, which changes rounding.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        (half,) = model.loss(batch, make_rng()).values()
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=0.1, atol=0.05)


@EVERY_CASE
def test_a_plan_depends_only_on_its_row_and_its_seed(case: Case):
    model, states = build(case).eval(), make_states(case.config, 5)
    before = torch.random.get_rng_state()
    whole = model.plan(states, steps=case.steps, rng=make_batch_rng(5))
    assert whole.shape == (5, case.steps, 2)
    assert torch.equal(whole, model.plan(states, steps=case.steps, rng=make_batch_rng(5)))
    alone = [
        model.plan(row[None], steps=case.steps, rng=make_batch_rng(1, i)) for i, row in enumerate(states)
    ]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-3, atol=1e-3)
    assert torch.equal(torch.random.get_rng_state(), before)


@EVERY_CASE
def test_a_plan_makes_the_declared_number_of_network_calls(case: Case):
    model, calls = build(case).eval(), []
    if case.network:
        model.get_submodule(case.network).register_forward_hook(lambda *_: calls.append(1))
    model.plan(make_states(case.config), steps=case.steps, rng=make_batch_rng(12))
    assert len(calls) == model.network_calls(case.steps)


@pytest.mark.parametrize("name", ["ibc", "lstm_gmm", "bet", "diffusion"])
def test_some_methods_do_not_see_past_actions(name: str):
    case = CASES[name]
    model, states = build(case).eval(), make_states(case.config)
    acted = states + torch.tensor([0.0, 0.0, 1.0, 50.0])
    one, two = (model.plan(x, steps=case.steps, rng=make_batch_rng(12)) for x in (states, acted))
    assert torch.equal(one, two)


@EVERY_METHOD
def test_sampling_settings_of_another_method_raise(method: str):
    case = next(case for case in CASES.values() if case.config.method == method)
    if type(case.config.sampling) is Sampling:
        return
    with pytest.raises(ConfigError, match=r"is sampled with \w+, got Sampling"):
        build(case).eval().plan(
            make_states(case.config), steps=1, rng=make_batch_rng(12), sampling=Sampling()
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegressionConfig(history=3, horizon=2), "need horizon >= history"),
        (lambda: LSTMGMMConfig(horizon=11), "need horizon == history"),
        (lambda: BehaviourTransformerConfig(horizon=4), "need horizon == history"),
        (lambda: BehaviourTransformerConfig(heads=7), "multiple of heads"),
        (lambda: DiffusionConfig(horizon=14), "3 levels needs a horizon that is a multiple of 4, got 14"),
        (lambda: DiffusionConfig(unet=UNetConfig(channels=(8,) * 5), horizon=8), "multiple of 16"),
        (lambda: UNetConfig(channels=()), "positive sizes"),
        (lambda: UNetConfig(channels=(12,)), "multiples of 8"),
        (lambda: UNetConfig(kernel=4), "odd kernel"),
        (lambda: UNetConfig(step_embedding=7), "even step_embedding"),
        (lambda: DiffusionSampling(steps=10), "DDPM needs 100 steps, got 10"),
    ],
)
def test_invalid_settings_raise(make: Callable[[], object], message: str):
    with pytest.raises(ConfigError, match=message):
        make()


@EVERY_METHOD
def test_presets_are_valid_runs_and_survive_json(method: str):
    for preset in get_method(method).presets.values():
        config = RunConfig(model=preset.model, train=preset.train, chunk=preset.chunk)
        assert RunConfig.from_json(config.to_json()) == config
        assert config.method == method


@EVERY_METHOD
def test_an_interrupted_run_ends_with_the_weights_of_a_whole_one(method: str, tmp_path: Path):
    case = next(case for case in CASES.values() if case.config.method == method)
    config = RunConfig(
        demos=DemoConfig(first_action_from=()),
        model=case.config,
        train=TrainConfig(steps=8, batch_size=8, log_every=2),
        chunk=case.steps,
    )

    def train(name: str, **options: Any) -> Any:
        train_options = TrainOptions(seed=3, **options)
        return train_run(make_robot_demos(5), config, tmp_path / name, options=train_options)

    def stop(progress: Any) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = train("whole")
    with contextlib.suppress(KeyboardInterrupt):
        train("parts", monitor=stop)
    assert fingerprint(train("parts", resume=True).read_weights()) == fingerprint(whole.read_weights())
    record, model = load_model(whole)
    assert record.config == config
    assert fingerprint(model.state_dict()) == fingerprint(whole.read_weights())
    assert not model.training
