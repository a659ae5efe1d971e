"""Tests of resampling: the same motion recorded at another rate is the reference."""

from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.control import Session, SessionConfig
from nsde_policy.data import DemoWriter, Episode, load_demonstrations, open_images
from nsde_policy.data.action_columns import match_changes, match_columns
from nsde_policy.errors import ConfigError
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.demos import load_training_demos, open_training_images

SECONDS, EPISODES = 3.0, 4
RATES = [(30, 20), (10, 50), (24, 25)]
ANGLE = 1
"""Column of the observation that turns through ±π."""


def move(time: np.ndarray, episode: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the position, the angle and the gripper's command at some times of an episode."""
    position = np.sin(0.7 * time + episode) + 0.1 * time
    angle = (1.5 * time + episode + np.pi) % (2 * np.pi) - np.pi
    return position, angle, np.where(time < 1.2 + 0.2 * episode, -3.0, 3.0)


def record(path: Path, rate_hz: float | None, *, rate: float, deltas: bool = False) -> Path:
    """Record the motion at a rate; actions are the position, or its change over a period, and the gripper."""
    limits = {"low": [-0.2, -3.0], "high": [0.2, 3.0]}
    attributes = {"action_space": limits} if deltas else {}
    with DemoWriter(path, rate_hz=rate_hz, angles=(ANGLE,), attributes=attributes) as writer:
        for episode in range(EPISODES):
            time = np.arange(round(SECONDS * rate) + 1) / rate
            position, angle, gripper = move(time, episode)
            change = move(time + 1 / rate, episode)[0] - position
            obs = np.stack([position, angle, gripper], axis=1)
            act = np.stack([change if deltas else position, gripper], axis=1)
            frames = np.zeros((len(time), 4, 4, 3), np.uint8)
            frames += np.arange(len(time), dtype=np.uint8)[:, None, None, None]
            writer.append(Episode(obs.astype(np.float32), act.astype(np.float32)), {"top": frames})
    return path


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize(("old", "new"), RATES)
def test_resampled_demonstrations_are_those_recorded_at_that_rate(
    old: int, new: int, deltas: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = record(tmp_path / "recorded.zarr", old, rate=old, deltas=deltas)
    expected = load_demonstrations(record(tmp_path / "direct.zarr", new, rate=new, deltas=deltas))
    out = tmp_path / "out.zarr"
    assert main(["data", "convert", str(store), str(out), "--resample", str(new)]) == 0
    assert ("changes per period, which are summed" in capsys.readouterr().err) == deltas
    demos = load_demonstrations(out)
    assert (demos.rate_hz, demos.angles) == (new, (ANGLE,))
    np.testing.assert_array_equal(demos.episode_ends, expected.episode_ends)
    error = (0.7 / old) ** 2 / 8 + 1e-5  # at most, of linear interpolation between frames of a sine
    np.testing.assert_allclose(demos.obs[:, 0], expected.obs[:, 0], atol=error)
    turn = demos.obs[:, ANGLE] - expected.obs[:, ANGLE]
    assert np.abs((turn + np.pi) % (2 * np.pi) - np.pi).max() < 1e-5
    assert np.abs(demos.obs[:, ANGLE]).max() <= np.float32(np.pi)
    if not deltas:
        np.testing.assert_allclose(demos.act[:, 0], expected.act[:, 0], atol=error)
    for k, (episode, reference) in enumerate(zip(demos, expected, strict=True)):
        time = np.arange(len(episode)) / new
        newest = np.floor(time * old + 1e-6) / old
        np.testing.assert_array_equal(episode.obs[:, 2], move(newest, k)[2])
        np.testing.assert_array_equal(episode.act[:, 1], move(newest, k)[2])
        frames = open_images(out, key="top")[int(demos.starts[k]) : int(demos.episode_ends[k])]
        np.testing.assert_array_equal(frames[:, 0, 0, 0], np.rint(newest * old))
        if deltas:
            path, expected_path = (
                each.obs[0, 0] + np.cumsum(each.act[:-1, 0]) for each in (episode, reference)
            )
            np.testing.assert_allclose(path, expected_path, atol=error)
            np.testing.assert_allclose(path, episode.obs[1:, 0], atol=2e-5)


@pytest.mark.parametrize(("scale", "lag"), [(0.05, 0), (1, 6)])
def test_actions_that_match_no_observation_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: float, lag: int
) -> None:
    rng, store = np.random.default_rng(0), tmp_path / "demos.zarr"
    with DemoWriter(store, rate_hz=20) as writer:
        for _ in range(EPISODES):
            act = rng.uniform(-1, 1, (60, 3)).astype(np.float32)
            act[:, 2] = np.sign(act[:, 2])  # a gripper
            obs = np.roll(scale * np.cumsum(act, axis=0), 1 + lag, axis=0)
            obs[: 1 + lag] = 0
            writer.append(Episode(obs, act))
    assert main(["data", "convert", str(store), f"{tmp_path}/out.zarr", "--resample", "10"]) == 0
    assert "; actions 0, 1 match no observation and are interpolated" in capsys.readouterr().err


def test_quaternions_turn_the_short_way_and_keep_their_norm(tmp_path: Path) -> None:
    time = np.arange(61) / 20
    turn = np.stack([0 * time, np.sin(time), 0 * time, np.cos(time)], axis=1)
    recorded = turn * np.where(np.arange(61) % 3, 1, -1)[:, None]  # a quaternion and its negative are equal
    with DemoWriter(tmp_path / "demos.zarr", rate_hz=20) as writer:
        writer.append(Episode(np.c_[time, recorded].astype(np.float32), np.c_[time].astype(np.float32)))
    assert (
        main(["data", "convert", f"{tmp_path}/demos.zarr", f"{tmp_path}/out.zarr", "--resample", "30"]) == 0
    )
    resampled = load_demonstrations(tmp_path / "out.zarr").obs[:, 1:]
    later = np.arange(len(resampled)) / 30
    expected = np.stack([0 * later, np.sin(later), 0 * later, np.cos(later)], axis=1)
    np.testing.assert_allclose(np.abs((resampled * expected).sum(axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(resampled, axis=1), 1, atol=1e-6)


def test_limits_of_changes_are_for_the_new_period(tmp_path: Path) -> None:
    store = record(tmp_path / "demos.zarr", 30, rate=30, deltas=True)
    out = tmp_path / "out.zarr"
    assert main(["data", "convert", str(store), str(out), "--resample", "20"]) == 0
    demos = load_demonstrations(out)
    assert match_changes(demos, match_columns(demos))[0] == 0
    limits = load_training_demos(DemoConfig(resample_hz=20), store).act_limits
    np.testing.assert_allclose(limits, [(-0.3, -3), (0.3, 3)])


def test_an_unrecorded_rate_has_to_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = record(tmp_path / "demos.zarr", None, rate=30), tmp_path / "out.zarr"
    for command in (["data", "convert", str(store), str(out)], ["train", "--demos", str(store)]):
        assert main([*command, "--resample", "20"]) == 2
        assert "does not record its frames per second" in capsys.readouterr().err
    assert main(["data", "convert", str(store), str(out), "--rate", "30", "--resample", "20"]) == 0
    assert load_demonstrations(out).rate_hz == 20


def test_a_run_is_trained_scored_and_resumed_at_the_new_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, run = record(tmp_path / "demos.zarr", 30, rate=30), tmp_path / "run"
    train = ["train", "--demos", str(store), "--out", str(run), "--policy", "knn"]
    train += ["--device", "cpu", "--validation", "0.5"]
    assert main(train) == 0
    policy = Policy.from_pretrained(run)
    with pytest.raises(ConfigError, match="--resample 20"):
        Session(policy, SessionConfig(rate_hz=20), calibration=policy.calibration)
    run = train[4] = str(tmp_path / "resampled")
    train += ["--resample", "20"]
    assert main(train) == 0
    assert "resampled from 30 to 20 Hz" in capsys.readouterr().err
    policy = Policy.from_pretrained(run)
    assert policy.calibration.rate_hz == 20
    Session(policy, SessionConfig(rate_hz=20), calibration=policy.calibration).close()
    out = tmp_path / "out.zarr"
    assert main(["data", "convert", str(store), str(out), "--resample", "20"]) == 0
    assert RunDirectory(Path(run)).read_record().demos.fingerprint == load_demonstrations(out).fingerprint
    assert main([*train, "--resume"]) == 0
    for demos in (store, out):
        capsys.readouterr()
        assert main(["score", run, "--demos", str(demos), "--samples", "4"]) == 0
        assert "the 2 of 4 episodes" in capsys.readouterr().out


def test_cameras_of_a_training_are_resampled_too(tmp_path: Path) -> None:
    store = record(tmp_path / "demos.zarr", 30, rate=30)
    config = DemoConfig(images=("top",), encoder="keypoints", resample_hz=20)
    frames = open_training_images(config, store)["top"]
    with config.open_store(store) as source:
        assert len(frames) == source.read_ends()[-1]
    np.testing.assert_array_equal(frames[:6][:, 0, 0, 0], [0, 1, 3, 4, 6, 7])
