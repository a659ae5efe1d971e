"""Tests for runs.py and checkpoint.py: training runs that survive being killed, damaged and resumed."""

import json
import math
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.data import Demonstrations
from nsde_policy.errors import CheckpointError, ConfigError, DivergedError
from nsde_policy.inference.loading import load_model
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training.dataset import build_training_data, measure_demonstrations
from nsde_policy.training.run import train_run

TINY = RunConfig(
    demos=DemoConfig(final_action_weight=3.0),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=300, batch_size=32, log_every=7),
)


def robot() -> Demonstrations:
    """Ten demonstrations of a robot that is not Push-T: 4-D observations (one angle), 3-D actions."""
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(200, 4)).astype(np.float32) * 0.1
    return Demonstrations(
        obs=np.cumsum(steps, axis=0),
        act=rng.normal(size=(200, 3)).astype(np.float32),
        episode_ends=np.arange(20, 201, 20),
        angles=(2,),
    )


def run(path: Path, config: RunConfig = TINY, **options: Any) -> RunDirectory:
    return train_run(robot(), config, path, **{"task": "none", "seed": 1, "save_every_s": 0.0, **options})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return run(tmp_path_factory.mktemp("finished") / "run")


def test_a_run_holds_all_it_was_made_with_and_loads(finished: RunDirectory):
    record = finished.read_record()
    assert record.config == TINY
    assert (record.seed, record.task) == (1, "none")
    assert record.demos.fingerprint == robot().fingerprint
    assert {"torch", "numpy", "nsde_policy"} <= set(record.versions)
    records = list(finished.read_metrics())
    assert [r["step"] for r in records] == [*range(7, 300, 7), 300]
    assert {"flow", "diffusion", "denoiser", "seconds"} <= set(records[0])
    policy = Policy.from_pretrained(finished.path)
    assert policy.select_action(np.zeros(4)).shape == (3,)
    assert len(policy.calibration.mean) == 4 + 3 + 1  # an angle has two features
    with policy.session(rate_hz=40, policy_hz=20) as session:
        assert session.step(np.zeros(4)).shape == (3,)


def test_a_killed_run_resumes_bit_for_bit(finished: RunDirectory, tmp_path: Path):
    """Killed with SIGKILL at twenty random moments; loadable in between; the end is the same to the bit."""
    path, dice = tmp_path / "run", random.Random(3)
    kills = 0
    while kills < 20:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            run(path, resume=True)
            os._exit(0)
        time.sleep(dice.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        else:  # it was done before we struck: begin again
            for file in path.iterdir():
                file.unlink()
        if RunDirectory(path).model.exists():
            load_model(RunDirectory(path))
    resumed = run(path, resume=True)
    assert fingerprint(resumed.read_weights()) == fingerprint(finished.read_weights())
    steps = [record["step"] for record in resumed.read_metrics()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300


def test_stopping_and_resuming_at_every_save_changes_nothing(finished: RunDirectory, tmp_path: Path):
    class StopError(Exception):
        pass

    def stop_at(step: int) -> Callable[[Any], None]:
        def watch(progress: Any) -> None:
            if progress.step >= step:
                raise StopError

        return watch

    for step in (7, 100, 290):
        with pytest.raises(StopError):
            run(tmp_path / "run", resume=True, save_every_s=1e9, monitor=stop_at(step))
    assert fingerprint(run(tmp_path / "run", resume=True).read_weights()) == fingerprint(
        finished.read_weights()
    )


def test_ctrl_c_in_the_middle_of_a_step_saves_what_can_be_continued_bit_for_bit(
    finished: RunDirectory, tmp_path: Path
):
    struck = 0

    def strike(progress: Any) -> None:
        nonlocal struck
        if progress.step > 60 and not struck:
            struck = 1
            signal.setitimer(signal.ITIMER_REAL, 0.004)  # rings inside one of the next steps

    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt, match=r"interrupted at step \d+; continue with --resume"):
            run(tmp_path / "run", save_every_s=1e9, monitor=strike)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert struck
    assert fingerprint(run(tmp_path / "run", resume=True).read_weights()) == fingerprint(
        finished.read_weights()
    )


def test_a_finished_run_resumes_to_itself(finished: RunDirectory):
    before = fingerprint(finished.read_weights())
    assert fingerprint(run(finished.path, resume=True).read_weights()) == before


def test_sequential_training_resumes_in_the_middle_of_a_stage(tmp_path: Path):
    model = NeuralSDEConfig(
        schedule="sequential", network=NetworkConfig(kind="separate", width=16, depth=1), history=1
    )
    config = replace(TINY, model=model)
    whole = run(tmp_path / "whole", config)

    def stop(progress: Any) -> None:
        if progress.step > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", config, save_every_s=1e9, monitor=stop)
    parts = run(tmp_path / "parts", config, resume=True)
    assert fingerprint(parts.read_weights()) == fingerprint(whole.read_weights())


def test_another_seed_gives_another_run(finished: RunDirectory, tmp_path: Path):
    assert fingerprint(run(tmp_path / "run", seed=2).read_weights()) != fingerprint(finished.read_weights())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "already holds a run; continue with --resume"),
        ({"resume": True, "seed": 5}, "other settings, another seed"),
        ({"resume": True, "config": replace(TINY, chunk=4)}, "other settings"),
    ],
)
def test_a_run_is_never_overwritten_by_another(finished: RunDirectory, options: Any, message: str):
    before = finished.model.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        run(finished.path, **options)
    assert finished.model.read_bytes() == before


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CheckpointError, match="not a run"):
        run(tmp_path)


