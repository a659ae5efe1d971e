"""Tests for `compare` and `report` in environments without a task of their own, for runs of task none."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import Demonstrations, Episode
from nsde_policy.eval.compare.entries import Episodes
from nsde_policy.eval.compare.files import read_comparison
from nsde_policy.eval.report.collect import ReportRun, choose_seeds
from nsde_policy.eval.report.page import format_page
from nsde_policy.run_config import TrainConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.run import train_run
from tests.eval.test_report import Page
from tests.helpers.browser import DESKTOP, PHONE, open_page, wait_until
from tests.helpers.comparisons import make_comparison, make_entry

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = "tests.helpers.environments"
PLAY = ["--workers", "1", "--device", "cpu", "--latency-rounds", "0"]
SHORT = ["--env", "Pendulum-v1", "--env-kwargs", '{"max_episode_steps": 20}']


def make_demos(obs_dim: int, act_dim: int) -> Demonstrations:
    rng = np.random.default_rng(0)
    return Demonstrations.from_episodes(
        [
            Episode(
                rng.uniform(-1, 1, (20, obs_dim)).astype(np.float32),
                rng.uniform(-2, 2, (20, act_dim)).astype(np.float32),
            )
            for _ in range(3)
        ]
    )


def train(folder: Path, sizes: tuple[int, int]) -> list[Path]:
    """Train two policies of one size on random demonstrations, without a task."""
    runs = []
    for method in ("knn", "regression"):
        config = get_task("none").preset("fast", method)
        config = config.replace_parts(train=TrainConfig(steps=4, batch_size=8, log_every=2).to_dict())
        runs.append(folder / f"{method}-0")
        train_run(make_demos(*sizes), config, runs[-1], seed=0)
    return runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return train(tmp_path_factory.mktemp("runs"), (3, 1))


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
    assert {"scores.svg", "comparison.md"} <= {path.name for path in out.iterdir()}


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("imageio_ffmpeg")
    folder = tmp_path_factory.mktemp("report")
    files = ["--out", folder / "report.html", "--cache", folder / "cache"]
    assert run("report", runs, *SHORT, "--episodes", "3", *files) == 0
    return folder / "report.html"


def test_page_without_a_scene_has_scores_videos_and_curves(report: Path):
    page = Page(report.read_text())
    names = {attributes.get("id") for _, attributes in page.elements}
    assert {"scores", "videos", "differences", "training", "settings"} <= names
    assert "explorer" not in names
    assert [tag for tag, _ in page.elements].count("video") == 4, "best and worst of each run"
    text = " ".join(text for _, text in page.texts)
    assert ": mean return −" in text
    assert "McNemar" not in text
    assert page.data()["runs"][0]["success"] is None
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links <= {f"#{name}" for name in names}


def test_page_without_a_scene_works_in_a_browser(browser: "Browser", report: Path):
    for viewport in (DESKTOP, PHONE):
        context = browser.new_context(viewport=viewport, reduced_motion="reduce")
        opened = open_page(context)
        opened.page.goto(report.as_uri())
        wait_until(opened.page, "document.querySelectorAll('#training path.line').length > 0")
        assert opened.errors == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        context.close()


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


def test_environment_without_pictures_gives_no_videos(tmp_path: Path):
    runs, out = train(tmp_path, (4, 2)), tmp_path / "report.html"
    env = ["--env", f"{HERE}:BrokenEnv", "--episodes", "2", "--out", out, "--cache", tmp_path / "cache"]
    assert run("report", runs[:1], *env) == 0
    text = out.read_text()
    assert "<video" not in text
    assert "no videos, because its environment draws no pictures (render mode rgb_array)." in text


def test_an_environment_must_fit_the_runs(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run("compare", runs, "--episodes", "2", "--out", tmp_path) == 2
    assert "no environment to roll out in: give one with --env" in capsys.readouterr().err
    assert run("compare", runs, "--env", "MountainCarContinuous-v0", "--out", tmp_path) == 2
    assert "its observation has 2 values" in capsys.readouterr().err


def test_videos_show_the_best_and_the_worst_scores():
    episodes = Episodes(
        seed=(1, 2, 3, 4), score=(0.0, 5.0, -1.0, 2.0), success=None, metrics={}, steps=(1,) * 4
    )
    assert choose_seeds(episodes, 1) == [2, 3]
    assert choose_seeds(episodes, 3) == [2, 4, 1, 3]
    assert choose_seeds(episodes, 0) == []
