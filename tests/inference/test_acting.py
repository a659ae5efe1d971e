"""Tests for acting.py: the same policy here, as a graph and behind a server, in the same control loop."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.control import Session, SessionConfig
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import ConfigError, PolicyInputError
from nsde_policy.inference.base import BasePolicy
from nsde_policy.inference.policy import Policy
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import serve_in_thread

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])
STRANGE = np.array([510.0, 20.0, 30.0, 480.0, 1.0])
KINDS = ["here", "graph", "remote"]


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BasePolicy]]:
    """The shipped policy in three places."""
    here = Policy.from_pretrained()
    file: Path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    export_policy(here, file, steps=9, cases=4)
    with (
        serve_in_thread(here, calibration=here.calibration) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as remote,
    ):
        yield {"here": here, "graph": RuntimePolicy.load(file), "remote": remote}


def in_a_loop(policy: BasePolicy, n: int, **settings) -> tuple[Session, list[np.ndarray]]:
    sim = Sim()
    session = Session(policy, SessionConfig(**settings), calibration=policy.calibration, clock=sim.clock)
    sigmas = []
    for _ in range(n):
        session.step(START, sim.now)
        sigmas.append(session.last.sigma)
        sim.now += 0.1
    return session, sigmas


@pytest.mark.parametrize("kind", KINDS)
def test_its_rate_its_limits_and_what_is_familiar_come_with_it(policies, kind):
    ours, theirs = policies["here"], policies[kind]
    assert theirs.calibration == ours.calibration
    assert theirs.calibration.rate_hz == 10
    with theirs.session(rate_hz=50, deadline_s=0.5, limits="from_demos", on_fault="hold") as session:
        here = ours.session(rate_hz=50)
        assert np.array_equal(session.resolved.limits.speed, here.resolved.limits.speed)
        assert np.array_equal(session.resolved.limits.acceleration, here.resolved.limits.acceleration)
        assert session.resolved.policy_hz == 10
    known, _ = in_a_loop(theirs, 1)
    assert known.last.ood == in_a_loop(ours, 1)[0].last.ood
    assert not known.last.is_ood
    strange = Session(theirs, SessionConfig(fault_when_ood=True), calibration=theirs.calibration)
    strange.step(STRANGE)
    assert strange.last.is_ood
    assert strange.report().faults["unfamiliar_state"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_how_unsure_its_commands_are(policies, kind):
    _, ours = in_a_loop(policies["here"], 3, deadline_s=10.0)
    session, theirs = in_a_loop(policies[kind], 3, deadline_s=10.0)
    assert session.report().faults == {}
    assert not np.allclose(theirs[0], session._increment_std), (
        "a σ of its own, not what commands change in general"
    )
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-3)  # from the same state, so the noise has no say
    assert (theirs[2] > theirs[0]).all()


def test_the_policy_there_says_bit_for_bit_what_it_says_here(policies):
    memory = policies["here"].spec.new_history()
    memory.add_observation(START)
    ours, theirs = (policies[k].plan_from(memory.states(), steps=9, seed=3) for k in ("here", "remote"))
    for here, there in zip(ours, theirs, strict=True):
        assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_calls_open_a_session_and_the_same_mistakes_are_refused(policies, kind):
    policy = policies[kind]
    assert inspect.signature(type(policy).session) == inspect.signature(BasePolicy.session)
    memory = policy.spec.new_history()
    memory.add_observation(START)
    states = memory.states()
    for mistake, match in (
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": -1}, "between 0 and"),
        ({"states": states[:1]}, r"have shape \(2, 7\), got \(1, 7\)"),
        ({"states": states * np.nan}, "finite"),
        ({"states": "x"}, "states must be numbers"),
        ({"states": states * 1j}, "states must be numbers"),
    ):
        call = {"states": states, "steps": 4, "seed": 0} | mistake
        with pytest.raises(PolicyInputError, match=match):
            policy.plan_from(call.pop("states"), **call)
    with pytest.raises(PolicyInputError, match="degrees"):
        policy.select_action(START * [1, 1, 1, 1, 180 / np.pi])
    with pytest.raises(ConfigError, match="rate_hz is 5"):
        policy.session(rate_hz=5)
    with pytest.raises(ConfigError, match="no setting 'rate'; the closest is 'rate_hz'"):
        policy.session(rate=10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_one_gets_a_batch_of_one_and_a_larger_one_is_refused(policies, kind):
    policy = policies[kind]
    policy.reset(seed=4)
    alone = [policy.select_action(START) for _ in range(2)]
    policy.reset(seed=4)
    halves = {"observation.state": START[None, :2], "observation.environment_state": START[None, 2:]}
    batches = [policy.select_action(START[None]), policy.select_action(halves)]
    assert [batch.shape for batch in batches] == [(1, 2), (1, 2)]
    assert np.array_equal(np.concatenate(batches), alone)
    with pytest.raises(PolicyInputError, match=r"must have shape \(5,\), got \(2, 5\)"):
        policy.select_action(np.stack([START, START]))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_come_for_one_observation_or_a_batch_with_the_noise_of_a_generator(policies, kind):
    policy = policies[kind]
    many = np.stack([START, START + 3])

    def noise(seed: int):
        return torch.Generator().manual_seed(seed) if kind == "here" else np.random.default_rng(seed)

    one = policy.predict_action_chunk(START, generator=noise(0))
    chunks = policy.predict_action_chunk(many, generator=noise(0))
    assert (one.shape, chunks.shape) == ((8, 2), (2, 8, 2))
    np.testing.assert_allclose(chunks[0], one, atol=1e-3)
    assert np.array_equal(chunks, policy.predict_action_chunk(many, generator=noise(0)))
    assert not np.array_equal(chunks, policy.predict_action_chunk(many, generator=noise(1)))
    twice = policy.predict_action_chunk(np.stack([START, START]), generator=noise(0))
    assert not np.array_equal(twice[0], twice[1]), "each row has noise of its own"
    wanted = "torch" if kind == "here" else "numpy"
    for wrong in (3, "a", np.random.RandomState(0)):
        with pytest.raises(PolicyInputError, match=f"{wanted} Generator, got {type(wrong).__name__}"):
            policy.predict_action_chunk(START, generator=wrong)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_each_row_of_a_batch_has_the_noise_of_the_next_seed(policies, kind):
    policy, many = policies[kind], np.stack([START, START + 3])
    rows = [policy.predict_action_chunk(row, seed=7 + k) for k, row in enumerate(many)]
    assert np.array_equal(policy.predict_action_chunk(many, seed=7), rows)
    with pytest.raises(PolicyInputError, match="got both a seed and a generator"):
        policy.predict_action_chunk(START, seed=7, generator=np.random.default_rng(0))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_of_numpy_are_whole_numbers(policies, kind):
    memory = policies[kind].spec.new_history()
    memory.add_observation(START)
    plan = policies[kind].plan_from(memory.states(), steps=np.int64(3), seed=np.uint32(7))
    assert plan.actions.shape == (3, 2)
