"""Tests of training in several processes that torchrun starts.

`pytest -m ranks` runs them alone, with `--kills 10` for more than two killed processes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nsde_policy.run_directory import RunDirectory
from tests.helpers.rank_training import train_small

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
STEPS = 100
PATIENCE_S = 300.0


def start_ranks(
    folder: Path, ranks: int = 2, device: str = "cpu", restarts: int = 0
) -> subprocess.Popen[str]:
    """Start a training with torchrun, which ends all ranks when one ends, and may start them again."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher += [f"--max-restarts={restarts}"]
    worker = ["-m", "tests.helpers.rank_training", str(folder), str(STEPS), device]
    return subprocess.Popen(
        [*launcher, *worker], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish_ranks(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


def read_losses(folder: Path) -> list[dict[str, float]]:
    return [{**record, "seconds": 0.0} for record in RunDirectory(folder / "run").read_metrics()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with a batch as large as that of two."""
    folder = tmp_path_factory.mktemp("alone")
    train_small(folder, STEPS)
    return folder


def assert_trained(folder: Path, alone: Path) -> None:
    """Check that a run has all records, and ends with about the held-out loss of one process."""
    ours, theirs = read_losses(folder), read_losses(alone)
    assert [record["step"] for record in ours] == list(range(10, STEPS + 1, 10))
    assert ours[-1]["validation_flow"] == pytest.approx(theirs[-1]["validation_flow"], rel=0.05)
    assert ours[-1]["validation_flow"] < theirs[0]["validation_flow"]


def test_two_ranks_sample_different_rows_and_have_equal_weights(tmp_path: Path, alone: Path):
    finish_ranks(start_ranks(tmp_path))
    first, second = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2))
    assert not first.pop("generator").equal(second.pop("generator"))
    assert first.keys() == second.keys()
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    assert_trained(tmp_path, alone)
    for rank in range(2):
        agreed = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert agreed == {"gradient": [0.5, 0.5], "diverged": True, "stopped": True}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        path.name for path in (alone / "run").iterdir()
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kill" in metafunc.fixturenames:
        metafunc.parametrize("kill", range(metafunc.config.getoption("--kills")))


def test_a_run_whose_rank_was_killed_is_resumed(kill: int, tmp_path: Path, alone: Path):
    """Kill one of two ranks at a random moment; by turns, torchrun starts both again, or one continues."""
    rng = random.Random(kill)
    victim, after = rng.randrange(2), rng.randrange(STEPS // 10 - 2)
    process = start_ranks(tmp_path, restarts=kill % 2)
    pid = tmp_path / f"pid{victim}"
    deadline = time.monotonic() + PATIENCE_S
    while not pid.exists() or len(read_losses(tmp_path)) < after:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1 * rng.random())
    os.kill(int(pid.read_text()), signal.SIGKILL)
    if kill % 2 == 0:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        assert len(read_losses(tmp_path)) < STEPS // 10
        process = start_ranks(tmp_path, ranks=1)
    finish_ranks(process)
    assert_trained(tmp_path, alone)


@pytest.mark.gpu
def test_a_captured_step_with_the_exchange_of_gradients_trains_the_same(tmp_path: Path):
    alone = train_small(tmp_path / "alone", STEPS, "cuda")
    finish_ranks(start_ranks(tmp_path / "ranks", 1, "cuda"))
    expected, found = (run.read_weights() for run in (alone, RunDirectory(tmp_path / "ranks/run")))
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-3, atol=1e-4)
