"""Tests for policies on CUDA, compared with the CPU; skipped without a GPU."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.policy.policy import Policy

pytestmark = pytest.mark.gpu


def test_plans_agree_with_those_on_the_cpu():
    episodes = load_demonstrations(EMBEDDED_DEMOS)
    policies = [Policy.from_pretrained(None).to(device) for device in ("cpu", "cuda")]
    histories = []
    for k in range(32):
        history = policies[0].spec.new_history()
        history.add_observation(episodes[k].obs[10])
        histories.append(history)
    cpu, cuda = (
        policy.plan_batch(histories, generators=[torch.Generator().manual_seed(k) for k in range(32)])
        for policy in policies
    )
    for one, other in zip(cpu, cuda, strict=True):
        np.testing.assert_allclose(other.actions, one.actions, atol=0.05)  # of a table of 512
    assert np.ptp([plan.actions for plan in cpu], axis=0).max() > 100


def test_episodes_on_cuda_score_like_those_on_the_cpu(tmp_path: Path):
    episodes = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.json"
        args = ["--episodes", "16", "--seed-start", "200000", "--device", device, "--json", str(out)]
        assert main(["eval", *args]) == 0
        episodes[device] = json.loads(out.read_text())["episodes"]
    assert [e["seed"] for e in episodes["cuda"]] == [e["seed"] for e in episodes["cpu"]]
    scores = {device: [e["max_reward"] for e in found] for device, found in episodes.items()}
    assert np.mean(scores["cuda"]) == pytest.approx(np.mean(scores["cpu"]), abs=0.05)
    close = np.abs(np.subtract(scores["cuda"], scores["cpu"])) < 0.05
    assert close.mean() >= 0.8  # contacts amplify rounding, so a few episodes may differ


def test_a_policy_trained_on_cuda_acts_on_the_cpu(tmp_path: Path):
    out = tmp_path / "run"
    args = ["--train.steps", "40", "--train.precision", "bf16", "--device", "cuda", "--out", str(out)]
    assert main(["train", "--policy", "regression", *args]) == 0
    policy = Policy.from_pretrained(out)
    action = policy.select_action(load_demonstrations(EMBEDDED_DEMOS)[0].obs[0])
    assert np.isfinite(action).all()
