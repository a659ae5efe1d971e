"""Test of the quick start in README.md: train, evaluate, control a robot; with less training."""

import itertools
import json
import time
from pathlib import Path

import gymnasium
import numpy as np

from nsde_policy import Policy
from nsde_policy.cli.main import main


def test_train_evaluate_and_control(tmp_path: Path):
    run, scores = tmp_path / "run", tmp_path / "scores.json"
    less = ["--train.steps", "20", "--train.batch-size", "64", "--demos.episodes", "10"]
    less += ["--selection.train.steps", "2"]
    assert main(["train", "--preset", "fast", *less, "--device", "cpu", "--out", str(run)]) == 0
    assert main(["eval", str(run), "--episodes", "1", "--workers", "1", "--json", str(scores)]) == 0
    assert json.loads(scores.read_text())["episodes"][0]["seed"] == 100_000

    env = gymnasium.make("nsde_policy.envs:nsde_policy/PushT-v0")
    obs, _ = env.reset(seed=0)
    commands = []
    policy = Policy.from_pretrained(run)
    with policy.session(rate_hz=10, limits="from_demos", on_fault="hold", plan_ahead=True) as session:
        for _ in itertools.islice(session.ticks(), 5):
            commands.append(session.step(obs, time.monotonic()))
            obs, *_ = env.step(commands[-1])

    assert np.isfinite(commands).all()
    assert session.report().to_text()
