"""Tests of eval/camera.py and of episodes that are played from camera frames."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.assets import SHIPPED_POLICIES
from nsde_policy.bounds import Occluder
from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.eval.compare.run import EntryCache
from nsde_policy.eval.rollouts.disturbances import OCCLUDER, YELLOW, CameraCondition, CameraDisturbances
from nsde_policy.eval.rollouts.episode import CompressedFrames
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory
from nsde_policy.tasks import find_task, get_task, with_observations
from nsde_policy.training.demos import load_training_demos, open_training_images

FRAME = np.random.default_rng(0).integers(30, 200, (40, 50, 3)).astype(np.uint8)


def change(seed: int = 0, **condition: Any) -> np.ndarray:
    return CameraDisturbances(CameraCondition(**condition), seed).change({"top": FRAME})["top"]


def test_shift_moves_the_picture_in_one_of_eight_directions():
    assert change() is FRAME
    moves = set()
    for seed in range(40):
        shifted = change(seed, shift=3)
        found = [
            (x, y)
            for x in (-3, 0, 3)
            for y in (-3, 0, 3)
            if (shifted[5 + y : 35 + y, 5 + x : 45 + x] == FRAME[5:35, 5:45]).all()
        ]
        assert len(found) == 1
        moves |= set(found)
    assert moves == {(x, y) for x in (-3, 0, 3) for y in (-3, 0, 3)} - {(0, 0)}


def test_brightness_noise_and_occlusion_have_their_sizes():
    gains = [change(seed, brightness=0.1).mean() / FRAME.mean() for seed in range(30)]
    assert 0.89 < min(gains) < 0.95 < 1.05 < max(gains) < 1.11
    noise = change(noise=0.05).astype(float) - FRAME
    assert noise.std() / 255 == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("kind", get_args(Occluder))
def test_every_occluder_hides_the_given_share(kind: str):
    colour = YELLOW if kind == "yellow" else OCCLUDER
    disturbances = CameraDisturbances(CameraCondition(occlusion=0.1, occluder=kind), seed=0)
    hidden = [(disturbances.change({"top": FRAME})["top"] == colour).all(-1) for _ in range(60)]
    for mask in hidden:
        assert mask.mean() == pytest.approx(0.1, abs=0.03)
    assert (kind == "moving") == (len({mask.tobytes() for mask in hidden}) > 1)


def test_episodes_are_played_from_frames_and_disturbed(pixel_run: Path):
    config = RolloutConfig(env_kwargs={"max_episode_steps": 9})
    shifted = replace(config, camera=CameraCondition(shift=4))
    (one,), (again,), (other,) = (
        RolloutPool(pixel_run, each).run([200_000], traced=True) for each in (config, config, shifted)
    )
    assert one.steps == 9
    assert np.array_equal(one.trace.actions, again.trace.actions)
    assert not np.array_equal(one.trace.actions, other.trace.actions)


def test_camera_is_disturbed_from_the_command_line(pixel_run: Path, tmp_path: Path):
    args = ["eval", str(pixel_run), "--episodes", "1", "--seed-start", "200000", "--workers", "1"]
    args += ["--env-kwargs", '{"max_episode_steps": 9}', "--camera-shift", "2", "--camera-occlusion", "0.2"]
    assert main([*args, "--json", str(tmp_path / "scores.json")]) == 0
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["camera"] == CameraCondition(shift=2, occlusion=0.2).to_dict()


def test_cached_episodes_depend_on_the_weights_of_the_encoder(pixel_run: Path, tmp_path: Path):
    run = Path(shutil.copytree(pixel_run, tmp_path / "run"))
    record, cache = RunDirectory(run).read_record(), EntryCache(tmp_path, RolloutConfig(episodes=1))
    before = cache.path(run, record)
    assert cache.path(run, record) == before
    encoder = RunDirectory(run / ENCODER_FOLDER)
    weights = encoder.read_weights()
    encoder.save_weights({name: tensor + 1 for name, tensor in weights.items()})
    assert cache.path(run, record) != before


@pytest.mark.parametrize("driver", ["run", "shipped"])
def test_collected_frames_can_be_trained_on(driver: str, pixel_run: Path, tmp_path: Path):
    store = tmp_path / "collected.zarr"
    policy = str(pixel_run) if driver == "run" else "shipped"
    args = ["--out", str(store), "--policy", policy, "--obs", "pixels", "--workers", "1"]
    short = ["--env-kwargs", '{"max_episode_steps": 7}']
    for episodes in ("1", "2"):  # continued
        assert main(["collect", *args, *short, "--episodes", episodes]) == 0
    task = with_observations(get_task("pusht"), "pixels")
    assert find_task(store).env_kwargs == {"reset_rule": "benchmark", "max_episode_steps": 7}
    images, demos = (
        open_training_images(task.training.demos, store),
        load_training_demos(task.training.demos, store),
    )
    states = load_demonstrations(store).obs
    assert (len(demos), demos.obs.shape, states.shape) == (2, (14, 2), (14, 5))
    drawn = np.stack([benchmark_frame(row[:2], row[2:]) for row in states.astype(float)])
    assert (images["img"][:] == drawn).mean() > 0.999, "states are rounded to float32"
    assert images["img"].shape == drawn.shape
    seen = CompressedFrames()
    for frame in drawn[:3]:
        seen.append(frame)
    assert np.array_equal(seen[1:3], drawn[1:3])


def test_frames_of_several_episodes_are_encoded_together(pixel_run: Path, monkeypatch):
    config = RolloutConfig(env_kwargs={"max_episode_steps": 20})
    player, sizes = EnvRunner(pixel_run, config, batch=3), list[int]()
    alone = [player.run_one(seed).trace.actions for seed in range(3)]
    encode = player.policy.encode_frames

    def record(values: np.ndarray, frames: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        sizes.append(len(values))
        return encode(values, frames)

    monkeypatch.setattr(player.policy, "encode_frames", record)
    together = [result.trace.actions for result in player.run(range(3))]
    batches = [size for size in sizes if size > 1]
    assert batches == [3 * player.policy.spec.history] * 2, "the first frames are encoded at the start"
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(other, one, atol=0.05)  # of a table of 512


class SelectivePushT(gym.Wrapper[Any, Any, Any, Any]):
    """Push-T whose frame is black while it is not to be drawn."""

    def __init__(self) -> None:
        super().__init__(PushTEnv("pixels_agent_pos"))
        self.draws_frames = True
        self.drawn: list[bool] = []

    def step(self, action: np.ndarray) -> Any:
        obs, *rest = self.env.step(action)
        self.drawn.append(self.draws_frames)
        return {**obs, "pixels": obs["pixels"] * self.draws_frames}, *rest


def test_only_frames_that_a_plan_from_two_observations_needs_are_drawn():
    config = RolloutConfig(f"{__name__}:SelectivePushT", {"max_episode_steps": 12}, chunk=4)
    runner = EnvRunner(SHIPPED_POLICIES["shipped-pixels"], config)
    played = {frames: runner.run_one(7, frames=frames).trace for frames in (False, True)}
    np.testing.assert_array_equal(played[False].actions, played[True].actions)
    assert len(played[True].frames) == 13
    drawn = runner._envs[0].env.get_wrapper_attr("drawn")
    assert drawn == [False, False, True, True] * 3 + [True] * 12
