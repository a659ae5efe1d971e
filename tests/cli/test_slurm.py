"""Tests for --slurm: the script, the flags of the job, and a job that is stopped and resumes."""

import itertools
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
import submitit

from nsde_policy.cli.main import main
from nsde_policy.cli.shared.slurm import SlurmJob
from nsde_policy.run_directory import RunDirectory, fingerprint

TRAIN = ["train", "--preset", "fast", "--steps", "300", "--train.log-every", "10", "--width", "16"]
TRAIN += ["--device", "cpu", "--select", "none", "--demos.no-align-ends", "--demos.episodes", "5"]


def submit(*flags: str) -> int:
    return main([*TRAIN, "--slurm", "gpu", *flags])


def test_script_has_the_options_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "my run"
    options = ["--slurm-args", "gpus_per_node=1", "time=90", "--seed", "3"]
    assert submit("--out", str(out), *options, "--dry-run") == 0
    *script, command = capsys.readouterr().out.splitlines()
    assert {"#SBATCH --partition=gpu", "#SBATCH --gpus-per-node=1", "#SBATCH --time=90"} <= {*script}
    assert any(line.startswith("srun ") for line in script)
    sent = shlex.split(command.removeprefix("# runs: nsde-policy "))
    assert sent[0] == "train"
    assert sent[-1] == "--resume"
    pairs = {*itertools.pairwise(sent)}
    expected = {"--out": str(out), "--seed": "3", "--train.steps": "300", "--device": "cpu"}
    assert {*expected.items()} <= pairs
    assert not [word for word in sent if "slurm" in word or "dry" in word]
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "add --out"),
        (["--out", "."], "is not empty"),
        (["--out", "run", "--slurm-args", "colour=red", "--dry-run"], "'colour', expected NAME=VALUE"),
        (["--out", "run", "--slurm-args", "time", "--dry-run"], "'time', expected NAME=VALUE"),
        (["--out", "run", "--slurm-args", "nodes=2", "--dry-run"], "nodes must be 1"),
        (["--out", "run\ntouch x", "--dry-run"], "'run\\ntouch x' has a line break"),
        (["--out", "run", "--slurm-args", "comment=a\rb", "--dry-run"], "has a line break"),
        (["--out", "run"], "--dry-run prints the script"),
    ],
)
def test_jobs_that_cannot_be_submitted_are_refused(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without srun
    assert submit(*flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the process of the job in /proc")
def test_job_that_is_stopped_resumes_and_trains_the_same_weights(tmp_path: Path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main([*TRAIN, "--out", str(whole)]) == 0
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=10)
    job = executor.submit(SlurmJob([*TRAIN, "--out", str(stopped), "--resume"]))
    while not RunDirectory(stopped).metrics.exists():
        assert not job.done(), job.stderr()
        time.sleep(0.02)
    (task,) = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR2)  # as SLURM does before a time limit or a preemption
    job.result()
    assert "Requeued job" in (job.stdout() or "")
    weights = [fingerprint(RunDirectory(run).read_weights()) for run in (whole, stopped)]
    assert weights[0] == weights[1]
