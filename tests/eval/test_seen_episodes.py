"""Tests of eval/score/episodes.py: episodes of the training are recognised in any store."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.data import Demonstrations
from nsde_policy.eval.score.episodes import ScoredEpisodes, select_episodes
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.demo_stores import write_store
from tests.helpers.toy_problems import make_robot_demos

DEMOS = make_robot_demos(12, 10)
TRAINED = 8
"""The first 8 demonstrations are those of the run, which holds out 4 of them."""
NEW = (8, 9, 10, 11)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    config = RunConfig(
        demos=DemoConfig(angles=DEMOS.angles),
        model=NeuralSDEConfig(network=NetworkConfig(width=8, depth=1)),
        train=TrainConfig(steps=1),
        chunk=2,
    )
    path = tmp_path_factory.mktemp("seen") / "run"
    return train_run(DEMOS.take(TRAINED), config, path, options=TrainOptions(validation=0.5))


def write_demos(path: Path, demos: Demonstrations, *, kind: type = np.float32, zarr_format: int = 2) -> Path:
    arrays = {
        "data/state": demos.obs.astype(kind),
        "data/action": demos.act.astype(kind),
        "meta/episode_ends": demos.episode_ends,
    }
    others = {"data/keypoint": None, "data/img": None}
    return write_store(path, {**arrays, **others}, zarr_format=zarr_format)


def select(run: RunDirectory, store: Path) -> tuple[ScoredEpisodes, list[float]]:
    """Return what is scored, and the first number of each episode."""
    scored = select_episodes(Policy.from_pretrained(run.path), store)
    return scored, [float(each.obs[0, 0]) for each in scored.demos]


def name(episodes: list[int]) -> list[float]:
    return [float(DEMOS[i].obs[0, 0]) for i in episodes]


@pytest.mark.parametrize(
    ("order", "options"),
    [
        (range(12), {}),  # with episodes appended
        ((9, 8, 7, 6, 5, 4, 3, 2, 1, 0), {}),  # in another order
        (NEW, {}),  # only new ones
        ((11, 0, 1, 2, 3, 4, 5, 6, 7), {"kind": np.float64, "zarr_format": 3}),  # converted
    ],
)
def test_only_unseen_episodes_are_scored(run: RunDirectory, tmp_path: Path, order, options):
    store = write_demos(tmp_path / "demos.zarr", DEMOS.select(order), **options)
    unseen = [i for i in order if i in (*run.read_record().demos.held_out, *NEW)]
    scored, found = select(run, store)
    assert found == name(unseen)
    assert not scored.seen
    left_out = len(order) - len(unseen)
    expected = f"not trained on; {left_out} left out" if left_out else f"all {len(order)} episodes of {store}"
    assert scored.note.endswith(expected)


def test_a_store_of_trained_episodes_alone_is_scored_with_a_warning(run: RunDirectory, tmp_path: Path):
    trained = [i for i in range(TRAINED) if i not in run.read_record().demos.held_out]
    scored, found = select(run, write_demos(tmp_path / "demos.zarr", DEMOS.select(trained[1:])))
    assert found == name(trained[1:])
    assert scored.seen
    assert "TRAINED on" in scored.note


def test_a_run_without_a_record_of_every_episode_counts_as_trained_on_all(run: RunDirectory, tmp_path: Path):
    other = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "other")))
    record = json.loads(other.config.read_text())
    record["demos"]["episode_fingerprints"] = []
    other.config.write_text(json.dumps(record))
    scored, _ = select(other, write_demos(tmp_path / "demos.zarr", DEMOS.select(NEW)))
    assert scored.seen
    assert "TRAINED on" in scored.note
