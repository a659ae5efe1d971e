"""Tests of training in several processes that torchrun starts; `pytest -m ranks` runs them alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsde_policy.run_directory import RunDirectory
from tests.helpers.rank_training import train_small

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
STEPS = 100
PATIENCE_S = 300.0


def start_ranks(folder: Path, ranks: int = 2) -> subprocess.Popen[str]:
    """Start a training with torchrun, which ends all ranks when one ends."""
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    worker = ["-m", "tests.helpers.rank_training", str(folder), str(STEPS)]
    return subprocess.Popen(
        [*launcher, *worker], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish_ranks(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


def read_losses(folder: Path) -> list[dict[str, float]]:
    return [{**record, "seconds": 0.0} for record in RunDirectory(folder / "run").read_metrics()]


def assert_same_curve(found: Path, expected: Path) -> None:
    ours, theirs = read_losses(found), read_losses(expected)
    assert [record["step"] for record in ours] == list(range(10, STEPS + 1, 10))
    for record, other in zip(ours, theirs, strict=True):
        assert record == pytest.approx(other, rel=2e-3, abs=2e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with the whole batch."""
    folder = tmp_path_factory.mktemp("alone")
    train_small(folder, STEPS)
    return folder


def test_two_ranks_have_equal_weights_and_the_losses_of_one_process(tmp_path: Path, alone: Path):
    finish_ranks(start_ranks(tmp_path))
    first, second = ((tmp_path / f"rank{rank}.safetensors").read_bytes() for rank in range(2))
    assert first == second
    assert_same_curve(tmp_path, alone)
    assert {path.name for path in tmp_path.iterdir()} == {
        "run", "pid0", "pid1", "rank0.safetensors", "rank1.safetensors",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        path.name for path in (alone / "run").iterdir()
    }


@pytest.mark.parametrize(("victim", "ranks"), [(0, 2), (1, 1)], ids=["on two ranks", "on one rank"])
def test_a_run_whose_rank_was_killed_is_resumed(victim: int, ranks: int, tmp_path: Path, alone: Path):
    """A checkpoint of two ranks is continued by one or two."""
    process = start_ranks(tmp_path)
    after = random.Random(victim).randrange(2, STEPS // 20)
    deadline = time.monotonic() + PATIENCE_S
    while len(read_losses(tmp_path)) < after:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(int((tmp_path / f"pid{victim}").read_text()), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert after <= len(read_losses(tmp_path)) < STEPS // 10
    finish_ranks(start_ranks(tmp_path, ranks))
    assert_same_curve(tmp_path, alone)
