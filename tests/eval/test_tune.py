"""Tests for `nsde-policy tune`: the same result with any number of processes, resuming, presets, errors."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.eval.evaluate import EvaluationConfig, evaluate_policy
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tune import search
from nsde_policy.eval.tune import trial as tune_trial
from nsde_policy.eval.tune.search import Search, list_rungs
from nsde_policy.eval.tune.space import (
    AT_ONCE,
    RANDOM_TRIALS,
    make_sampling_space,
    make_training_space,
    start_study,
)
from nsde_policy.eval.tune.trial import Trial, TuneSetup, run_trial
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.tasks import get_task
from nsde_policy.training.train import TrainOptions
from tests.helpers.shared_files import make_once

QUICK = ["--steps", "30", "--width", "16", "--select", "none", "--preset", "auto", "--device", "cpu"]
ENV = ["--env", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 8}']
SEARCH = ["--trials", "2", "--episodes", "1", *ENV, *QUICK]
STORE = "pendulum.zarr"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a swinging pendulum with a torque that follows from its speed."""
    path, rng = tmp_path_factory.mktemp("demos") / STORE, np.random.default_rng(0)
    with DemoWriter(path, rate_hz=20) as writer:
        for phase in rng.uniform(0, 6, 8):
            angle = np.sin(np.arange(40) / 5 + phase)
            speed = np.gradient(angle) * 20
            obs = np.stack([np.cos(angle), np.sin(angle), speed], 1).astype(np.float32)
            writer.append(Episode(obs, np.clip(-speed, -2, 2)[:, None].astype(np.float32)))
    return path


