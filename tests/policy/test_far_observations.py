"""One rule for observations far from the demonstrations, wherever a policy acts.

The same observations go through `eval`, `select_action`, a session, a server and the ONNX runtime.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import EnvError, PolicyInputError
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.eval.rollouts.scores import RolloutScores
from nsde_policy.interface.calibration import CALIBRATION_FILE
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.policy.base_policy import BasePolicy
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import Task
from tests.helpers.exported_policies import LAYOUT, SMALL, build_policy
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import serve_in_thread
from tests.helpers.sessions import NO_LIMITS, PERIOD

LENGTHS = replace(LAYOUT, circular=(1,))
"""Two lengths, in [0, 1] and [100, 600], with an angle between them; actions are positions."""
Observed = Sequence[Sequence[float]]
PLACES = ("eval", "select_action", "session", "server", "onnx")


class ReplayEnv(gym.Env[np.ndarray, np.ndarray]):
    """An environment that shows given observations, whatever is done."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return np.array(self._observed[0]), {}

    def step(self, action: np.ndarray) -> Any:
        self._step += 1
        is_last = self._step == len(self._observed)
        return np.array(self._observed[self._step - is_last]), 0.0, is_last, False, {}


gym.register("ShowObservations-v0", ReplayEnv)


class ReplayTask(Task):
    """Show given observations."""

    name = "show-observations"
    env_id = "ShowObservations-v0"


@dataclass
class Outcome:
    """What one place did with the observations of an episode."""

    actions: np.ndarray
    reported: int
    """Observations that were reported as far outside."""


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, onnx_operators: None
) -> Iterator[dict[str, Callable[[Observed], Outcome]]]:
    """Yield functions that play observations in each place, with one policy that has no noise."""
    folder = tmp_path_factory.mktemp("far")
    built = build_policy(RegressionConfig(network=SMALL), chunk=4, layout=LENGTHS)
    run = RunDirectory(folder)
    run.save_record(built.record)
    run.save_weights(built.model.state_dict())
    calibration = replace(built.calibration, rate_hz=1 / PERIOD, delta_columns=(1,))
    (folder / CALIBRATION_FILE).write_text(calibration.to_json())
    policy = Policy.from_pretrained(folder)
    export_policy(policy, folder / "policy.onnx", cases=4)
    with ExitStack() as stack:
        running = stack.enter_context(serve_in_thread(policy, calibration=policy.calibration))
        remote = stack.enter_context(RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10))
        graph = RuntimePolicy.load(folder / "policy.onnx")
        yield {
            "eval": lambda observed: evaluate(folder, observed),
            "select_action": lambda observed: select_actions(policy, observed),
            "session": lambda observed: run_session(policy, observed),
            "server": lambda observed: select_actions(remote, observed),
            "onnx": lambda observed: select_actions(graph, observed),
        }


def evaluate(run: Path, observed: Observed) -> Outcome:
    task = ReplayTask()
    result = EnvRunner(run, RolloutConfig(task, {"observed": observed})).run_one(0)
    printed = RolloutScores([result], task).as_text()
    assert ("out of distribution" in printed) == (result.outside > 0)
    return Outcome(np.array(result.trace.actions), result.outside)


def select_actions(policy: BasePolicy, observed: Observed) -> Outcome:
    policy.reset(seed=0)
    actions, reported = [], 0
    for obs in observed:
        actions.append(policy.select_action(obs))
        reported += policy.outside is not None
    return Outcome(np.array(actions), reported)


def run_session(policy: BasePolicy, observed: Observed, **settings: Any) -> Outcome:
    sim, actions, reported = Sim(), [], 0
    config = SessionConfig(limits=NO_LIMITS, blend=0.0, **settings)
    with Session(policy, config, calibration=policy.calibration, clock=sim.clock) as session:
        for obs in observed:
            actions.append(session.step(obs, sim.now))
            is_jump = any(fault.kind == "implausible_observation" for fault in session.last.faults)
            reported += is_jump or session.last.outside is not None
            sim.now += PERIOD
    return Outcome(np.array(actions), reported)


def path(*lengths: float) -> list[list[float]]:
    """Return observations with these values of the second length; the first one and the angle move a bit."""
    return [[0.3 + 0.02 * i, 1.0 - 0.1 * i, length] for i, length in enumerate(lengths)]


EPISODES = {
    "near the demonstrations": (path(*np.linspace(200, 700, 11)), 0),
    "creeps out and stays": (path(*np.linspace(300, 1500, 11), *[1500.0] * 4), 8),
    "jumps for one period": (path(300, 310, 320, -9e3, 330, 340, 350, 360, 370), 1),
    "jumps for one period twice": (path(300, 310, -9e3, 330, 340, 9e3, 350, 360, 370), 2),
    "jumps and stays": (path(300, 310, 320, *[-900.0] * 8), 8),
    "jumps and comes back after three periods": (path(300, 310, *[-900.0] * 3, 320, 330, 340), 3),
    "starts far outside": (path(*[-900.0] * 6), 6),
    "an angle turns to degrees": ([[0.5, 1.0, 300.0], *[[0.5, 57.3, 300.0]] * 6], 6),
}


@pytest.mark.slow  # exports a graph
@pytest.mark.parametrize("name", EPISODES)
def test_the_same_observations_are_reported_and_give_the_same_actions_everywhere(places, name):
    observed, reported = EPISODES[name]
    expected = places["select_action"](observed)
    assert np.isfinite(expected.actions).all()
    for place in PLACES:
        outcome = places[place](observed)
        assert outcome.reported == reported, place
        np.testing.assert_allclose(outcome.actions, expected.actions, rtol=1e-4, atol=1e-3, err_msg=place)


@pytest.mark.slow
def test_jump_is_held_for_two_periods_and_then_followed_by_a_new_plan(places):
    observed, _ = EPISODES["jumps and stays"]
    for place in PLACES:
        position, change = places[place](observed).actions.T
        assert position[2] == pytest.approx(position[3]) == pytest.approx(position[4]), place
        assert (change[3:5] == 0).all(), f"{place}: changes per period rest at zero"
        assert change[5] != 0, place


@pytest.mark.slow
@pytest.mark.parametrize("obs", [[0.5, 1.0], [0.5, np.nan, 300.0], [5e6, 1.0, 3e9]], ids=str)
def test_what_cannot_be_right_is_refused_everywhere(places, obs):
    for place in PLACES:  # `eval` blames an environment that returns no numbers
        with pytest.raises((PolicyInputError, EnvError)):
            places[place]([obs] * 3)
