"""Tests for eval/score/episodes.py: scores of policies with cameras on recorded episodes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.config import TrainConfig
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.eval.score.episodes import ScoredEpisodes, select_episodes
from nsde_policy.eval.score.scorer import ScoreConfig, score_episodes
from nsde_policy.methods.neural_sde.config import NetworkConfig, NeuralSDEConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from tests.helpers.camera_robot import EPISODES, SIZES, STEPS, train_camera_run, write_camera_store

HELD_OUT = 2


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Train a little on two cameras, with two of six episodes held out; returns run and store."""
    folder = tmp_path_factory.mktemp("robot")
    store = write_camera_store(folder / "store.zarr")
    config = RunConfig(
        demos=DemoConfig(images=tuple(SIZES), encoder="keypoints", first_action_from=(0, 1)),
        encoder=KeypointConfig(
            train=TrainConfig(steps=2, batch_size=4), size=32, keypoints=2, width=8, anchors=1
        ),
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=20, batch_size=16),
    )
    train_camera_run(store, folder / "run", config, validation=HELD_OUT / EPISODES)
    return folder / "run", store


def test_scores_equal_those_of_frames_that_are_encoded_one_by_one(robot: tuple[Path, Path]):
    run, store = robot
    policy = Policy.from_pretrained(run)
    scored = select_episodes(policy, store)
    assert len(scored.episodes) == HELD_OUT
    features = [
        policy.encode(
            {
                "observation.state": scored.demos.obs[i],
                "observation.images.top": scored.cameras[0][row],
                "observation.images.wrist": scored.cameras[1][row],
            }
        )
        for i, row in enumerate(STEPS * episode + k for episode in scored.episodes for k in range(STEPS))
    ]
    demos = replace(scored.demos, obs=np.array(features, np.float32))
    config = ScoreConfig(samples=5, stride=3)
    expected = score_episodes(policy, ScoredEpisodes(demos, scored.episodes, False, ""), config, name="run")
    found = score_episodes(policy, scored, config, name="run")
    for name, values in found.sums.items():
        if name != "error_linear":  # which needs the training episodes
            assert np.allclose(values.total, expected.sums[name].total, rtol=1e-4, atol=1e-5), name


def test_commands_score_runs_with_cameras(
    robot: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, store = robot
    file = tmp_path / "score.json"
    assert main(["score", str(run), "--demos", str(store), "--samples", "5", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["frames"], found["seen_in_training"]) == (HELD_OUT * STEPS, False)
    assert len(found["coverage"]["observations"]["per_dimension"][0]) == 2 + 2 * 2 * 2
    blind = tmp_path / "blind.zarr"
    shutil.copytree(store, blind)
    shutil.rmtree(blind / "data/wrist")
    assert main(["score", str(run), "--demos", str(blind)]) == 2
    assert "wrist" in capsys.readouterr().err
