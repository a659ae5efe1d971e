"""Tests of what `data info`, `data check` and `train` say about stores that are often a mistake."""

from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from tests.helpers.demo_stores import example_arrays, write_store

REPEATED = "3 of 6 episodes are identical to earlier ones (3, 4, 5)"
CAMERA = "has camera arrays that are not used: img (8, 8, 3); --images img, in Python images=, trains on them"


def write_doubled(path: Path) -> Path:
    """Write the example as a conversion that ran twice would."""
    arrays = example_arrays()
    ends = arrays.pop("meta/episode_ends")
    doubled = {name: np.concatenate([values, values]) for name, values in arrays.items()}
    return write_store(path, {**doubled, "meta/episode_ends": np.concatenate([ends, ends + ends[-1]])})


def write_plain(path: Path) -> Path:
    return write_store(path, {"data/img": None})


@pytest.mark.parametrize(
    ("write", "said", "cameras"),
    [
        (write_doubled, REPEATED, True),
        (write_plain, "", False),
    ],
)
def test_repeats_and_unused_cameras_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write, said: str, cameras: bool
):
    store = str(write(tmp_path / "demos.zarr"))
    train = ["train", "--demos", store, "--policy", "knn", "--task", "none", "--device", "cpu"]
    for command in (
        ["data", "info", store],
        ["data", "check", store],
        [*train, "--out", str(tmp_path / "run")],
    ):
        assert main(command) == 0
        lines = "".join(capsys.readouterr()).splitlines()
        named = [line for line in lines if "identical to" in line]
        assert len(named) == bool(said)
        assert all(said in line for line in named)
        assert len([line for line in lines if CAMERA in line]) == (cameras and command[0] == "train")
