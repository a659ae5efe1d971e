"""A position-controlled robot arm, from its store to the session, the exported graph and the server."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.control import Session, SessionConfig
from nsde_policy.data import Demonstrations, load_demonstrations
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.policy.policy import Policy
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import serve_in_thread
from tests.helpers.robot_arm import JOINTS, PEAK_SPEED, make_arm_demos, write_arm_store
from tests.helpers.simulated_time import SimulatedWorker

RATE = 20.0
NEURAL_SDE = ["--train.steps=20", "--model.network.width=16", "--model.sampling.diffusion=0", "--chunk=3"]
NEURAL_SDE += ["--select", "none"]
"""Few steps: the plans are not good, but they are finite; without noise they are the same everywhere."""
NEIGHBOURS = ["--policy", "knn"]
"""Nothing to fit, for tests of what is measured on the demonstrations."""


def train(
    demos: Demonstrations, folder: Path, flags: Sequence[str] = NEIGHBOURS, **attributes: object
) -> Policy:
    store = write_arm_store(folder / "arm.zarr", demos)
    if attributes:
        known = json.loads((store / ".zattrs").read_text())
        (store / ".zattrs").write_text(json.dumps(known | attributes))
    args = ["train", "--demos", str(store), "--out", str(folder / "run"), "--device", "cpu"]
    assert main([*args, *flags]) == 0
    return Policy.from_pretrained(folder / "run")


def open_session(policy: object, sim: Sim, rate_hz: float = RATE, **settings: object) -> Session:
    config = SessionConfig(rate_hz=rate_hz, **settings)
    worker = SimulatedWorker(sim.clock, delay_s=0.2) if config.plan_ahead else None
    return Session(policy, config, calibration=policy.calibration, clock=sim.clock, worker=worker)


def run_session(policy: object, obs: np.ndarray, periods: int = 12) -> np.ndarray:
    """Return the commands of a session whose robot does not move."""
    sim, commands = Sim(), []
    with open_session(policy, sim) as session:
        for tick in range(periods):
            sim.now = tick / RATE
            commands.append(session.step(obs, sim.now))
    return np.array(commands)


def measure_speed(demos: Demonstrations) -> np.ndarray:
    """Return the largest demonstrated change of each command per second."""
    steps = np.delete(np.diff(demos.act.astype(float), axis=0), demos.episode_ends[:-1] - 1, axis=0)
    return np.abs(steps).max(0) * (demos.rate_hz or 0.0)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return train(make_arm_demos(), tmp_path_factory.mktemp("arm"), NEURAL_SDE)


def test_run_records_the_first_action_and_the_demonstrated_speeds(arm: Policy):
    assert arm.record.task == "none"
    assert arm.spec.first_action_from == (*range(JOINTS), -1)
    assert arm.spec.first_action in ((0.0,), (1.0,))
    assert arm.calibration.rate_hz == RATE
    limits = open_session(arm, Sim()).resolved.limits
    assert limits.speed == pytest.approx(measure_speed(make_arm_demos()), rel=0.05)
    assert limits.speed[:JOINTS] == pytest.approx(np.full(JOINTS, PEAK_SPEED), rel=0.05)
    assert (limits.low[JOINTS], limits.high[JOINTS]) == (0.0, 1.0)  # binary: no margin
    assert arm.spec.binary == ((JOINTS, 0.0, 1.0),)


def test_planned_gripper_commands_are_open_or_closed(arm: Policy, tmp_path: Path):
    def act(policy: Policy) -> np.ndarray:
        actions = []
        for obs in make_arm_demos().obs[35:45]:  # around the time at which the gripper moves
            policy.reset()
            actions += [policy.select_action(obs) for _ in range(policy.spec.chunk)]
        return np.array(actions)

    planned = act(arm)
    assert set(planned[:, JOINTS]) <= {0.0, 1.0}
    assert len(np.unique(planned[:, 0])) == len(planned)  # joints are not rounded
    free = act(train(make_arm_demos(), tmp_path, [*NEURAL_SDE, "--demos.no-round-binary"]))
    assert len(np.unique(free[:, JOINTS])) > 2


def test_session_starts_where_the_robot_is_if_the_first_plan_is_late(arm: Policy):
    demos, sim = make_arm_demos(), Sim()
    obs = demos.obs[0]
    with open_session(arm, sim, plan_ahead=True) as session:
        command = session.step(obs, sim.now)
    assert command[:JOINTS] == pytest.approx(obs[:JOINTS], abs=1e-6)
    assert np.abs(command[:JOINTS]).max() > 0.5  # not the origin
    assert command[JOINTS] == arm.spec.first_action[0]


@pytest.mark.slow
def test_exported_graph_and_server_give_the_same_commands(arm: Policy, tmp_path: Path, onnx_operators: None):
    obs = make_arm_demos().obs[40]
    expected = run_session(arm, obs)
    assert set(np.stack(expected)[:, JOINTS]) <= {0.0, 1.0}
    export_policy(arm, tmp_path / "arm.onnx", cases=2)
    runtime = RuntimePolicy.load(tmp_path / "arm.onnx")
    assert runtime.calibration == arm.calibration
    np.testing.assert_allclose(run_session(runtime, obs), expected, atol=1e-4)
    with (
        serve_in_thread(arm, calibration=arm.calibration) as server,
        RemotePolicy.connect(server.url, timeout_s=10, deadline_s=5) as remote,
    ):
        assert replace(remote.spec, longest_chunk=0) == arm.spec, "the server limits the length of plans"
        np.testing.assert_allclose(run_session(remote, obs), expected, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_delta_actions_keep_their_limits_and_the_rate_of_the_policy(
    offset: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    demos = make_arm_demos()
    delta = np.diff(demos.act[:, :JOINTS], axis=0, append=demos.act[-1:, :JOINTS])
    delta[demos.episode_ends - 1] = 0.0
    demos = replace(demos, act=np.concatenate([delta + offset, demos.act[:, JOINTS:]], axis=1))
    policy = train(demos, tmp_path)
    assert set(policy.spec.first_action_from) == {-1}
    first = demos.act[demos.starts]
    assert all(value in first[:, column] for column, value in enumerate(policy.spec.first_action))
    limits = open_session(policy, Sim()).resolved.limits
    assert limits.speed[:JOINTS] == pytest.approx(measure_speed(demos)[:JOINTS], rel=0.1)
    expected = "changes per period: action 0-6 changes observation 0-6; a control session has to run at"
    assert capsys.readouterr().err.count(expected) == (not offset)
    if not offset:
        with pytest.raises(ConfigError, match=r"rate_hz is 100, but actions 0, 1, .* set rate_hz to 20"):
            policy.session(rate_hz=100)


def test_environment_gives_what_the_store_does_not_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demos = make_arm_demos(episodes=2)
    pendulum = Demonstrations(demos.obs[:, :3], 0.1 * demos.act[:, :1], demos.episode_ends)
    policy = train(pendulum, tmp_path, [*NEIGHBOURS, "--env", "Pendulum-v1"])
    assert policy.calibration.rate_hz == pytest.approx(20.0)
    assert (policy.calibration.action_low, policy.calibration.action_high) == ((-2.0,), (2.0,))
    assert "--rate HZ" not in capsys.readouterr().err


@pytest.mark.parametrize("recorded", [False, True])
def test_sizes_of_another_environment_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: bool
):
    store = write_arm_store(tmp_path / "arm.zarr", make_arm_demos(episodes=2))
    flags = [] if recorded else ["--env", "Pendulum-v1"]
    if recorded:
        (store / ".zattrs").write_text(json.dumps({"env_id": "Pendulum-v1", "rate_hz": 20.0}))
    run = tmp_path / "run"
    assert main(["train", "--demos", str(store), "--out", str(run), *NEIGHBOURS, *flags]) == 2
    assert (
        "8-D observations and 8-D actions, those of the task 'Pendulum-v1' are 3-D and 1-D; --task none"
        in (capsys.readouterr().err)
    )
    assert not run.exists()


def test_recorded_action_space_and_another_rate_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    space = {"low": [-2.5] * JOINTS + [None], "high": [2.5] * JOINTS + [None]}
    flags = [*NEIGHBOURS, "--validation", "0.1", "--rate", "33"]
    policy = train(make_arm_demos(), tmp_path, flags, action_space=space)
    assert policy.calibration.rate_hz == 33.0
    assert capsys.readouterr().err.count("--rate 33 overrides the recorded rate, 20 Hz") == 1
    limits = open_session(policy, Sim(), 33.0).resolved.limits
    assert limits.low.tolist() == [-2.5] * JOINTS + [0.0]
    assert limits.high.tolist() == [2.5] * JOINTS + [1.0]


def test_invalid_action_space_of_a_store_is_damage(tmp_path: Path):
    store = write_arm_store(tmp_path / "arm.zarr", make_arm_demos(episodes=2))
    (store / ".zattrs").write_text(json.dumps({"action_space": {"low": [-1] * 7 + [2], "high": [1] * 8}}))
    with pytest.raises(DemoError, match=r"action_space.*expected lists 'low' and 'high' of as many numbers"):
        load_demonstrations(store)


def test_store_without_a_rate_says_how_to_give_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demos = replace(make_arm_demos(episodes=3), rate_hz=None)
    policy = train(demos, tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "--rate HZ" in line]
    assert len(lines) == 1
    assert "train with --rate HZ" in lines[0]
    with pytest.raises(ConfigError, match=r"policy_hz.*--rate HZ"):
        open_session(policy, Sim())
    args = ["train", "--demos", str(tmp_path / "arm.zarr"), "--out", str(tmp_path / "timed"), *NEIGHBOURS]
    assert main([*args, "--rate", "20", "--device", "cpu"]) == 0
    assert "--rate HZ" not in capsys.readouterr().err
    assert Policy.from_pretrained(tmp_path / "timed").calibration.rate_hz == 20.0
    assert load_demonstrations(tmp_path / "arm.zarr").rate_hz is None
