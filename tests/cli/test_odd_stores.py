"""Tests of what `data info`, `data check` and `train` say about stores that are often a mistake."""

from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from tests.helpers.demo_stores import example_arrays, write_store

REPEATED = "3 of 6 episodes are identical to earlier ones (3, 4, 5)"
CAMERA = "has camera arrays that are not used: img (8, 8, 3); --images img, in Python images=, trains on them"


@pytest.mark.parametrize("is_odd", [True, False])
def test_repeats_and_unused_cameras_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_odd: bool
):
    arrays = example_arrays()
    if is_odd:  # as a conversion that ran twice would write it
        ends = arrays.pop("meta/episode_ends")
        arrays = {name: np.concatenate([values, values]) for name, values in arrays.items()}
        arrays["meta/episode_ends"] = np.concatenate([ends, ends + ends[-1]])
    else:
        arrays["data/img"] = None
    store = str(write_store(tmp_path / "demos.zarr", arrays))
    train = ["train", "--demos", store, "--policy", "knn", "--task", "none", "--device", "cpu"]
    for command in (["data", "info", store], ["data", "check", store], [*train, "--out", f"{tmp_path}/run"]):
        assert main(command) == 0
        lines = "".join(capsys.readouterr()).splitlines()
        assert [REPEATED in line for line in lines if "identical to" in line] == is_odd * [True]
        assert any(CAMERA in line for line in lines) == (is_odd and command[0] == "train")
