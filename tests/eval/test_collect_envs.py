"""Tests for `collect --env`: scripted experts demonstrate in any environment."""

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.tasks import get_task

HERE = "tests.eval.test_collect_envs"


class Swing:
    """Expert on Pendulum-v1 without arguments: push in the direction of motion."""

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        assert obs.dtype == np.float32, "the environment's own observation"
        return np.sign(obs[2:]) * 5.0


class Noisy:
    """Expert that needs the environment, is seeded per episode, and is called."""

    def __init__(self, env: gym.Env[Any, Any], scale: float = 0.5) -> None:
        assert env.unwrapped.spec is not None
        self.shape, self.scale = env.action_space.shape, scale

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return self.scale * self.rng.standard_normal(self.shape)


class Pusher:
    """Expert on Push-T: it sees the state, also while frames are recorded."""

    def select_action(self, obs: np.ndarray) -> np.ndarray:
        assert obs.shape == (5,)
        return obs[2:4]


class Gripper:
    """Expert on `Shelf`: it sees the dictionary; its reset takes no seed."""

    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def get_action(self, obs: dict[str, np.ndarray]) -> list[float]:
        assert self.resets
        return (-obs["hand"]).tolist()


class Shelf(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """An environment with a dictionary observation and actions without limits; even seeds succeed."""

    def __init__(self, quiet: bool = False) -> None:
        box = gym.spaces.Box
        self.observation_space = gym.spaces.Dict(
            camera=box(0, 255, (4, 4, 3), np.uint8), hand=box(-9, 9, (2,)), object=box(-9, 9, (1, 3))
        )
        self.action_space = box(-np.inf, np.inf, (2,))
        self.quiet = quiet

    def _obs(self) -> dict[str, np.ndarray]:
        return {"camera": np.zeros((4, 4, 3), np.uint8), "hand": self.hand, "object": np.ones((1, 3))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed, self.steps, self.hand = seed or 0, 0, self.np_random.uniform(-1, 1, 2)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps, self.hand = self.steps + 1, self.hand + 0.5 * action
        won = self.steps == 6 and self.seed % 2 == 0
        info = {} if self.quiet else {"is_success": won}
        return self._obs(), float(won), won, self.steps == 8, info


def collect(out: Path, expert: str, *args: str, env: str = "Pendulum-v1", episodes: int = 3) -> int:
    policy = expert if ":" in expert else f"{HERE}:{expert}"
    fixed = ["--episodes", str(episodes), "--workers", "1", "--seed-start", "7"]
    return main(["collect", "--out", str(out), "--env", env, "--policy", policy, *fixed, *args])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collect three episodes of Pendulum with arguments of the environment."""
    out = tmp_path_factory.mktemp("stores") / "swing.zarr"
    assert collect(out, "Swing", "--env-kwargs", '{"g": 9.0}') == 0
    return out


def read_attributes(store: Path) -> dict[str, Any]:
    attributes: dict[str, Any] = json.loads((store / ".zattrs").read_text())
    return attributes


def test_store_replays_in_the_environment_and_knows_its_origin(store: Path):
    demos = load_demonstrations(store)
    assert (len(demos), demos.rate_hz) == (3, 20.0)
    assert check_store(store) == []
    about = read_attributes(store)
    assert about["made_with"] == {
        "by": "expert", "policy": f"{HERE}:Swing", "env": "Pendulum-v1", "env_kwargs": {"g": 9.0},
        "seed_start": 7, "only_success": False,
    }  # fmt: skip
    assert about["action_space"] == {"low": [-2.0], "high": [2.0]}
    assert demos.act_limits == ((-2.0,), (2.0,))
    assert "gymnasium" in about["sessions"][0]["versions"]
    env = gym.make("Pendulum-v1", g=9.0)
    for seed, episode in zip(range(7, 10), demos, strict=True):
        assert np.abs(episode.act).max() == 2.0, "actions are clipped to the action space"
        obs, _ = env.reset(seed=seed)
        for seen, action in zip(episode.obs, episode.act, strict=True):
            np.testing.assert_allclose(obs, seen, atol=1e-5)
            obs, *_ = env.step(action)


def test_experts_play_the_same_in_any_process_and_order():
    pool = RolloutPool(None, RolloutConfig(get_task("Pendulum-v1")), expert=f"{HERE}:Noisy")
    first, second = pool.run([3, 4])
    sent: RolloutPool = pickle.loads(pickle.dumps(pool))
    assert [result.score for result in sent.make_runner().run([4, 3])] == [second.score, first.score]


def test_dictionary_observations_are_concatenated_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert collect(tmp_path / "a.zarr", "Gripper", env=f"{HERE}:Shelf") == 0
    assert "3 episodes of 3 tried, 1 successful" in capsys.readouterr().out
    about = read_attributes(tmp_path / "a.zarr")
    assert about["observations"] == {"hand": 2, "object": 3}
    assert about["rate_hz"] is None
    assert "action_space" not in about, "infinite limits are not stored"
    demos = load_demonstrations(tmp_path / "a.zarr")
    assert demos.obs.shape[1] == 5
    np.testing.assert_array_equal(demos.obs[:, 2:], 1.0)
    assert [len(episode) for episode in demos] == [8, 6, 8]


def test_only_success_keeps_what_the_environment_calls_a_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shelf = f"{HERE}:Shelf"
    assert collect(tmp_path / "a.zarr", "Gripper", "--only-success", env=shelf) == 0
    assert "3 episodes of 6 tried, 3 successful" in capsys.readouterr().out
    quiet = ["--only-success", "--env-kwargs", '{"quiet": true}']
    assert collect(tmp_path / "b.zarr", "Gripper", *quiet, env=shelf) == 2
    assert "or its environment does not report success" in capsys.readouterr().err
    assert collect(tmp_path / "c.zarr", "Gripper", *quiet[1:], env=shelf) == 0
    assert "3 episodes of 3 tried, mean score 0.3333" in capsys.readouterr().out


class Mute:
    """An expert without select_action, get_action or __call__."""


def lost(obs: np.ndarray) -> np.ndarray:
    return np.full(1, np.nan)


def fragile(obs: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("no plan\nat all")


@pytest.mark.parametrize(
    ("expert", "args", "message"),
    [
        ("Mute", [], "gives no actions; define select_action(obs)"),
        ("lost", [], "it returned array([nan]), expected finite numbers of shape (1,)"),
        ("fragile", [], f"seed 7, step 0: expert {HERE}:fragile: __call__ raised ZeroDivisionError: no plan"),
        ("Missing", [], f"the module of the expert {HERE}:Missing has no such class"),
        ("Swing", ["--chunk", "4"], "--chunk and --sampling are for trained policies"),
    ],
)
def test_errors_of_experts_exit_with_code_2(
    tmp_path: Path, expert: str, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert collect(tmp_path / "demos.zarr", expert, *args) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "demos.zarr").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--chunk", "4"], "--chunk requires --policy RUN"),
        (["--only-success"], "--only-success requires --policy RUN"),
        (["--seed-start", "-1"], "need --seed-start >= 0, got -1"),
        (["--env", "Pendulum-v1"], "Pendulum-v1 has no live page: see episodes with eval --render"),
        (["--env-kwargs", '{"reset_rule": "dice"}'], "dice"),
        (["--policy", "shipped", "--env", "Pendulum-v1"], "but the policy or the demonstrations have 5"),
    ],
)
def test_what_cannot_be_collected_is_said(
    tmp_path: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["collect", "--out", str(tmp_path / "demos.zarr"), "--port", "0", *args]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "demos.zarr").exists()


def test_expert_sees_the_usual_observation_while_frames_are_recorded(tmp_path: Path):
    limit = ["--env-kwargs", '{"max_episode_steps": 5}']
    assert collect(tmp_path / "a.zarr", "Pusher", "--obs", "pixels", *limit, env="pusht", episodes=1) == 0
    assert load_demonstrations(tmp_path / "a.zarr").obs.shape == (5, 5)
    assert open_images(tmp_path / "a.zarr", key="img").shape == (5, 96, 96, 3)
