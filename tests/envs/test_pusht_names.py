"""Tests for names of gym-pusht in envs/pusht/env.py; numbers are of gym-pusht 0.1.8 with pymunk 6.11."""

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht import drawing, geometry

SEED, TARGETS = 8, [(113, 491), (20, 484), (0, 512), (38, 512), (69, 510), (103, 512), (77, 512), (76, 512)]
CORNERS = [
    *[-23.154210085747565, 538.1024616001007, -22.94214766643666, 418.10264897720407],
    *[7.05780548928751, 418.1556645820318, 6.845743069976606, 538.1554772049285],
    *[6.925266477218194, 493.15554747134223, 6.978282082045922, 463.15559431561803],
    *[96.97814154921844, 463.3146411301012, 96.92512594439071, 493.3145942858254],
]
INFO = {
    "pos_agent": [77.94940534419618, 509.8515264579266],
    "vel_agent": [-6.819535683933076, 16.720430781861666],
    "block_pose": [-23.048178876092113, 478.1025552886524, -1.5690291390474986],
    "goal_pose": [256.0, 256.0, np.pi / 4],
    "n_contacts": 1,
    "is_success": False,
}


def make(**kwargs):
    return gym.make(PUSHT_ID, reset_rule="gym_pusht", **kwargs)


def test_corners_and_info_are_those_of_gym_pusht():
    env = make(obs_type="environment_state_agent_pos")
    env.reset(seed=SEED)
    for target in TARGETS:
        obs, _, _, _, info = env.step(np.array(target, float))
    assert list(obs) == ["environment_state", "agent_pos"]
    assert obs["environment_state"] == pytest.approx(CORNERS, abs=1e-9)
    assert obs["agent_pos"] == pytest.approx(INFO["pos_agent"], abs=1e-9)
    for name, value in INFO.items():
        assert type(info[name]) is (np.ndarray if isinstance(value, list) else type(value)), name
        assert info[name] == pytest.approx(value, abs=1e-9), name


def test_contacts_of_the_block_are_counted_with_walls_too():
    at_rest, at_the_wall = [20.0, 20.0, 300.0, 300.0, 0.0], [500.0, 20.0, 60.0, 3.0, 0.0]
    found = [make().reset(options={"state": state})[1] for state in (at_rest, at_the_wall)]
    assert [info["n_contacts"] for info in found] == [0, 1]


def test_success_is_reported_after_a_step_and_not_after_a_reset():
    env = make()
    _, info = env.reset(options={"state": [20.0, 20.0, *geometry.GOAL_POSE]})
    assert info["success"] is True
    assert info["is_success"] is False
    *_, terminated, _, info = env.step(np.array([20.0, 20.0]))
    assert terminated is info["is_success"] is True


def test_frames_have_the_requested_size():
    env = make(obs_type="pixels", observation_width=128, observation_height=64)
    picture, info = env.reset(seed=3)
    assert picture.shape == (64, 128, 3)
    assert env.observation_space.contains(picture)
    x, y = info["pos_agent"] / 512 * (128, 64)
    assert picture[int(y), int(x)].tolist() == list(drawing._lighter(drawing._AGENT_COLOUR))


def test_pictures_have_the_requested_size_and_show_agent_and_target():
    env = make(render_mode="rgb_array", visualization_width=320, visualization_height=200)
    env.reset(seed=3)
    *_, info = env.step(np.array([60.0, 450.0]))
    picture = env.render()
    assert picture.shape == (200, 320, 3)
    for place, colour in ((info["pos_agent"], drawing.Palette.agent), ((60, 450), drawing.Palette.target)):
        x, y = np.array(place) / 512 * (320, 200)
        assert np.abs(picture[int(y), int(x)].astype(int) - colour).max() <= 4
