"""Tests for `nsde-policy collect`: what a policy plays becomes a store that survives, goes on, and trains."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import Episode, load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.collection import Collection, EpisodeInfo
from nsde_policy.errors import DemoError
from nsde_policy.eval import demonstrator as generating
from tests.helpers.demo_stores import write_store

ROOT = Path(__file__).parents[2]
HAND = {"by": "teleoperation", "env": "a table"}


@pytest.fixture(scope="module")
def run(quick_runs: list[Path]) -> Path:
    """A small policy that fails but is fast."""
    return quick_runs[0]


def command(run: Path | str, out: Path, *args: str) -> list[str]:
    return ["collect", "--out", str(out), "--policy", str(run), "--workers", "1", *args]


SHORT = ["--seed-start", "7", "--env-kwargs", '{"max_episode_steps": 80}']
RESUME = ["--out", "STORE", "--episodes", "5", "--workers", "1", *SHORT]


def content(store: Path) -> dict[str, bytes]:
    """Return the content of all files except the one with dates."""
    files = {p.relative_to(store).as_posix(): p for p in store.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != ".zattrs"}


def recorded(steps: int = 5, value: float = 1.0) -> Episode:
    return Episode(np.full((steps, 5), value, np.float32), np.full((steps, 2), value, np.float32))


@pytest.fixture(scope="module")
def store(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collect four episodes in one run."""
    out = tmp_path_factory.mktemp("stores") / "demos.zarr"
    assert main(command(run, out, "--episodes", "4", *SHORT)) == 0
    return out


@pytest.mark.slow
def test_store_holds_the_played_episodes_and_their_provenance(run: Path, store: Path):
    demos = load_demonstrations(store)
    assert (len(demos), demos.angles, demos.rate_hz) == (4, (4,), 10)
    assert check_store(store) == []
    attributes = json.loads((store / ".zattrs").read_text())
    made, (session,) = attributes["made_with"], attributes["sessions"]
    assert (made["by"], made["method"], made["seed_start"]) == ("policy", "neural_sde", 7)
    settings = {"max_episode_steps": 80, "reset_rule": "benchmark"}
    assert (made["env_kwargs"], made["only_success"]) == (settings, False)
    assert (made["env"], made["chunk"]) == ("nsde_policy/PushT-v0", 8)
    assert attributes["action_space"] == {"low": [0.0, 0.0], "high": [512.0, 512.0]}
    assert made["sampling"]["diffusion"] == 0.5
    assert len(made["policy"]) == 64
    assert (session["run"], session["first_episode"]) == (str(run), 0)
    assert {"torch", "pymunk", "nsde_policy"} <= session["versions"].keys()


@pytest.mark.slow
def test_killed_process_resumes_to_the_same_store(run: Path, store: Path, tmp_path: Path):
    out = tmp_path / "demos.zarr"
    args = command(run, out, "--episodes", "2", *SHORT)
    process = subprocess.Popen([sys.executable, "-m", "nsde_policy", *args], cwd=ROOT)
    while process.poll() is None and _episodes(out) == 0:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert check_store(out) == []
    assert len(load_demonstrations(out)) > 0
    assert main([*args, "--episodes", "4"]) == 0
    assert content(out) == content(store)


def _episodes(store: Path) -> int:
    """Read the number of episodes of a store without opening it."""
    count = store / "meta/episode_ends/.zarray"
    return json.loads(count.read_text())["shape"][0] if count.exists() else 0


def test_only_success_gives_up_after_many_failures(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(generating, "MAX_FAILURES", 2)
    out = tmp_path / "won.zarr"
    assert main(command(run, out, "--episodes", "1", "--only-success", *SHORT)) == 2
    assert "2 episodes in a row failed, up to seed 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*RESUME, "--policy", "RUN", "--seed-start", "8"], "was made with seed_start 7, not 8"),
        ([*RESUME, "--policy", "shipped"], "was made with policy"),
        (["--out", "FOREIGN", "--policy", "RUN"], "not a recording of this package"),
        (["--out", "NEW", "--policy", "/nowhere"], "/nowhere does not exist"),
        (["--out", "NEW", "--env", "avoiding", "--obs", "pixels"], "arrays: nsde-policy train --images"),
        (["--out", "NEW", "--policy", "RUN", "--sampling", "mood=good"], "not a sampling setting"),
    ],
)
def test_bad_input_exits_with_code_2_and_leaves_stores_unchanged(
    run: Path, store: Path, tmp_path: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    foreign = write_store(tmp_path / "foreign.zarr")
    names = {"RUN": run, "STORE": store, "FOREIGN": foreign, "NEW": tmp_path / "new.zarr"}
    before = {p: p.stat().st_mtime_ns for folder in (tmp_path, store) for p in folder.rglob("*")}
    assert main(["collect", *(str(names.get(arg, arg)) for arg in args)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "full helptext" in said or said.count("\n") == 1  # a box of tyro, or one line
    assert {p: p.stat().st_mtime_ns for folder in (tmp_path, store) for p in folder.rglob("*")} == before


def test_collection_lists_episodes_and_undoes_the_last(tmp_path: Path):
    path = tmp_path / "demos.zarr"
    kept = [EpisodeInfo(1, None, 0.5), EpisodeInfo(2, True, 1.0), EpisodeInfo(3, False, -2.0)]
    with Collection(path, resume=True, made_with=HAND) as collection:
        for each in kept:
            collection.add(recorded(3 + each.seed), each)
        assert collection.undo() == kept[2]
        assert len(load_demonstrations(path)) == 2
    with Collection(path, resume=True, made_with=HAND) as collection:
        assert collection.episodes == tuple(kept[:2])
        collection.add(recorded(), kept[2])
    with Collection(path, resume=True, made_with=HAND) as collection:
        assert collection.episodes == tuple(kept)
        for _ in kept:
            collection.undo()
        with pytest.raises(DemoError, match="no episode to drop"):
            collection.undo()
        collection.add(recorded(), kept[1])
    with Collection(path, resume=True, made_with=HAND) as collection:
        assert collection.episodes == (kept[1],)
    with pytest.raises(DemoError, match='was made with by "teleoperation", not "policy"'):
        Collection(path, resume=True, made_with={**HAND, "by": "policy"})
