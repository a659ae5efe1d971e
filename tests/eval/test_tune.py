"""Tests for `nsde-policy tune`: shared studies, repeated trials, presets, errors."""

import json
from pathlib import Path

import numpy as np
import optuna
import pytest

from nsde_policy.cli.main import NSDE_POLICY, main
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.errors import ConfigError
from nsde_policy.eval.tune import search as tune_search
from nsde_policy.eval.tune.search import Search
from nsde_policy.eval.tune.space import list_first_trials, make_sampling_space, make_training_space
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.tasks import get_task

QUICK = ["--steps", "30", "--width", "16", "--select", "none", "--preset", "auto", "--device", "cpu"]
ENV = ["--env", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 20}']
SEARCH = ["--episodes", "1", *ENV, *QUICK]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a swinging pendulum with a torque that follows from its speed."""
    path, rng = tmp_path_factory.mktemp("demos") / "pendulum.zarr", np.random.default_rng(0)
    with DemoWriter(path, rate_hz=20) as writer:
        for phase in rng.uniform(0, 6, 8):
            angle = np.sin(np.arange(40) / 5 + phase)
            speed = np.gradient(angle) * 20
            obs = np.stack([np.cos(angle), np.sin(angle), speed], 1).astype(np.float32)
            writer.append(Episode(obs, np.clip(-speed, -2, 2)[:, None].astype(np.float32)))
    return path


def list_flags(store: Path, out: Path, trials: int, workers: int = 1) -> list[str]:
    return [
        *("tune", "--demos", str(store), "--out", str(out), "--trials", str(trials)),
        *("--workers", str(workers), *SEARCH),
    ]


def make_search(store: Path, out: Path, trials: int, *flags: str) -> Search:
    command = NSDE_POLICY.parse([*list_flags(store, out, trials), *flags])
    return command._make_search()  # type: ignore[attr-defined]


def list_weights(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}


def list_trials(out: Path) -> list[optuna.trial.FrozenTrial]:
    file = optuna.storages.journal.JournalFileBackend(str(out / "study.log"))
    storage = optuna.storages.JournalStorage(file)
    return optuna.load_study(study_name=out.name, storage=storage).trials


@pytest.mark.slow
def test_a_search_continues_its_study_and_its_trials_and_preset_can_be_repeated(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    assert main([*list_flags(store, out, 2), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["train"]["steps"] == 30
    assert not out.exists()
    assert main(list_flags(store, out, 2)) == 0
    assert "budget: 2 trials of 1 to 3 trainings of about 30 steps" in capsys.readouterr().err
    weights = list_weights(out)
    capsys.readouterr()
    assert main([*list_flags(store, out, 4, workers=2), "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert {path: list_weights(out)[path] for path in weights} == weights, "nothing is trained twice"
    trials = list_trials(out)
    assert sum(trial.state.is_finished() for trial in trials) in (4, 5)
    result = json.loads(printed.out)
    best = max((each for each in trials if each.state.name == "COMPLETE"), key=lambda each: each.value)
    assert (result["trial"], result["settings"]) == (best.number, best.params)
    assert len(best.intermediate_values) == 3
    is_better = result["best"]["value"] > result["default"]["value"]
    assert ("do not beat the starting settings" in printed.err) != is_better

    final = printed.err.splitlines()[-1]
    assert final.startswith(f"wrote {out / 'preset.json'}: train with --preset ")
    again = ["train", "--demos", str(store), *ENV, "--device", "cpu", "--out", str(tmp_path / "again")]
    preset = out / f"trial-{best.number:02d}/preset.json"
    seeds = best.user_attrs["seeds of training 1"]
    assert seeds == {"training": 0, "first episode": 200_000}
    assert main([*again, "--preset", str(preset), "--seed", "0"]) == 0
    capsys.readouterr()
    score = ["eval", str(tmp_path / "again"), "--seed-start", "200000", "--episodes", "1", "--json", "-"]
    assert main(score) == 0
    assert json.loads(capsys.readouterr().out)["mean_return"]["value"] == best.intermediate_values[1]

    repeat = ["--preset", str(out / "preset.json"), "--seed", "3", "--out", str(tmp_path / "final")]
    assert main([*again, *repeat]) == 0
    runs = tmp_path / "final", out / f"best-{best.number:02d}"
    assert len({fingerprint(RunDirectory(run).read_weights()) for run in runs}) == 1
    assert main(["train", "--demos", str(store), "--preset", str(out)]) == 2
    assert f"use --preset {out / 'preset.json'}" in capsys.readouterr().err


def score_by_noise(search: Search, path: Path, config, seed: int, states: range):
    """Score settings without a training: the least noise is best."""
    path.mkdir(parents=True)
    return tune_search.Estimate(-config.model.noise, 0.0, 0.0, len(states))


def test_processes_of_several_folders_share_a_study(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Search, "score_run", score_by_noise)
    shared = ["--storage", str(tmp_path / "study.log")]
    first = make_search(store, tmp_path / "1/arm", 30, *shared)
    second = make_search(store, tmp_path / "2/arm", 40, *shared)
    assert first.join()
    assert not second.join(), "the settings of the first trials are queued once"
    first.run_trials(sampler_seed=0)
    second.run_trials(sampler_seed=1)
    trials = second.open_study().get_trials()
    assert len(trials) == 40
    folders = [len(list((tmp_path / name / "arm").glob("trial-*"))) for name in "12"]
    assert folders == [30, 10]
    trainings = [len(each.intermediate_values) for each in trials]
    assert {1, 3} <= set(trainings)
    best = min(each.params["model.noise"] for each in trials)
    assert second.open_study().best_trial.params["model.noise"] == best
    ends = [np.mean([each.params["model.noise"] for each in part]) for part in (trials[:10], trials[-10:])]
    assert ends[1] < 0.7 * ends[0], "later trials learn from earlier ones"


def test_settings_that_fail_end_their_trial_and_failing_default_settings_the_search(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failures = [{"width": 32}]

    def fail(search: Search, path: Path, config, seed: int, states: range):
        if config.model.network.width in failures[-1].values():
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return score_by_noise(search, path, config, seed, states)

    monkeypatch.setattr(Search, "score_run", fail)
    search = make_search(store, tmp_path / "search", 6)
    search.join()
    search.run_trials(sampler_seed=0)
    large = [each for each in list_trials(search.out) if each.params["model.network.width"] == 32]
    assert large
    assert {each.state.name for each in large} == {"PRUNED"}
    assert all("out of memory" in each.user_attrs["error"] for each in large)
    assert "| CUDA out of memory" in tune_search.describe_trial(large[0])
    failures.append({"width": 16})
    search = make_search(store, tmp_path / "failing", 6)
    search.join()
    with pytest.raises(RuntimeError, match="out of memory"):
        search.run_trials()


@pytest.mark.slow
def test_settings_are_searched_on_held_out_episodes_without_an_environment(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "search"
    flags = ["--demos", str(store), "--task", "none", "--workers", "1", "--out", str(out), "--trials", "1"]
    database = f"sqlite:///{tmp_path}/study.db"
    assert main(["tune", *flags, *QUICK, "--storage", database, "--json", "-"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["best"]["value"] < 0
    assert result["settings"].keys() == {"model.noise", "model.history", "model.network.width", "train.steps"}
    run = RunDirectory(out / f"best-{result['trial']:02d}")
    assert len(run.read_record().demos.held_out) == 2


def test_a_study_of_another_search_is_refused(store: Path, tmp_path: Path):
    out = tmp_path / "search"
    make_search(store, out, 2).join()
    with pytest.raises(tune_search.CheckpointError, match=r"seed is 0 there and 1 here"):
        make_search(store, out, 2, "--seed", "1").join()
    (out / "study.log").unlink()
    (out / "notes.txt").touch()
    with pytest.raises(tune_search.CheckpointError, match="is not empty and holds no search"):
        make_search(store, out, 2).join()
    (out / "notes.txt").unlink()
    for url in ("postgresq://me:secret@host/db", "postgresql://me:secret@host:port/db"):
        with pytest.raises(ConfigError, match=r"://… cannot store a study") as caught:
            make_search(store, out, 2, "--storage", url).join()
        assert "secret" not in str(caught.value)


def test_starting_settings_are_within_the_space():
    config = get_task("pusht").preset("default")
    space = {**make_sampling_space(config), **make_training_space(config)}
    start, largest = list_first_trials(space)
    sizes = {"train.steps", "model.network.width"}
    for path, (now, values) in space.items():
        assert start[path] == now
        assert largest[path] == now * (1 + (path in sizes))
        for value in (start[path], largest[path]):
            assert values._contains(values.to_internal_repr(value))
    assert make_training_space(get_task("pusht").preset("default", "knn")) == {}
