"""Tests for training/train.py and run_directory.py: interrupted, resumed and damaged training runs."""

import json
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, SelectionConfig, TrainConfig
from nsde_policy.errors import CheckpointError, ConfigError, NsdePolicyError
from nsde_policy.files import PARTIAL
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.loading import load_model
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training import distributed
from nsde_policy.training.fit import TableSource
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.resume import check_files
from nsde_policy.training.train import train_run
from tests.helpers.toy_problems import make_robot_demos

TINY = RunConfig(
    demos=DemoConfig(first_action_from=(), final_action_weight=3.0),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=150, batch_size=32, log_every=7),
)


def train(path: Path, config: RunConfig = TINY, **options: Any) -> RunDirectory:
    train_options = TrainOptions(**{"seed": 1, "save_every_s": 0.0, **options})
    return train_run(make_robot_demos(), config, path, options=train_options)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("finished") / "run")


def test_run_records_its_settings_and_loads(finished_run: RunDirectory):
    record = finished_run.read_record()
    assert record.config == TINY
    assert (record.seed, record.task) == (1, "none")
    assert record.demos.fingerprint == make_robot_demos().fingerprint
    assert {"torch", "numpy", "nsde_policy"} <= set(record.versions)
    records = list(finished_run.read_metrics())
    assert [r["step"] for r in records] == [*range(7, 150, 7), 150]
    assert {"flow", "diffusion", "denoiser", "seconds"} <= set(records[0])
    policy = Policy.from_pretrained(finished_run.path)
    assert policy.select_action(np.zeros(4)).shape == (3,)
    assert len(policy.calibration.mean) == 4 + 3 + 1  # an angle has two features
    with policy.session(rate_hz=40, policy_hz=20) as session:
        assert session.step(np.zeros(4)).shape == (3,)