def test_a_diverging_run_keeps_its_last_good_state_and_names_the_cause(tmp_path: Path):
    wild = replace(TINY, train=replace(TINY.train, learning_rate=1e12, clip=1e30, warmup=0.5))
    with pytest.raises(DivergedError, match=r"diverged before step \d+: .* lower train.learning-rate"):
        run(tmp_path / "run", wild)
    kept = RunDirectory(tmp_path / "run")
    if kept.model.exists():
        load_model(kept)
    assert list(kept.read_metrics()) == [] or "flow" in next(kept.read_metrics())


DAMAGES: dict[str, tuple[Callable[[RunDirectory], Any], str]] = {
    "no folder": (lambda r: [f.unlink() for f in r.path.iterdir()], "is not a run directory"),
    "config is not JSON": (lambda r: r.config.write_text("{"), "not valid JSON"),
    "config is a list": (lambda r: r.config.write_text("[]"), "expected a JSON object"),
    "newer format": (lambda r: edit(r, format=9), "run format 9, this version reads 1"),
    "unknown setting": (lambda r: edit(r, config={"modell": {}}), "closest is 'model'"),
    "layout is null": (lambda r: edit(r, layout=None), "not a valid run record"),
    "config is empty": (lambda r: edit(r, config=[]), "not a valid run record"),
    "layout missing": (lambda r: edit(r, layout={}), "needs the setting 'obs_dim'"),
    "bad statistics": (lambda r: edit(r, layout={**layout(r), "increment_std": [0.0] * 7}), "increment_std"),
    "weights missing": (lambda r: r.model.unlink(), "cannot read"),
    "weights truncated": (lambda r: r.model.write_bytes(r.model.read_bytes()[:-50]), "cannot read"),
    "weights empty": (lambda r: r.model.write_bytes(b""), "cannot read"),
    "a pickle in disguise": (lambda r: r.model.write_bytes(b"\x80\x04cos\nsystem\n."), "cannot read"),
    "wrong shapes": (lambda r: edit(r, width=32), "does not match its config.json"),
    "not finite": (lambda r: poison(r), "not finite"),
    "a torch file in disguise": (lambda r: torch.save(Payload(r.path), r.model), "cannot read"),
    "a pickle with a payload": (
        lambda r: r.model.write_bytes(pickle.dumps(Payload(r.path))),
        "cannot read",
    ),
    "config is a pickle": (
        lambda r: r.config.write_bytes(pickle.dumps(Payload(r.path))),
        "not valid JSON",
    ),
    "weights of 9 GiB": (lambda r: os.truncate(r.model, 9 * 2**30), "the limit is 8589934592"),
    "config of 17 MiB": (lambda r: os.truncate(r.config, 17 * 2**20), "the limit is 16777216"),
    "weights are a pipe": (lambda r: pipe(r.model), "is not a regular file"),
    "config is endless": (
        lambda r: r.config.unlink() or r.config.symlink_to("/dev/zero"),
        "not a regular file",
    ),
    "config nested deeply": (lambda r: r.config.write_text("[" * 100_000), "not valid JSON"),
    "header of a terabyte": (
        lambda r: r.model.write_bytes((2**40).to_bytes(8, "little") + r.model.read_bytes()[8:]),
        "cannot read",
    ),
    "tensors that overlap": (lambda r: overlap(r), "cannot read"),
    "networks of terabytes": (lambda r: edit(r, width=10**7), "does not match its config.json"),
    "networks of gigabytes": (lambda r: edit(r, width=30_000), "make more than [0-9]+ parameters"),
    "networks without number": (lambda r: edit(r, width=10**30), "does not match its config.json"),
    "statistics missing": (lambda r: edit(r, layout=without(layout(r), "increment_std")), "increment_std"),
    "statistics not finite": (lambda r: edit(r, layout={**layout(r), "low": [math.nan] * 7}), "low"),
    "statistics too short": (lambda r: edit(r, layout={**layout(r), "low": [0.0] * 3}), "low"),
    "one weight missing": (lambda r: drop_one(r), "does not match its config.json"),
}


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._folder / "executed",)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def overlap(r: RunDirectory) -> None:
    """Let the second tensor begin where the first does."""
    content = r.model.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    first, second, *_ = (name for name in header if name != "__metadata__")
    header[second]["data_offsets"] = header[first]["data_offsets"]
    packed = json.dumps(header).encode()
    r.model.write_bytes(len(packed).to_bytes(8, "little") + packed + content[8 + size :])


