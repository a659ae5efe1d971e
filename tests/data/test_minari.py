"""Tests of Minari data sets, byte for byte in the layout of its version 0.5."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.readers import open_source
from tests.helpers.damage import Damage

EPISODES = 11


def box(size: int, limit: float) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": "float32",
        "shape": [size],
        "low": [-limit] * size,
        "high": [limit] * size,
    }


def make_metadata() -> dict[str, Any]:
    return {
        "total_episodes": EPISODES,
        "total_steps": sum(3 + k for k in range(EPISODES)),
        "data_format": "hdf5",
        "observation_space": json.dumps({"type": "Dict", "subspaces": {"observation": box(3, 9.0)}}),
        "action_space": json.dumps(box(2, 1.0)),
        "env_spec": json.dumps({"id": "Made-Up-v3", "entry_point": "made.up:Env"}),
        "dataset_id": "arm/tiny-v0",
        "author": ["A. N. Author"],
        "minari_version": "0.5.4",
    }


def write_minari(folder: Path) -> Path:
    """Write observations of one row more than actions."""
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "metadata.json").write_text(json.dumps(make_metadata()))
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for k in range(EPISODES):
            rng, steps = np.random.default_rng(k), 3 + k
            episode = file.create_group(f"episode_{k}")
            episode.attrs.update(id=k, seed=100 + k, total_steps=steps)
            observations = rng.normal(size=(steps + 1, 3)).astype(np.float32)
            episode["observations/observation"] = observations
            episode["observations/goal/_index_0"] = np.full((steps + 1, 2), k, np.float32)
            episode["observations/goal/_index_1"] = np.ones(steps + 1, np.int64)
            episode["actions"] = rng.uniform(-1, 1, (steps, 2)).astype(np.float32)
            episode["rewards"] = np.ones(steps)
            episode["terminations"] = episode["truncations"] = np.zeros(steps, bool)
            episode["infos/distance"] = np.zeros(steps + 1)
    return folder


@pytest.mark.parametrize("part", ["", "data", "data/main_data.hdf5"])
def test_data_sets_load_without_the_last_observation(tmp_path: Path, part: str) -> None:
    path = write_minari(tmp_path / "tiny-v0") / part
    demos = load_demonstrations(path)
    assert demos.lengths.tolist() == list(range(3, 3 + EPISODES))
    assert demos.obs_names == (
        *("_index_0[0]", "_index_0[1]", "_index_1[0]"),
        *(f"observation[{i}]" for i in range(3)),
    )
    rng = np.random.default_rng(10)
    observations, actions = rng.normal(size=(14, 3)), rng.uniform(-1, 1, (13, 2))
    np.testing.assert_array_equal(demos[10].obs[:, 3:], observations[:-1].astype(np.float32))
    np.testing.assert_array_equal(demos[10].act, actions.astype(np.float32))
    assert (demos[10].obs[:, :2] == 10).all()
    assert demos.act_limits == ((-1, -1), (1, 1))
    with open_source(path) as source:
        assert source.format == "Minari 0.5.4"
        assert source.attributes["env_id"] == "Made-Up-v3"
        goal = ["observations/goal/_index_0", "observations/goal/_index_1"]
        assert source.find_arrays() == ["actions", *goal, "observations/observation"]


def on_file(change: Callable[[h5py.File], object]) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        with h5py.File(path / "data/main_data.hdf5", "a") as file:
            change(file)

    return make


def with_metadata(**change: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        (path / "data/metadata.json").write_text(json.dumps({**make_metadata(), **change}))

    return make


DAMAGES = [
    Damage("no file", lambda path: shutil.rmtree(path / "data"), "is not a zarr group"),
    Damage(
        "lost episode",
        on_file(lambda file: file.pop("episode_10")),
        "s': 10, .* metadata .*s': 11",
    ),
    Damage("other steps", with_metadata(total_steps=5), "'total_steps': 88.* metadata .*'total_steps': 5"),
    Damage("limits upside down", with_metadata(action_space=json.dumps(box(2, -1.0))), "low below high"),
    Damage(
        "limits of other size", with_metadata(action_space=json.dumps(box(3, 1.0))), "limits 3 action columns"
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(write_minari(tmp_path / "tiny-v0"), load_demonstrations)
