"""Tests for training/selection.py and the commands: what is written, resumed, refused and damaged."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import Demonstrations
from nsde_policy.errors import CheckpointError
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.tasks import get_task
from nsde_policy.training.options import TrainingProgress
from nsde_policy.training.train import train_run
from tests.golden.behaviour import DATA
from tests.helpers.demo_stores import read_files
from tests.helpers.pixel_runs import write_pixel_store
from tests.helpers.selecting_runs import train_tiny

TINY_FLAGS = ["--demos.episodes", "12", "--train.steps", "1", "--device", "cpu"]


def read_both(path: Path) -> list[str]:
    """Return the fingerprints of the policy and of plan selection."""
    run = RunDirectory(path)
    return [fingerprint(part.read_weights()) for part in (run, run.selection)]


@pytest.fixture(scope="module")
def begun_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was interrupted in the dynamics model; do not change it."""
    path = tmp_path_factory.mktemp("begun") / "run"

    def interrupt(progress: TrainingProgress) -> None:
        if progress.title == "dynamics model" and progress.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tiny(path, monitor=interrupt)
    return path


def test_a_run_holds_the_goal_of_its_demonstrations(goal_run: Path):
    files = {"config.json", "model.safetensors", "rule.json", "training.safetensors", "metrics.jsonl"}
    assert files == {file.name for file in (goal_run / "selection").iterdir()}
    policy = Policy.from_pretrained(goal_run)
    rule = policy.selector.rule
    assert (rule.kind, rule.columns) == ("goal", (2, 3, 4))  # the pose of the block
    assert rule.threshold > 0
    steps = [record["step"] for record in RunDirectory(goal_run).selection.read_metrics()]
    assert steps == [5, 10, 15, 20]


def test_the_threshold_belongs_to_the_actions_that_are_judged(goal_run: Path, tmp_path: Path):
    path = train_tiny(tmp_path / "run", selection={"horizon": 32}).path
    assert read_both(path)[0] == read_both(goal_run)[0], "the policy is the same"
    rules = [Policy.from_pretrained(each).selector.rule for each in (path, goal_run)]
    assert rules[0].threshold > rules[1].threshold, "32 actions lead further than eight"


def test_an_interrupted_run_ends_with_the_weights_of_a_whole_one(
    goal_run: Path, begun_run: Path, tmp_path: Path
):
    path = tmp_path / "run"
    shutil.copytree(begun_run, path)
    for _ in range(2):  # the second time, the run is finished
        train_tiny(path, resume=True)
        assert read_both(path) == read_both(goal_run)
    assert (path / "selection/rule.json").read_bytes() == (goal_run / "selection/rule.json").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"steps": 21}},
        {"demos": {"mirror": False}},
        {"selection": {"noise": 0.1}},
        {"seed": 2},
    ],
)
def test_other_settings_are_refused_and_nothing_is_overwritten(
    change: dict[str, Any], goal_run: Path, begun_run: Path
):
    for path in (goal_run, begun_run):
        before = read_files(path)
        with pytest.raises(CheckpointError, match="was trained with other settings"):
            train_tiny(path, resume=True, **change)
        assert read_files(path) == before


def test_a_run_trained_without_selection_is_not_resumed_with_it(tmp_path: Path):
    off: dict[str, Any] = {"selection": {"select": "none"}, "demos": {"align_ends": False, "episodes": 12}}
    path = train_tiny(tmp_path / "run", **off).path
    assert not (path / "selection").exists()
    before = read_files(path)
    with pytest.raises(CheckpointError, match="was trained with other settings"):
        train_tiny(path, resume=True)
    assert read_files(path) == before


@pytest.mark.parametrize(
    ("diffusion", "reason"),
    [
        (1.0, "the demonstrations neither stay near a goal nor branch"),
        (0.0, "plans are sampled without noise and do not differ"),
    ],
)
def test_auto_trains_no_dynamics_model_where_nothing_is_selected(
    diffusion: float, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    obs = np.float32(np.outer(np.linspace(1, 2, 20), 0.9 ** np.arange(30)).reshape(-1, 1))
    demos = Demonstrations(obs, -obs, np.arange(30, 601, 30), rate_hz=10)
    config = get_task("none").preset("fast").replace_parts(selection={"select": "auto"}, train={"steps": 1})
    config = config.change({"model.sampling.diffusion": diffusion})
    run = train_run(demos, config, tmp_path / "run", task="none")
    assert f"plan selection: none ({reason})" in caplog.text
    assert not run.selection.path.exists()
    assert run.read_record().config.selection.select == "none"
    assert Policy.from_pretrained(run.path).candidates == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--policy knn --select goal", "knn returns the same plan every time, so there is nothing to select"),
        ("--demos.episodes 3 --select goal", "use --select support or --select none"),
        ("--task avoiding --demos.align-ends", "the task 'avoiding' has no rigid motions"),
        ("--demos.obs-columns 0 1 2 3 4", "set demos.align_ends to False"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    assert main(["train", *TINY_FLAGS, *flags.split(), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_features_that_change_in_training_are_not_selected_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = write_pixel_store(tmp_path / "store.zarr")
    flags = ["--demos", str(store), "--task", "pusht", "--obs", "pixels", "--policy", "diffusion"]
    assert main(["train", *flags, "--select", "support", "--out", str(tmp_path / "run")]) == 2
    assert "use --encoder keypoints, or leave out --select" in capsys.readouterr().err


def test_selection_is_refused_for_runs_without_it(capsys: pytest.CaptureFixture[str]):
    assert main(["eval", str(DATA / "run"), "--episodes", "1", "--select", "goal"]) == 2
    assert "no dynamics model, so plans cannot be selected by goal: train it with --select auto" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("missing", ["selection", "selection/rule.json"])
def test_run_without_its_selector_is_damaged(missing: str, goal_run: Path, tmp_path: Path):
    run = Path(shutil.copytree(goal_run, tmp_path / "run"))
    shutil.move(run / missing, tmp_path / "lost")
    with pytest.raises(CheckpointError, match=r"selects plans by goal, but has no selection/rule\.json"):
        Policy.from_pretrained(run)
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f"{metrics[0]}\n")  # not finished: the selector comes last
    assert Policy.from_pretrained(run).candidates == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("rule.json", b'{"kind": ', "rule.json"),
        ("rule.json", b'{"kind": "goal", "columns": [7]}', "names a column beyond its 5 observation columns"),
        ("rule.json", b'{"kind": "goal", "columns": [2]}', "size mismatch for goal"),
        ("model.safetensors", None, "selection/model.safetensors"),
    ],
)
def test_damaged_files_of_selection_are_named(
    file: str, content: bytes | None, message: str, goal_run: Path, tmp_path: Path, capsys: Any
):
    path = tmp_path / "run"
    shutil.copytree(goal_run, path)
    if content is None:  # the weights of the policy
        shutil.copy(path / file, path / "selection" / file)
    else:
        (path / "selection" / file).write_bytes(content)
    assert main(["eval", str(path), "--episodes", "1"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
