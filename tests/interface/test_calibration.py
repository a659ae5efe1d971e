"""Tests for interface/calibration.py, and for the calibration of the shipped policy."""

from dataclasses import replace

import numpy as np
import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.control.limits import Limits
from nsde_policy.errors import CheckpointError
from nsde_policy.interface.calibration import (
    CALIBRATION_FILE,
    FALLBACK_STEPS,
    Calibration,
    CameraRange,
    OODDetector,
    find_action_limits,
)
from nsde_policy.policy.loading import build_policy_spec
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.dataset import TrainingSet
from nsde_policy.training.demos import add_environment, find_mirror, load_training_demos
from nsde_policy.training.train import calibrate
from tests.helpers.numpy_planner import CALIBRATION, SPEC


def measure_calibration(seed=0, n=4000):
    rng = np.random.default_rng(seed)
    actions = 50 + np.cumsum(rng.normal(0, 1, (n, 2)), axis=0) % 20
    before = np.concatenate([actions[:1], actions[:-1]])
    states = np.concatenate([before + rng.normal(0, 1, (n, 2)), rng.uniform(0, 6, (n, 1)), before], axis=1)
    return Calibration.measure(SPEC, states, actions, [n // 2, n], rate_hz=10.0), states


def test_wide_states_are_calibrated_without_a_distance(tmp_path):
    d, rng = 1200, np.random.default_rng(0)
    wide = replace(
        SPEC, obs_dim=d - 2, circular=(), low=(0.0,) * d, high=(1.0,) * d, increment_std=(0.1,) * d
    )
    calibration = Calibration.measure(wide, rng.random((50, d)), rng.random((50, 2)), [50], rate_hz=10.0)
    (tmp_path / CALIBRATION_FILE).write_text(calibration.to_json())
    assert Calibration.read(tmp_path, wide) == calibration
    assert OODDetector(calibration, wide).distance(np.zeros(d)) is None


def test_one_demonstrated_state_in_a_thousand_and_a_shifted_one_are_out_of_distribution():
    calibration, states = measure_calibration()
    detector = OODDetector(calibration, SPEC)
    outliers = [detector.is_ood(detector.distance(state)) for state in states]
    assert sum(outliers) == pytest.approx(4, abs=1)
    shifted = states[0].copy()
    shifted[3:] += 30  # a command far from where the robot is
    assert detector.is_ood(detector.distance(shifted))


def test_distance_ignores_full_turns_of_an_angle():
    calibration, states = measure_calibration()
    detector, turned = OODDetector(calibration, SPEC), states[5].copy()
    turned[2] += 2 * np.pi
    assert detector.distance(turned) == pytest.approx(detector.distance(states[5]))


def test_steps_do_not_span_two_episodes():
    actions = np.concatenate([np.zeros((50, 2)), np.full((50, 2), 90.0)])
    states = np.concatenate([actions, np.zeros((100, 1)), actions], axis=1)
    found = Calibration.measure(SPEC, states, actions, [50, 100], rate_hz=0.0)
    assert found.step == found.acceleration == SPEC.increment_std[3:]


def test_made_up_step_to_the_first_action_does_not_count():
    actions = 0.01 * np.arange(100.0)[:, None] * np.ones(2) + 90.0
    states = np.concatenate([actions, np.zeros((100, 1)), actions], axis=1)
    states[:, 3:] -= 0.01  # the action before
    states[0, 3:] = 0.0
    quiet = replace(SPEC, increment_std=(0.001,) * 5)
    constant = replace(quiet, first_action_from=(-1, -1), first_action=(0.0, 0.0))
    for spec in (constant, replace(quiet, first_action_from=())):
        found = Calibration.measure(spec, states, actions, [100], rate_hz=0.0)
        assert found.step == pytest.approx((0.01, 0.01))
        assert found.acceleration == pytest.approx((0.01, 0.01))  # a session starts at rest
    half = replace(quiet, first_action_from=(0, -1), first_action=(0.0,))
    found = Calibration.measure(half, states, actions, [100], rate_hz=0.0)
    assert found.step[0] > 80  # from an observed position it counts
    assert found.step[1] == pytest.approx(0.01)


def test_binary_action_may_switch_within_one_period():
    actions = np.zeros((9000, 2))
    actions[4000:4100, 0] = 1.0  # two switches in 9000 frames: beyond every quantile
    actions[:, 1] = np.sin(np.arange(9000))
    states = np.concatenate([np.zeros((9000, 3)), actions], axis=1)
    spec = replace(SPEC, first_action_from=(-1, -1), first_action=(0.0, 0.0))
    found = Calibration.measure(spec, states, actions, [9000], rate_hz=0.0)
    assert found.step[0] == 1.0


def test_calibration_defaults_to_multiples_of_the_increment_std(tmp_path):
    found = Calibration.read(tmp_path, SPEC)
    assert found.step == tuple(FALLBACK_STEPS * std for std in SPEC.increment_std[3:])
    assert not OODDetector(found, SPEC).is_ood(1e9)


def test_calibration_survives_a_file_and_invalid_files_raise(tmp_path):
    calibration, _ = measure_calibration()
    (tmp_path / CALIBRATION_FILE).write_text(calibration.to_json())
    assert Calibration.read(tmp_path, SPEC) == calibration
    other = replace(SPEC, act_dim=1, obs_dim=4, first_action_from=())
    with pytest.raises(CheckpointError, match="another run"):
        Calibration.read(tmp_path, other)
    negative = calibration.to_json().replace("10.0", "-1.0").encode()
    for content in (b"{", b"[]", b'{"step": "far"}', negative, b"{}", b"\x00", b"\xff\xfe"):
        (tmp_path / CALIBRATION_FILE).write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot read"):
            Calibration.read(tmp_path, SPEC)
    assert CALIBRATION.check(SPEC) is CALIBRATION


def test_shipped_calibration_matches_the_human_demonstrations(human_demos):
    record = RunDirectory(SHIPPED_POLICY).read_record()
    demos = load_training_demos(record.config.demos, human_demos)
    assert demos.fingerprint == record.demos.fingerprint
    shipped = Calibration.read(SHIPPED_POLICY, build_policy_spec(record))
    task = get_task(record.task)
    demos = add_environment(demos, task, record.config.demos.obs_keys, record.config.chunk)
    found = calibrate(TrainingSet(demos, find_mirror(record.config.demos, record.task)), record)
    assert shipped.rate_hz == found.rate_hz == 10
    assert (shipped.step, shipped.acceleration) == (found.step, found.acceleration)
    assert np.allclose(shipped.precision, found.precision, rtol=1e-4)
    assert shipped.threshold == pytest.approx(found.threshold, rel=1e-5)
    assert shipped.roughness == pytest.approx(found.roughness, rel=1e-5)


def find_limits(actions: np.ndarray, known=None, columns=(-1, -1)):
    spec = replace(
        SPEC,
        first_action_from=columns,
        first_action=(0.0,) * columns.count(-1),
        low=(0.0, 0.0, 0.0, *actions.min(0).tolist()),
        high=(1.0, 1.0, 1.0, *actions.max(0).tolist()),
    )
    low, high = find_action_limits(spec, actions, known)
    return low.tolist(), high.tolist()


def test_action_limits_are_known_ones_normalised_ones_or_the_demonstrated_range():
    ramp = np.linspace(-1, 1, 21)
    assert find_limits(np.stack([ramp, ramp / 2], 1)) == ([-1, -1], [1, 1])  # normalised
    assert find_limits(np.stack([ramp, ramp * 2], 1)) == ([-1.1, -2.2], [1.1, 2.2])  # one is beyond 1
    low, high = find_limits(np.stack([ramp, ramp / 2], 1), columns=(0, 1))  # positions that happen to reach 1
    assert (low, high) == ([-1.1, -0.55], [1.1, 0.55])
    gripper = (ramp > 0).astype(float)
    assert find_limits(np.stack([ramp / 2, gripper], 1)) == ([-0.55, 0.0], [0.55, 1.0])
    known = ((-3.0, -np.inf), (3.0, np.inf))
    assert find_limits(np.stack([ramp * 2, ramp * 2], 1), known) == ([-3.0, -2.2], [3.0, 2.2])


def test_limits_of_a_session_come_from_the_calibration():
    found = replace(CALIBRATION, action_low=(0.0, -1.0), action_high=(9.0, 1.0))
    limits = Limits.from_demos(SPEC, found, policy_hz=10.0)
    assert (limits.low.tolist(), limits.high.tolist()) == ([0.0, -1.0], [9.0, 1.0])
    for low, high in (((0.0,), (1.0,)), ((0.0, 0.0), ())):
        with pytest.raises(CheckpointError, match=r"values of action_.* belongs to another run"):
            replace(CALIBRATION, action_low=low, action_high=high).check(SPEC)


def test_range_of_a_camera_holds_looks_and_the_motion_while_its_frames_stay_the_same():
    angles = np.array([[3.1, 0.0], [-3.1, 0.5], [-3.0, 0.5]])
    looks, repeats = np.outer([100.0, 110.0, 120.0], np.ones(3)), np.array([False, True, True])
    found, apart = (
        CameraRange.measure("top", looks, repeats, angles, episodes, circular=(0,))
        for episodes in ([(0, 3)], [(0, 1), (1, 2), (2, 3)])
    )
    assert found.still == pytest.approx((2 * np.pi - 6.1, 0.5)), "a turned joint by the shorter way"
    assert found.low == pytest.approx((100.0,) * 3, rel=1e-3)
    assert found.high == pytest.approx((120.0,) * 3, rel=1e-3)
    assert apart.still == (0.0, 0.0), "frames of different episodes"
    calibration = replace(CALIBRATION, frames=(found,))
    assert Calibration.from_json(calibration.to_json()) == calibration
    with pytest.raises(CheckpointError, match="it belongs to another run"):
        calibration.check(SPEC)
