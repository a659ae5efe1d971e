"""From a scripted expert to a policy through the command line: collect, train with the preset auto, eval."""

import json

import pytest

from nsde_policy.cli.main import main
from nsde_policy.data.readers import open_source

ENV = "MountainCarContinuous-v0"
EXPERT = '''
import numpy as np


class PushAlong:
    """Push in the direction of motion, which gains energy at every step."""

    def select_action(self, obs):
        return np.array([1.0 if obs[1] >= 0 else -1.0])
'''


@pytest.mark.slow
def test_policy_reaches_90_percent_of_the_return_of_a_scripted_expert(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "car_expert.py").write_text(EXPERT)
    collect = ["collect", "--env", ENV, "--policy", "car_expert:PushAlong", "--episodes", "8"]
    assert main([*collect, "--out", "car.zarr", "--workers", "1"]) == 0
    train = ["train", "--demos", "car.zarr", "--out", "run", "--device", "cpu"]
    small = ["--train.steps", "400", "--train.batch-size", "512", "--model.network.width", "64"]
    assert main([*train, *small]) == 0
    assert main(["eval", "run", "--episodes", "4", "--json", "scores.json", "--workers", "1"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["env"] == ENV
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task"] == ENV
    assert config["config"]["model"]["sampling"]["diffusion"] == 0.0  # the demonstrations do not branch
    expert = open_source(tmp_path / "car.zarr").read_info()["episode_score"]
    assert len(expert) == 8
    assert scores["mean_return"]["value"] >= 0.9 * expert.mean()