def test_killed_run_resumes_with_identical_weights(finished_run: RunDirectory, tmp_path: Path):
    """Kill a run with SIGKILL at random times; its weights can be loaded at any time."""
    path, rng = tmp_path / "run", random.Random(3)
    kills = 0
    while kills < 8:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            train(path, resume=True)
            os._exit(0)
        time.sleep(rng.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        else:  # it finished before the signal: start again
            for file in path.iterdir():
                file.unlink()
        if RunDirectory(path).model.exists():
            load_model(RunDirectory(path))
    resumed = train(path, resume=True)
    assert fingerprint(resumed.read_weights()) == fingerprint(finished_run.read_weights())
    steps = [record["step"] for record in resumed.read_metrics()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 150


@pytest.mark.parametrize(("presses", "kept"), [(1, 6), (2, None)])
def test_run_interrupted_within_a_step_resumes_with_identical_weights(
    presses: int, kept: int | None, finished_run: RunDirectory, tmp_path: Path, monkeypatch: Any
):
    """The first Ctrl-C ends training after the step, far from any record; the second ends it in the step."""
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(_: Any, step: int) -> None:
        for _ in range(presses if step == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    rare = replace(TINY, train=replace(TINY.train, log_every=100))
    with monkeypatch.context() as patch:
        patch.setattr(TableSource, "load", interrupt)
        message = "interrupted at step 6; continue with the same command" if kept else "^$"
        with pytest.raises(KeyboardInterrupt, match=message):
            train(tmp_path / "run", rare, save_every_s=1e9)
    run = RunDirectory(tmp_path / "run")
    assert run.training.exists() == bool(kept)
    assert signal.getsignal(signal.SIGINT) is handler
    assert fingerprint(train(run.path, rare, resume=True).read_weights()) == fingerprint(
        finished_run.read_weights()
    )
    assert [record["step"] for record in run.read_metrics()] == [*filter(None, [kept]), 100, 150]


def test_only_one_process_trains_into_a_run_directory(tmp_path: Path):
    path, short = tmp_path / "run", replace(TINY, train=replace(TINY.train, steps=14))
    started, started_in_child = os.pipe()
    child = os.fork()
    if child == 0:
        train(path, short, monitor=lambda _: os.write(started_in_child, b"1") and signal.pause())
        os._exit(1)
    try:
        assert os.read(started, 1) == b"1"
        for resume in (False, True):
            with pytest.raises(CheckpointError, match="another process is writing"):
                train(path, short, resume=resume)
        assert RunDirectory(path).read_record().config == short  # readers are not locked out
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (path / f"model.safetensors.0{PARTIAL}").write_bytes(b"left by the killed process")
    assert fingerprint(train(path, short, resume=True).read_weights())
    assert not list(path.glob(f"*{PARTIAL}"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "already holds a run; continue with --resume"),
        ({"resume": True, "seed": 5}, "other settings, another seed"),
        (
            {"resume": True, "config": replace(TINY, chunk=4)},
            r"other settings.*\(chunk is \d+ there and 4 here\)",
        ),
    ],
)
def test_existing_run_is_not_overwritten(finished_run: RunDirectory, options: Any, message: str):
    before = finished_run.model.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        train(finished_run.path, **options)
    assert finished_run.model.read_bytes() == before


def test_resuming_nothing_is_reported(finished_run: RunDirectory, tmp_path: Path, caplog: Any):
    caplog.set_level("INFO")
    check_files(finished_run, resume=True)
    assert not caplog.messages
    check_files(RunDirectory(tmp_path / "new"), resume=True)
    assert "holds no checkpoint to resume: training starts from the beginning" in caplog.text


def test_batches_that_cannot_be_divided_are_refused_by_the_flag_that_sets_them(monkeypatch):
    monkeypatch.setattr(distributed, "is_distributed", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    odd = replace(TINY, selection=SelectionConfig("auto", train=TrainConfig(batch_size=9)))
    sizes = odd.batch_sizes
    assert distributed.split_batch(sizes.pop("--batch-size")) == TINY.train.batch_size // 2
    ((flag, size),) = sizes.items()
    with pytest.raises(ConfigError, match=r"a batch of 9 .* 2 processes: use --selection.train.batch-size 8"):
        distributed.split_batch(size, flag)


def test_folder_with_other_files_is_rejected(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(CheckpointError, match="not a run"):
        train(tmp_path)


def test_diverging_run_raises_and_keeps_its_last_finite_state(tmp_path: Path):
    diverging = replace(TINY, train=replace(TINY.train, learning_rate=1e12, clip=1e30, warmup=0.5))
    with pytest.raises(NsdePolicyError, match=r"diverged before step \d+: .* lower train.learning-rate"):
        train(tmp_path / "run", diverging)
    kept = RunDirectory(tmp_path / "run")
    if kept.model.exists():
        load_model(kept)
    assert list(kept.read_metrics()) == [] or "flow" in next(kept.read_metrics())


def edit_config(r: RunDirectory, width: int | None = None, **changes: Any) -> None:
    values = json.loads(r.config.read_text()) | changes
    if width is not None:
        values["config"]["model"]["network"]["width"] = width
    r.config.write_text(json.dumps(values))


def edit_weight(r: RunDirectory, end: str, value: float) -> None:
    weights = r.read_weights()
    next(tensor for name, tensor in weights.items() if name.endswith(end)).view(-1)[0] = value
    r.save_weights(weights)


DAMAGE: dict[str, tuple[Callable[[RunDirectory], Any], str]] = {
    "no folder": (lambda r: [f.unlink() for f in r.path.iterdir()], "is not a run directory"),
    "config is not JSON": (lambda r: r.config.write_text("{"), "not valid JSON"),
    "newer format": (lambda r: edit_config(r, format=9), "its format is 9, expected 1.*: train again"),
    "unknown setting": (lambda r: edit_config(r, config={"modell": {}}), "closest is 'model'"),
    "sizes missing": (lambda r: edit_config(r, layout={}), "needs the setting 'obs_dim'"),
    "networks of gigabytes": (lambda r: edit_config(r, width=30_000), "make more than [0-9]+ parameters"),
    "wrong shapes": (lambda r: edit_config(r, width=32), "does not match its config.json"),
    "weights missing": (lambda r: r.model.unlink(), "cannot read"),
    "weights truncated": (lambda r: r.model.write_bytes(r.model.read_bytes()[:-50]), "cannot read"),
    "weights are a pickle": (lambda r: torch.save({}, r.model), "cannot read"),
    "weights not finite": (lambda r: edit_weight(r, "weight", math.nan), "not finite"),
    "one weight missing": (
        lambda r: r.save_weights(dict(list(r.read_weights().items())[1:])),
        "does not match its config.json",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_run_raises_a_one_line_error(finished_run: RunDirectory, tmp_path: Path, name: str):
    damage, message = DAMAGE[name]
    shutil.copytree(finished_run.path, tmp_path, dirs_exist_ok=True)
    damage(RunDirectory(tmp_path))
    with pytest.raises(CheckpointError, match=message) as raised:
        Policy.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "calibration.json", "model.safetensors"])
def test_random_damage_raises_only_one_line_errors(finished_run: RunDirectory, tmp_path: Path, name: str):
    """`benchmarks/attack.py --format run` tries more kinds of damage, and more often."""
    shutil.copytree(finished_run.path, tmp_path, dirs_exist_ok=True)
    content, rng, refused = (tmp_path / name).read_bytes(), random.Random(name), 0
    for _ in range(30):
        at, size = rng.randrange(len(content)), rng.randint(0, 20)
        change = rng.choice((b"", rng.randbytes(size), b"9" * size, content[at : at + size] * 3))
        (tmp_path / name).write_bytes(content[:at] + change + content[at + size :])
        try:
            action = Policy.from_pretrained(tmp_path).select_action(np.zeros(4))
        except NsdePolicyError as error:
            refused += 1
            if "\n" in str(error):
                raise
        else:
            assert np.isfinite(action).all()
    assert refused > 10


def test_training_state_that_does_not_match_raises(finished_run: RunDirectory, tmp_path: Path):
    shutil.copytree(finished_run.path, tmp_path, dirs_exist_ok=True)
    run = RunDirectory(tmp_path)
    state = run.read_tensors(run.training)
    run.save_tensors(run.training, {k: v for k, v in state.items() if k != "generator"})
    with pytest.raises(CheckpointError, match="does not match these settings"):
        train(tmp_path, resume=True)