@pytest.fixture(scope="module")
def searches(store: Path, shared_folder: Path) -> dict[int, Path]:
    """Run the same search with one process, and with four, of which some train ahead."""

    def fill(folder: Path) -> None:
        shutil.copytree(store, folder / STORE)
        for workers in (1, 4):
            flags = ["--workers", str(workers), "--out", str(folder / str(workers)), *SEARCH]
            assert main(["tune", "--demos", str(folder / STORE), *flags]) == 0

    folder = make_once(shared_folder / "searches", fill)
    return {workers: folder / str(workers) for workers in (1, 4)}


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_number_of_processes_does_not_change_the_result(searches: dict[int, Path]):
    one, two = searches[1], searches[4]
    assert (one / "trials.json").read_bytes() == (two / "trials.json").read_bytes()
    assert (one / "preset.json").read_bytes() == (two / "preset.json").read_bytes()
    weights = [fingerprint(RunDirectory(folder / "best").read_weights()) for folder in (one, two)]
    assert weights[0] == weights[1]
    trained = {path.parent.name for path in one.glob("*/model.safetensors")}
    finals = {"final-00", "final-01"}
    assert {path.parent.name for path in two.glob("*/model.safetensors")} <= trained | finals


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_cluster_does_not_change_the_result(searches: dict[int, Path], tmp_path: Path):
    flags = ["--demos", str(searches[1].with_name(STORE)), "--ray", "local", *SEARCH]
    for attempt in ("1", "2"):  # Ray has limits of 30 s, which busy machines exceed
        out = tmp_path / attempt
        command = [sys.executable, "-m", "nsde_policy", "tune", *flags, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    for name in ("trials.json", "preset.json"):
        assert (out / name).read_bytes() == (searches[1] / name).read_bytes()


@pytest.mark.slow
def test_winner_scored_best_of_the_candidates_that_reached_the_last_rung(searches: dict[int, Path]):
    found, preset = read(searches[1], "trials.json"), read(searches[1], "preset.json")
    finalists = [
        key.split("-")[1] for key in found["scores"] if key.startswith("training") and key.endswith("2")
    ]
    assert "00" in finalists  # the given settings
    means = {
        index: np.mean([found["scores"][f"training-{index}-{rung}"]["value"] for rung in range(3)])
        for index in finalists
    }
    best = found["settings"][f"training-{max(means, key=means.__getitem__)}-2"]
    assert preset["model"]["noise"] == best["model.noise"]
    assert preset["model"]["sampling"]["alpha"] == best["model.sampling.alpha"]
    assert preset["chunk"] == best["chunk"]


@pytest.mark.slow
def test_search_that_was_interrupted_repeats_no_training(
    searches: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    shutil.copytree(searches[1], out)
    whole = read(out, "trials.json")
    lost = [key for key in whole["scores"] if key.startswith("training-01") or key in ("best", "default")]
    for key in lost:
        del whole["scores"][key]
    (out / "trials.json").write_text(json.dumps(whole))
    shutil.rmtree(out / "trial-01-0")
    shutil.rmtree(out / "best")
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    flags = ["--demos", str(searches[1].with_name(STORE)), "--workers", "1", "--out", str(out), *SEARCH]
    assert main(["tune", *flags]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["tune", *flags, "--resume", "--seed", "1"]) == 2
    assert "other flags or of another version (seed is 0 there and 1 here)" in capsys.readouterr().err
    damaged = json.dumps({**whole, "scores": {"best": {"value": "high"}}})
    (out / "trials.json").write_text(damaged)
    assert main(["tune", *flags, "--resume"]) == 2
    assert "damaged" in capsys.readouterr().err
    (out / "trials.json").unlink()
    assert main(["tune", *flags, "--resume"]) == 2
    assert "holds no search" in capsys.readouterr().err
    (out / "trials.json").write_text(json.dumps(whole))
    assert main(["tune", *flags, "--resume", "--json", "-"]) == 0
    printed = capsys.readouterr()
    store = searches[1].with_name(STORE)
    assert f"nsde-policy train --demos {store} --env Pendulum-v1 --env-kwargs" in printed.err
    assert {line.split(" | ")[0] for line in printed.err.splitlines() if " | " in line} == set(lost)
    found = json.loads(printed.out)
    assert found["best"] == read(searches[1], "trials.json")["scores"]["best"]
    is_better = found["best"]["value"] > found["default"]["value"]
    assert ("not better than the given ones" in printed.err) != is_better
    assert (out / "trials.json").read_bytes() == (searches[1] / "trials.json").read_bytes()
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


@pytest.mark.slow
def test_a_damaged_final_run_is_not_taken_for_a_finished_one(
    searches: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    shutil.copytree(searches[1], out)
    weights = out / "best/model.safetensors"
    whole = weights.read_bytes()
    flags = ["--demos", str(searches[1].with_name(STORE)), "--workers", "1", "--out", str(out), *SEARCH]
    for file in weights, out / "best/config.json", out / "best/calibration.json":
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        assert main(["tune", *flags, "--resume"]) == 2
        assert f"delete {out / 'best'}, and --resume trains it again" in capsys.readouterr().err
        file.write_bytes(content)
    shutil.rmtree(out / "best")
    assert main(["tune", *flags, "--resume"]) == 0
    assert weights.read_bytes() == whole


@pytest.mark.slow
def test_train_takes_the_preset_that_a_search_wrote(
    searches: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    preset = searches[1] / "preset.json"
    flags = ["--demos", str(searches[1].with_name(STORE)), "--preset", str(preset), "--device", "cpu"]
    assert main(["train", *flags, "--out", str(tmp_path / "run"), "--seed", "3", *ENV]) == 0
    weights = [
        fingerprint(RunDirectory(run).read_weights()) for run in (tmp_path / "run", searches[1] / "best")
    ]
    assert weights[0] == weights[1]
    capsys.readouterr()
    assert main(["train", *flags, "--steps", "7", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["train"]["steps"] == 7
    assert main(["train", *flags, "--policy", "knn"]) == 2
    assert "add --policy neural_sde" in capsys.readouterr().err
    assert main(["train", *flags[:2], "--preset", str(searches[1])]) == 2
    assert f"use --preset {preset}" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_are_searched_on_held_out_episodes_without_an_environment(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    flags = ["--demos", str(store), "--task", "none", "--workers", "2", "--out", str(out), "--trials", "2"]
    assert main(["tune", *flags, *QUICK, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["value"] < 0
    assert found["settings"].keys() == {"model.noise", "model.history", "model.network.width", "train.steps"}
    assert len(RunDirectory(out / "best").read_record().demos.held_out) == 2


def search_quickly(
    setup: TuneSetup, out: Path, monkeypatch: pytest.MonkeyPatch, *, workers: int
) -> tuple[Search, list[Trial]]:
    """Run a search whose trials take a few milliseconds; return it, and all trials that were begun."""
    begun, trained, training = list[Trial](), set[Path](), set[Path]()

    def score(given: TuneSetup, trial: Trial) -> Estimate:
        begun.append(trial)
        assert trial.run not in training, "two processes train one run"
        training.update({trial.run} - trained)
        assert given.config.selection.horizon == given.config.chunk == setup.config.chunk
        value = np.random.default_rng([trial.seed, trial.seeds[0], *map(ord, str(trial.trained))]).random()
        time.sleep(value / 200)
        trained.add(trial.run)
        training.discard(trial.run)
        return Estimate(value, 0.0, 0.0, len(trial.seeds))

    monkeypatch.setattr(search, "run_trial", score)
    monkeypatch.setattr(search, "train_trial", lambda *_: None)
    out.mkdir(exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        pool.capacity = workers  # type: ignore[attr-defined]
        found = Search(setup, out, trials=9, episodes=5, seed=0)
        found.run(pool, resume=(out / "trials.json").exists())  # type: ignore[arg-type]
    return found, begun


@pytest.fixture
def pusht_setup(store: Path) -> TuneSetup:
    config = get_task("pusht").preset("default")
    return TuneSetup(config, TrainOptions("cpu"), store, "pusht", None, {}, offline=False)


def test_sampling_training_and_the_final_runs_are_scored_on_different_initial_states(
    pusht_setup: TuneSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found, begun = search_quickly(pusht_setup, tmp_path / "out", monkeypatch, workers=1)
    assert begun == found.asked, "one process begins nothing that is not asked for"
    finals = {seed for trial in begun[-2:] for seed in trial.seeds}
    sampling = {seed for trial in begun[:-2] if not trial.trained for seed in trial.seeds}
    training = {seed for trial in begun[:-2] if trial.trained for seed in trial.seeds}
    assert [len(sampling), len(training), len(finals)] == [15, 15, 15]
    assert len(sampling | training | finals) == 45


def test_processes_that_would_wait_begin_likely_trials_which_change_nothing(
    pusht_setup: TuneSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, _ = search_quickly(pusht_setup, tmp_path / "1", monkeypatch, workers=1)
    many, begun = search_quickly(pusht_setup, tmp_path / "8", monkeypatch, workers=8)
    key = dataclasses.astuple
    assert [key(each)[1:] for each in many.asked] == [key(each)[1:] for each in one.asked]
    assert read(tmp_path / "8", "trials.json") == read(tmp_path / "1", "trials.json")
    assert len(begun) > len(many.asked), "some guesses are wrong"
    whole = read(tmp_path / "8", "trials.json")
    kept = {
        key: score for key, score in whole["scores"].items() if key.startswith("training") and key[-1] != "2"
    }
    (tmp_path / "8" / "trials.json").write_text(json.dumps({**whole, "scores": kept}))
    search_quickly(pusht_setup, tmp_path / "8", monkeypatch, workers=8)
    assert read(tmp_path / "8", "trials.json") == whole


def test_resuming_a_search_does_not_try_failed_candidates_again(
    pusht_setup: TuneSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    search_quickly(pusht_setup, out, monkeypatch, workers=2)
    whole = read(out, "trials.json")
    del whole["scores"]["best"]
    whole["scores"]["training-02-0"] = "out of memory"
    (out / "trials.json").write_text(json.dumps(whole))
    _, begun = search_quickly(pusht_setup, out, monkeypatch, workers=2)
    assert "trial-02-0" not in {trial.run.name for trial in begun}
    assert read(out, "trials.json")["scores"]["training-02-0"] == "out of memory"


def test_largest_sizes_are_tried_after_the_given_settings(
    pusht_setup: TuneSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found, _ = search_quickly(pusht_setup, tmp_path / "out", monkeypatch, workers=1)
    first, second = (
        trial.trained
        for trial in found.asked
        if trial.run.name in ("trial-00-0", "trial-01-0") and trial.trained
    )
    sizes = {"train.steps", "model.network.width"}
    assert {path: second[path] / first[path] for path in first} == {
        path: 1 + (path in sizes) for path in first
    }


def test_first_candidates_do_not_depend_on_scores():
    space = make_training_space(get_task("pusht").preset("default"))

    def draw(*, told: int) -> list[dict]:
        study, distributions = start_study(space, seed=0)
        asked = [study.ask(distributions) for _ in range(AT_ONCE)]
        for i in range(AT_ONCE, RANDOM_TRIALS):
            if i - AT_ONCE < told:
                study.tell(asked[i - AT_ONCE], float(i))
            asked.append(study.ask(distributions))
        return [trial.params for trial in asked]

    assert draw(told=AT_ONCE - 1) == draw(told=0)


def test_budget_is_printed_and_nothing_is_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    flags = ["--demos", str(store), "--out", str(out), *ENV, *QUICK, "--trials", "24", "--episodes", "10"]
    assert main(["tune", *flags, "--dry-run"]) == 0
    trainings = 24 + 9 + 3 + 2
    episodes = 10 * (24 + 9 + 3 + 24 + 9 + 3 + 6)
    expected = f"budget: {trainings} trainings of about 30 steps, {episodes} episodes\n"
    assert capsys.readouterr().out == expected
    assert not out.exists()


def test_the_given_settings_are_among_the_candidates():
    config = get_task("pusht").preset("default")
    for space in (make_sampling_space(config), make_training_space(config)):
        assert all(
            distribution._contains(distribution.to_internal_repr(now)) for now, distribution in space.values()
        )
    assert make_training_space(get_task("pusht").preset("default", "knn")) == {}
    assert list_rungs(1) == [1, 1, 1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--demos", "nowhere.zarr"], "nowhere.zarr does not exist"),
        (["--env", "Nothing-v9"], "Nothing-v9"),
        (["--preset", "lost.json"], "lost.json cannot be read"),
        (["--trials", "0"], "--trials"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["tune", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("package", "flags"), [("optuna", []), ("submitit", ["--slurm", "gpu"])])
def test_a_missing_package_is_named_before_torch_is_imported(package: str, flags: list[str]):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from nsde_policy.cli.main import main\n"
        f"code = main(['tune', *{flags}]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert f"this needs {package}" in done.stderr


@pytest.fixture
def shipped_trial(tmp_path: Path) -> tuple[TuneSetup, Trial]:
    """Return a trial whose run is the shipped policy, which selects plans by their goal."""
    run = tmp_path / "run"
    shutil.copytree(SHIPPED_POLICY, run)
    config = RunDirectory(run).read_record().config
    setup = TuneSetup(config, TrainOptions(device="cpu"), None, "pusht", None, {}, offline=False)
    return setup, Trial(run, {}, {}, 0, range(200_000, 200_002))


@pytest.mark.slow
def test_trial_scores_a_policy_that_selects_plans_as_eval_does(shipped_trial, monkeypatch):
    setup, trial = shipped_trial
    monkeypatch.setattr(tune_trial, "_train", lambda setup, trial: None)
    seen = []
    make_pool = tune_trial.RolloutPool

    def note_pool(run, rollout, **kwargs):
        seen.append(rollout.sampling)
        return make_pool(run, rollout, **kwargs)

    monkeypatch.setattr(tune_trial, "RolloutPool", note_pool)
    found = run_trial(setup, trial)
    wanted = evaluate_policy(trial.run, EvaluationConfig(2, 200_000))
    assert seen[0].diffusion == 1.0, "not the 0.5 of one plan"
    assert found.value == wanted.scores.success.value


def test_trial_without_enough_memory_gets_a_reason_instead_of_a_score(shipped_trial, monkeypatch):
    def run_out(setup, trial):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(tune_trial, "_train", run_out)
    assert "out of memory" in run_trial(*shipped_trial)
