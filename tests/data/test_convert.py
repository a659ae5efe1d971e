"""Tests of conversion and editing: the same numbers arrive, in a store that is complete."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, Episode, load_demonstrations, open_images
from nsde_policy.data.convert import parse_cuts, write_zarr
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot.writer import write_lerobot
from nsde_policy.errors import ConfigError, DemoError, NsdePolicyError
from tests.helpers.demo_stores import write_store

LENGTHS = (6, 5, 9)
LIMITS = {"low": [-5], "high": [None]}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write three episodes with a camera, a force sensor, named columns and seeds."""
    rng = np.random.default_rng(0)
    path = tmp_path / "demos.zarr"
    columns = {"state": ["hip", "knee"], "action": ["torque"], "force": ["newton"]}
    with DemoWriter(
        path,
        rate_hz=20,
        angles=(1,),
        attributes={"licence": "MIT", "columns": columns, "action_space": LIMITS},
    ) as writer:
        for seed, length in enumerate(LENGTHS):
            obs, act = (rng.normal(size=(length, width)).astype(np.float32) for width in (2, 1))
            extras = {
                "top": rng.integers(0, 256, (length, 8, 8, 3), np.uint8),
                "force": rng.normal(size=length),
            }
            writer.append(Episode(obs, act), extras, info={"seed": seed})
    return path


def check_numbers(store: Path, out: Path) -> None:
    """Check what is loaded into memory, and what is recorded about it."""
    old, new = load_demonstrations(store), load_demonstrations(out)
    assert new.fingerprint == old.fingerprint
    assert (new.rate_hz, new.angles, new.act_limits) == (20, (1,), ((-5.0,), (np.inf,)))
    assert (new.obs_names, new.act_names) == (("hip", "knee"), ("torque",))


def test_everything_arrives(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.zarr"
    assert main(["data", "convert", str(store), str(out)]) == 0
    assert "equal observations and actions" in capsys.readouterr().out
    check_numbers(store, out)
    np.testing.assert_array_equal(open_images(out, key="top")[:], open_images(store, key="top")[:])
    with open_source(store) as first, open_source(out) as second:
        assert first.find_arrays() == second.find_arrays()
        np.testing.assert_array_equal(
            second.open_array("force").read(0, 20), first.open_array("force").read(0, 20)
        )
        assert second.open_array("force").columns == ("newton",)
        np.testing.assert_array_equal(second.read_info()["episode_seed"], [0, 1, 2])
        assert second.attributes["licence"] == "MIT"


def test_a_store_is_the_same_after_it_was_a_lerobot_data_set(store: Path, tmp_path: Path) -> None:
    lerobot, out = tmp_path / "lerobot", tmp_path / "out.zarr"
    assert main(["data", "convert", str(store), str(lerobot), "--to", "lerobot"]) == 0
    assert main(["data", "convert", str(lerobot), str(out)]) == 0
    assert json.loads((lerobot / "meta/info.json").read_text())["codebase_version"] == "v3.0"
    check_numbers(store, out)
    assert open_images(out, key="top").shape == open_images(store, key="top").shape
    with open_source(out) as source:
        assert (source.attributes["licence"], source.attributes["tasks"]) == ("MIT", {"0": "demonstrations"})


@pytest.mark.parametrize("write", [write_zarr, write_lerobot])
def test_an_interrupted_conversion_leaves_nothing(
    store: Path, tmp_path: Path, write: Callable[..., int]
) -> None:
    def stop_after_one(episodes: range) -> Iterator[int]:
        yield episodes[0]
        raise KeyboardInterrupt

    with open_source(store) as source:
        with pytest.raises(KeyboardInterrupt):
            write(source, tmp_path / "out", progress=stop_after_one)
        assert [path.name for path in tmp_path.iterdir()] == ["demos.zarr"]
        assert write(source, tmp_path / "out") == 3
        with pytest.raises(NsdePolicyError, match="out exists; move it away or choose a new path"):
            write(source, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "killed.partial")
    with pytest.raises(DemoError, match=r"killed\.partial is incomplete: delete it and repeat the command"):
        load_demonstrations(tmp_path / "killed.partial")


@pytest.mark.parametrize("to", ["zarr", "lerobot"])
@pytest.mark.parametrize("place", ["", "meta/../data/state/out"])
def test_demonstrations_are_not_converted_into_themselves(
    store: Path, place: str, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(store.rglob("*"))
    assert main(["data", "convert", str(store), str(store / place), "--to", to]) == 2
    assert "choose a path outside of it" in capsys.readouterr().err
    assert sorted(store.rglob("*")) == before


def test_episodes_are_dropped_and_trimmed(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.zarr"
    assert main(["data", "edit", str(store), str(out), "--drop", "1", "--trim", "2:3:-1", "0:1:"]) == 0
    old, new = load_demonstrations(store), load_demonstrations(out)
    assert new.lengths.tolist() == [5, 5]
    np.testing.assert_array_equal(new[0].obs, old[0].obs[1:])
    np.testing.assert_array_equal(new[1].act, old[2].act[3:-1])
    images = open_images(store, key="top")
    np.testing.assert_array_equal(open_images(out, key="top")[4:6], np.stack([images[5], images[14]]))
    with open_source(out) as source:
        np.testing.assert_array_equal(source.read_info()["episode_seed"], [0, 2])
    assert json.loads((store / ".zattrs").read_text())["licence"] == "MIT"


@pytest.mark.parametrize(
    ("drop", "trim", "message"),
    [
        (["3"], [], "episodes from 0 to 2"),
        (["-1"], [], "such as 3 or 7-9"),
        (["0-2"], [], "leaves none"),
        ([], ["1"], "EPISODE:START:STOP"),
        ([], ["1:4:"], "leaves 1 of the 5 frames of episode 1.*--drop 1"),
    ],
)
def test_cuts_that_make_no_sense_are_refused(drop: list[str], trim: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_cuts(LENGTHS, drop, trim)


@pytest.mark.parametrize("chunk", ["data/top/3.0.0.0", "data/state/3.0"])
def test_a_missing_chunk_is_converted_only_if_its_episode_is_dropped(
    chunk: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_store(tmp_path / "demos.zarr", {"data/top": np.ones((40, 8, 8, 3), np.uint8)})
    (store / chunk).unlink()
    for k, flags in enumerate((["convert"], ["edit", "--drop", "0"], ["convert", "--to", "lerobot"])):
        assert main(["data", flags[0], str(store), str(tmp_path / f"{k}"), "--rate", "10", *flags[1:]]) == 2
        assert f"chunk {chunk} is missing" in capsys.readouterr().err
    assert main(["data", "edit", str(store), str(tmp_path / "rest"), "--drop", "2"]) == 0


def test_a_lerobot_data_set_gets_a_task_text(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert, text = ["data", "convert", str(store), str(tmp_path / "set")], ["--task-text", "lift the cube"]
    assert main([*convert, *text]) == 2
    assert "--task-text is a part of LeRobot data sets" in capsys.readouterr().err
    assert main([*convert, *text, "--to", "lerobot"]) == 0
    assert open_source(tmp_path / "set").attributes["tasks"] == {"0": "lift the cube"}
    assert main([*convert[:2], str(tmp_path / "set"), str(tmp_path / "again"), "--to", "lerobot"]) == 0
    assert open_source(tmp_path / "again").attributes["tasks"] == {"0": "lift the cube"}