def layout(r: RunDirectory) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(r.config.read_text())["layout"]
    return values


def edit(r: RunDirectory, width: int | None = None, **changes: Any) -> None:
    values = json.loads(r.config.read_text()) | changes
    if width is not None:
        values["config"]["model"]["network"]["width"] = width
    r.config.write_text(json.dumps(values))


def poison(r: RunDirectory) -> None:
    weights = r.read_weights()
    next(t for t in weights.values() if t.is_floating_point() and t.dim() == 2)[0, 0] = float("nan")
    r.save_weights(weights)


def drop_one(r: RunDirectory) -> None:
    weights = r.read_weights()
    weights.pop(next(iter(weights)))
    r.save_weights(weights)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_refused(finished: RunDirectory, tmp_path: Path, name: str):
    damage, message = DAMAGES[name]
    for file in finished.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage(RunDirectory(tmp_path))
    with pytest.raises(CheckpointError, match=message) as refused:
        Policy.from_pretrained(tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "executed").exists()


def test_the_payload_of_the_tests_would_create_a_file(tmp_path: Path):
    pickle.loads(pickle.dumps(Payload(tmp_path)))
    assert (tmp_path / "executed").exists()


def test_a_training_file_that_does_not_fit_is_refused(finished: RunDirectory, tmp_path: Path):
    for file in finished.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = finished.read_training_state()
    RunDirectory(tmp_path).save_training({k: v for k, v in state.items() if k != "generator"})
    with pytest.raises(CheckpointError, match="does not match these settings"):
        run(tmp_path, resume=True)


def test_final_actions_count_as_configured_and_unknown_observations_not_at_all():
    data = build_training_data(robot(), TINY, task="none")
    final = (data.weight[:, :4] == 0).all(dim=1)
    assert int(final.sum()) == 10
    assert bool((data.weight[final, 4:] == 3.0).all())
    assert bool((data.weight[~final] == 1.0).all())
    assert (
        len(
            build_training_data(
                robot(), replace(TINY, demos=DemoConfig(final_action_weight=0.0)), task="none"
            )
        )
        == 190
    )


def test_the_layout_is_measured_on_recorded_successors_only():
    layout = measure_demonstrations(robot(), TINY, task="none")
    pairs = build_training_data(
        robot(), replace(TINY, demos=DemoConfig(final_action_weight=0.0)), task="none"
    )
    d = pairs.x_next.shape[1]
    assert layout.low == tuple(torch.cat([pairs.x[:, :d], pairs.x_next]).amin(0).tolist())
    assert layout.circular == (2,)


def test_a_mirror_needs_a_task_that_has_one():
    with pytest.raises(ConfigError, match="no mirror symmetry"):
        build_training_data(robot(), replace(TINY, demos=DemoConfig(mirror=True)), task="none")


def test_a_policy_without_a_denoiser_loads_and_acts(tmp_path: Path):
    model = NeuralSDEConfig(
        denoiser=False,
        noise=0.0,
        network=NetworkConfig(width=8, depth=1),
        sampling=SamplingConfig(denoiser="off"),
    )
    path = run(tmp_path / "run", replace(TINY, model=model, train=TrainConfig(steps=3, batch_size=8))).path
    assert np.isfinite(Policy.from_pretrained(path).select_action(np.zeros(4))).all()
