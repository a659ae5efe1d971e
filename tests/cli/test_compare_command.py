"""Tests for `nsde-policy compare`: real runs, trained for a few steps, to tables."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare import run as comparing
from nsde_policy.eval.compare.result import read_comparison
from nsde_policy.eval.compare.run import load_records, read_training_time
from nsde_policy.eval.names import choose_names
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.policy.loading import load_model
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task

pytestmark = pytest.mark.slow

PLAY = ["--episodes", "2", "--workers", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def out(quick_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert compare(quick_runs, "--out", str(out)) == 0
    return out


def compare(runs: Sequence[Path], *args: str) -> int:
    return main(["compare", *map(str, runs), *PLAY, *args])


def test_runs_are_compared_on_the_same_starts(quick_runs: list[Path], out: Path):
    comparison = read_comparison(out / "comparison.json")
    assert (comparison.task, comparison.seeds) == ("pusht", (100_000, 100_001))
    assert comparison.env_kwargs == {"reset_rule": "benchmark"}
    assert [(e.name, e.train_seed) for e in comparison.entries] == [
        ("neural_sde, ours", 0),
        ("neural_sde, ours", 1),
        ("regression, theirs", 0),
    ]
    for each in comparison.entries:
        assert each.episodes.seed == (100_000, 100_001)
        assert each.train_s is not None
    assert [e.calls_per_chunk for e in comparison.entries] == [8, 8, 1]
    _, model = load_model(RunDirectory(quick_runs[0]))
    assert comparison.entries[0].parameters == sum(p.numel() for p in model.parameters())
    text = (out / "report.html").read_text()
    assert "Neural SDE, ours" in text
    assert "Regression, theirs" in text


def test_the_same_command_resumes_without_new_episodes(
    quick_runs: list[Path], out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    before = read_comparison(out / "comparison.json")
    monkeypatch.setattr(comparing, "score_rollouts", None)
    assert compare(quick_runs, "--out", str(out)) == 0
    assert read_comparison(out / "comparison.json") == before
    assert compare(quick_runs[::-1], "--out", str(out)) == 0
    assert "**Regression, theirs**" in capsys.readouterr().out


def test_what_is_new_or_damaged_is_evaluated_again(quick_runs: list[Path], out: Path, tmp_path: Path):
    kept = len(list((out / "entries").iterdir()))
    assert kept == 3
    other = ["--out", str(out), "--seed-start", "5"]
    assert compare(quick_runs[2:], *other) == 0
    (added,) = sorted((out / "entries").iterdir(), key=lambda file: file.stat().st_mtime)[kept:]
    content = added.read_text()
    added.write_text(content[:100])
    assert compare(quick_runs[2:], *other) == 0
    assert added.read_text() == content
    for file in quick_runs[2].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = RunDirectory(tmp_path).read_weights()
    changed = {
        name: 0.9 * weight if weight.is_floating_point() else weight for name, weight in weights.items()
    }
    RunDirectory(tmp_path).save_weights(changed)
    assert compare([tmp_path], *other) == 0
    assert len(list((out / "entries").iterdir())) == kept + 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nothing to compare"),
        (["/nowhere"], "/nowhere does not exist"),
        (["RUN", "--out", "/proc/x"], "cannot be written"),
        (["RUN", "--env-kwargs", '{"reset_rule": "dice"}'], "dice"),
    ],
)
def test_bad_input_exits_with_code_2(
    quick_runs: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
):
    names = {"RUN": quick_runs[0]}
    out = [] if "--out" in args else ["--out", str(tmp_path / "out")]
    assert main(["compare", *(str(names.get(arg, arg)) for arg in args), "--episodes", "1", *out]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_runs_with_equal_names_are_rejected(quick_runs: list[Path], tmp_path: Path):
    twin = tmp_path / "twin"
    twin.mkdir()
    for name in ("config.json", "model.safetensors"):
        (twin / name).write_bytes((quick_runs[0] / name).read_bytes())
    with pytest.raises(ComparisonError, match="cannot be told apart"):
        choose_names(load_records([quick_runs[0], twin], RolloutConfig()))


@pytest.mark.parametrize("seed", [0, 1])
def test_runs_on_other_demonstrations_are_not_pooled(seed: int, quick_runs: list[Path]):
    record = replace(RunDirectory(quick_runs[0]).read_record(), config=get_task("pusht").preset("fast"))
    other = replace(record, seed=seed, demos=replace(record.demos, fingerprint="f" * 64))
    names = choose_names({Path("a"): record, Path("b"): other, Path("c"): replace(record, seed=5)})
    assert names[Path("b")] != names[Path("a")]
    assert names[Path("c")] == names[Path("a")]


def test_training_time_adds_up_over_resumed_runs(tmp_path: Path):
    run = RunDirectory(tmp_path)
    assert read_training_time(run) is None
    for seconds in (1.0, 2.0, 0.5, 4.0):
        run.append_metrics({"step": 1, "seconds": seconds})
    assert read_training_time(run) == 6.0
