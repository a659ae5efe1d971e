"""Tests for envs/avoiding/: geometry, lag, starts, drawing."""

import math

import numpy as np
import pytest

from nsde_policy.envs.avoiding import drawing, geometry
from nsde_policy.envs.avoiding.dynamics import NATURAL_FREQUENCY, PERIOD_S, follow
from nsde_policy.envs.avoiding.env import MAX_CHANGE, AvoidingEnv
from nsde_policy.envs.drawing import Palette


def test_starts_are_fixed_or_drawn_by_the_seed():
    fixed, varied = AvoidingEnv(), AvoidingEnv(start="varied")
    assert {tuple(fixed.reset(seed=seed)[0]) for seed in range(5)} == {geometry.FIXED_START * 2}
    starts = np.array([varied.reset(seed=seed)[0][:2] for seed in range(200)])
    for column, (low, high) in zip(starts.T, geometry.VARIED_STARTS, strict=True):
        assert low <= column.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < column.max() <= high
    assert np.array_equal(varied.reset(seed=7)[0][:2], starts[7])


def test_lag_solves_its_differential_equation():
    x, speed, command = 0.1, -0.3, 0.25
    n = 200_000
    dt, fine, slope = PERIOD_S / n, x, speed
    for _ in range(n):
        slope += dt * (NATURAL_FREQUENCY**2 * (command - fine) - 2 * NATURAL_FREQUENCY * slope)
        fine += dt * slope
    assert follow(x, speed, command) == pytest.approx((fine, slope), rel=1e-4)


def test_touching_an_obstacle_ends_the_episode_as_a_failure():
    env = AvoidingEnv()
    obs, _ = env.reset(seed=0)
    terminated = False
    while not terminated:
        obs, reward, terminated, _, info = env.step(np.array([0.5, 0.0]) - obs[:2])
    assert (reward, terminated, info["success"], info["touched"]) == (0.0, True, False, True)
    x, y, radius = geometry.OBSTACLES[0]
    assert math.hypot(obs[2] - x, obs[3] - y) < radius + geometry.ROD_RADIUS + 1e-9
    assert info["mode"] == geometry.UNKNOWN_MODE


def test_clearance_is_that_of_the_whole_way_between_two_positions():
    x, y, radius = geometry.OBSTACLES[0]
    edge = radius + geometry.ROD_RADIUS
    assert geometry.measure_clearance((x - 0.1, y), (x - edge - 0.002, y)) == pytest.approx(0.002)
    beside = geometry.measure_clearance((x - 0.05, y - edge - 0.001), (x + 0.05, y - edge - 0.001))
    assert beside == pytest.approx(0.001)
    assert geometry.measure_clearance((x, y - edge), (x, y - edge)) == pytest.approx(0.0)
    rng = np.random.default_rng(0)
    for a, b in rng.uniform((0.3, -0.2), (0.7, 0.3), (200, 2, 2)):
        points = a + np.linspace(0, 1, 2001)[:, None] * (b - a)
        gaps = [np.linalg.norm(points - o[:2], axis=1).min() - o[2] for o in geometry.OBSTACLES]
        assert geometry.measure_clearance(a, b) == pytest.approx(min(gaps) - geometry.ROD_RADIUS, abs=2e-4)


def test_actions_and_commands_are_clipped():
    env = AvoidingEnv()
    obs, _ = env.reset(seed=0)
    moved, *_ = env.step(np.array([1.0, -1.0]))
    assert moved[:2] - obs[:2] == pytest.approx([MAX_CHANGE, -MAX_CHANGE])
    for _ in range(60):
        moved, *_ = env.step(np.array([1.0, -1.0]))
    assert moved[:2].tolist() == [geometry.TABLE_HIGH[0], geometry.TABLE_LOW[1]]
    assert env.observation_space.contains(moved)


def test_the_picture_shows_obstacles_line_and_rod():
    env = AvoidingEnv(render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(8):
        env.step(np.array([0.0125, 0.0]))
    picture = env.render()
    assert picture.shape == (512, 512, 3)

    def colour_at(x, y):
        column, row = drawing.to_pixels(np.array([x, y]))
        return picture[round(row), round(column)].astype(int)

    for x, y, _ in geometry.OBSTACLES:
        assert np.abs(colour_at(x, y) - Palette.block).max() <= 4
    assert np.abs(colour_at(0.3, 0.365) - Palette.goal).max() <= 4
    assert np.abs(colour_at(env._x - 0.005, env._y + 0.003) - Palette.agent).max() <= 4
    assert np.abs(colour_at(env._command_x, env._command_y) - Palette.target).max() <= 4
    assert np.abs(colour_at(0.3, 0.0) - Palette.table).max() <= 4
