"""Tests for `compare` and `report` in environments without a task of their own, for runs of task none."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import Demonstrations, Episode
from nsde_policy.eval.compare.result import read_comparison
from nsde_policy.eval.report.collect import ReportRun
from nsde_policy.eval.report.page import format_page
from nsde_policy.run_config import TrainConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.run import train_run
from tests.eval.test_report import Page
from tests.helpers.browser import DESKTOP, open_page, wait_until
from tests.helpers.comparisons import make_comparison, make_entry

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PLAY = ["--workers", "1", "--device", "cpu", "--latency-rounds", "0"]
SHORT = ["--env", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 20}']


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Train two policies on random demonstrations, without a task."""
    folder, runs, rng = tmp_path_factory.mktemp("runs"), [], np.random.default_rng(0)
    obs, act = rng.uniform(-1, 1, (3, 20, 3)), rng.uniform(-2, 2, (3, 20, 1))
    demos = Demonstrations.from_episodes(
        [Episode(*each) for each in zip(obs.astype(np.float32), act.astype(np.float32), strict=True)]
    )
    for method in ("knn", "regression"):
        config = get_task("none").preset("fast", method)
        config = config.replace_parts(train=TrainConfig(steps=4, batch_size=8, log_every=2).to_dict())
        runs.append(folder / f"{method}-0")
        train_run(demos, config, runs[-1], seed=0)
    return runs


def run(command: str, runs: Sequence[Path], *args: str | Path) -> int:
    return main([command, *map(str, runs), *PLAY, *map(str, args)])


def test_runs_without_a_task_are_compared_in_a_given_environment(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert run("compare", runs, *SHORT, "--episodes", "3", "--out", out) == 0
    found, text = read_comparison(out / "comparison.json"), capsys.readouterr().out
    assert (found.task, found.env_kwargs) == ("Pendulum-v1", {"max_episode_steps": 20})
    assert [entry.episodes.success for entry in found.entries] == [None, None]
    assert found.entries[0].episodes.steps == (20, 20, 20)
    assert text.startswith("Pendulum-v1, max_episode_steps=20 seeds 100000 to 100002")
    assert "mean return | mean steps |" in text
    assert "success" not in text
    assert (out / "comparison.md").read_text() == text


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    files = ["--out", folder / "report.html", "--cache", folder / "cache"]
    assert run("report", runs, *SHORT, "--episodes", "3", *files) == 0
    return folder / "report.html"


def test_page_without_a_scene_has_scores_and_settings(report: Path):
    page = Page(report.read_text())
    names = {attributes.get("id") for _, attributes in page.elements}
    assert {"scores", "differences", "settings"} <= names
    assert "explorer" not in names
    text = " ".join(text for _, text in page.texts)
    assert ": mean return −" in text
    assert "McNemar" not in text
    assert page.data()["runs"][0]["success"] is None
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links <= {f"#{name}" for name in names}


def test_page_with_a_scene_works_without_successes(browser: "Browser", tmp_path: Path):
    entries = [make_entry(), make_entry("knn")]
    unknown = (
        msgspec.structs.replace(each, episodes=msgspec.structs.replace(each.episodes, success=None))
        for each in entries
    )
    found = make_comparison(*unknown)
    (tmp_path / "report.html").write_text(format_page(found, [ReportRun(each) for each in found.entries]))
    opened = open_page(browser.new_context(viewport=DESKTOP))
    opened.page.goto((tmp_path / "report.html").as_uri())
    wait_until(opened.page, "state.episodes.length === 2")
    assert opened.page.locator("#explorer .filters button").all_inner_texts() == ["all seeds 60"]
    assert opened.page.locator(".scenes figcaption b").first.inner_text().startswith("reward ")
    assert opened.page.locator(".outcomes:visible").count() == 0
    assert opened.errors == []
    opened.page.context.close()


def test_an_environment_must_fit_the_runs(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run("compare", runs, "--episodes", "2", "--out", tmp_path) == 2
    assert "no environment to roll out in: give one with --env" in capsys.readouterr().err
    assert run("compare", runs, "--env", "MountainCarContinuous-v0", "--out", tmp_path) == 2
    assert "its observation has 2 values" in capsys.readouterr().err
