"""Tests for policy/base_policy.py: one policy in torch, as an ONNX graph and behind a server."""

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import ConfigError, PolicyInputError
from nsde_policy.policy.base_policy import BasePolicy
from nsde_policy.policy.policy import Policy
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import serve_in_thread

pytestmark = pytest.mark.slow  # the fixture exports a policy

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])
OUTLIER = np.array([510.0, 20.0, 30.0, 480.0, 1.0])
KINDS = ["local", "graph", "remote"]


@pytest.fixture(scope="module")
def policies(shipped_graph: Path) -> Iterator[dict[str, BasePolicy]]:
    """Yield the shipped policy in torch, as an ONNX graph and behind a server."""
    local = Policy.from_pretrained().use_selection("none")
    with (
        serve_in_thread(local, calibration=local.calibration) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as remote,
    ):
        yield {"local": local, "graph": RuntimePolicy.load(shipped_graph), "remote": remote}


@pytest.fixture(scope="module")
def states(policies) -> np.ndarray:
    history = policies["local"].spec.new_history()
    history.add_observation(START)
    return history.states()


def run_session(policy: BasePolicy, n: int, **settings) -> tuple[Session, list[np.ndarray]]:
    sim = Sim()
    session = Session(policy, SessionConfig(**settings), calibration=policy.calibration, clock=sim.clock)
    sigmas = []
    for _ in range(n):
        session.step(START, sim.now)
        sigmas.append(session.last.sigma)
        sim.now += 0.1
    return session, sigmas


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_sets_rate_limits_and_out_of_distribution_score(policies, kind):
    ours, theirs = policies["local"], policies[kind]
    assert theirs.calibration == ours.calibration
    assert theirs.calibration.rate_hz == 10
    with theirs.session(rate_hz=50, deadline_s=0.5, limits="from_demos", on_fault="hold") as session:
        local = ours.session(rate_hz=50)
        assert np.array_equal(session.resolved.limits.speed, local.resolved.limits.speed)
        assert np.array_equal(session.resolved.limits.acceleration, local.resolved.limits.acceleration)
        assert session.resolved.policy_hz == 10
    assert repr(theirs).endswith("Policy(neural_sde, 5 → 2, 10 Hz, chunk 8)")
    assert theirs.session().config.rate_hz == 10
    known, _ = run_session(theirs, 1)
    assert known.last.ood == run_session(ours, 1)[0].last.ood
    assert not known.last.is_ood
    session = Session(theirs, SessionConfig(fault_when_ood=True), calibration=theirs.calibration)
    session.step(OUTLIER)
    assert session.last.is_ood
    assert session.report().faults["out_of_distribution"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_session_reports_the_std_of_its_commands(policies, kind):
    _, ours = run_session(policies["local"], 3, deadline_s=10.0)
    session, theirs = run_session(policies[kind], 3, deadline_s=10.0)
    assert session.report().faults == {}
    assert not np.allclose(theirs[0], session._increment_std), (
        "expected the σ of the plan, not the std of increments"
    )
    # The first σ is that of the same state, so it does not depend on the noise.
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-3)
    assert (theirs[2] > theirs[0]).all()


def test_remote_plan_equals_a_local_row_exactly_and_the_local_plan_up_to_rounding(policies, states):
    local = policies["local"]
    theirs = policies["remote"].plan_from(states, steps=9, seed=3)
    (row,) = local.plan_rows([states], steps=9, seeds=[3])
    alone = local.plan_from(states, steps=9, seed=3)
    for there, exact, near in zip(theirs, row, alone, strict=True):
        assert (there is None and exact is None) or there.tobytes() == exact.tobytes()
        assert near is None or there == pytest.approx(near, rel=1e-4)


@pytest.mark.parametrize("kind", ["graph", "remote"])
def test_threads_can_share_a_policy_and_get_their_own_plans(policies, states, kind):
    def plan(seed: int) -> bytes:
        return policies[kind].plan_from(states, steps=4, seed=seed % 5).actions.tobytes()

    with ThreadPoolExecutor(5) as threads:
        assert [*threads.map(plan, range(100))] == [plan(seed) for seed in range(5)] * 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_has_the_same_interface_and_errors(policies, states, kind):
    policy = policies[kind]
    assert inspect.signature(type(policy).session) == inspect.signature(BasePolicy.session)
    assert policy.plan_from(states, steps=np.int64(3), seed=np.uint32(7)).actions.shape == (3, 2)
    for change, match in (
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": -1}, "between 0 and"),
        ({"states": states[:1]}, r"have shape \(2, 7\), got \(1, 7\)"),
        ({"states": states * np.nan}, "finite"),
        ({"states": "x"}, "states must hold numbers"),
        ({"states": states * 1j}, "states must hold numbers"),
    ):
        call = {"states": states, "steps": 4, "seed": 0} | change
        with pytest.raises(PolicyInputError, match=match):
            policy.plan_from(call.pop("states"), **call)
    with pytest.raises(ConfigError, match="rate_hz is 5"):
        policy.session(rate_hz=5)
    with pytest.raises(ConfigError, match="no setting 'rate'; the closest is 'rate_hz'"):
        policy.session(rate=10)


@pytest.mark.parametrize("kind", KINDS)
def test_select_action_accepts_batches_of_one_only(policies, kind):
    policy = policies[kind]
    policy.reset(seed=4)
    alone = [policy.select_action(START) for _ in range(2)]
    policy.reset(seed=4)
    halves = {"observation.state": START[None, :2], "observation.environment_state": START[None, 2:]}
    batches = [policy.select_action(START[None]), policy.select_action(halves)]
    assert [batch.shape for batch in batches] == [(1, 2), (1, 2)]
    assert np.array_equal(np.concatenate(batches), alone)
    with pytest.raises(PolicyInputError, match="takes one observation, got 2"):
        policy.select_action(np.stack([START, START]))
