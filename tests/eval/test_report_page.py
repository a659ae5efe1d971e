"""Tests of the report page in a real browser: opened from a file, without network requests."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.eval.compare.result import read_comparison
from tests.helpers.browser import DESKTOP, MonitoredPage, check_layout, open_page, wait_until
from tests.helpers.recordings import decode_frames

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

EPISODES, FIRST = 3, 100_029  # which the shipped policy solves in 62 steps
LABELS = ["Neural SDE", "Regression, theirs"]


@pytest.fixture(scope="module")
def folder(
    browser_process: "Browser", quick_runs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Write a report on the shipped policy and a barely trained one; keep its intermediate files."""
    folder = tmp_path_factory.mktemp("report")
    play = ["--episodes", str(EPISODES), "--workers", "1"]
    play += ["--seed-start", str(FIRST), "--env-kwargs", '{"max_episode_steps": 80}']
    assert main(["compare", "shipped", str(quick_runs[2]), *play, "--out", str(folder)]) == 0
    return folder


def open_report(browser: "Browser", folder: Path, **options: Any) -> MonitoredPage:
    context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
    monitored = open_page(context)
    monitored.page.goto((folder / "report.html").as_uri())
    wait_until(monitored.page, "document.querySelectorAll('.scenes canvas').length === 2")
    wait_until(monitored.page, "state.episodes.length === 2")
    return monitored


def assert_no_errors_or_requests(monitored: MonitoredPage, folder: Path) -> None:
    assert monitored.errors == []
    assert set(monitored.requests) == {(folder / "report.html").as_uri()}, "the page requested another file"


def test_page_opens_without_errors_or_requests_at_any_size(browser: "Browser", folder: Path):
    monitored = open_report(browser, folder)
    page = monitored.page
    check_layout(page, "nav a")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 200, "it is dark"
    assert_no_errors_or_requests(monitored, folder)


def test_clicking_a_seed_shows_every_run_and_its_outcome(browser: "Browser", folder: Path):
    monitored = open_report(browser, folder)
    page = monitored.page
    for k in range(EPISODES):
        page.locator(".seeds button").nth(k).click()
        wait_until(page, f"document.querySelector('#seed-title').textContent === 'Seed {FIRST + k}'")
        captions = page.locator(".scenes figcaption").all_inner_texts()
        for label, caption, run in zip(LABELS, captions, page.evaluate("DATA.runs"), strict=True):
            assert label in caption
            assert ("success" if run["success"][k] else "failure") in caption
            assert str(run["steps"][k]) in caption or not run["success"][k]
    assert page.locator(".seeds button[aria-pressed=true]").count() == 1
    for button in page.locator("#explorer .filters button:not([disabled])").all():
        button.click()
        assert page.locator(".seeds button").count() == int(button.inner_text().split()[-1])
    assert_no_errors_or_requests(monitored, folder)


def test_page_plays_the_recorded_episodes(browser: "Browser", folder: Path):
    monitored = open_report(browser, folder)
    for number, entry in enumerate(read_comparison(folder / "comparison.json").entries):
        for k, frames in enumerate(decode_frames(entry)):
            shown = monitored.page.evaluate(f"loadEpisode({number}, {k})")
            scales = np.array(monitored.page.evaluate("DATA.scales"))
            np.testing.assert_allclose(shown, frames / scales)


def test_episodes_play_pause_and_scrub(browser: "Browser", folder: Path):
    monitored = open_report(browser, folder)
    page = monitored.page
    axes = page.locator("#progress text").all_text_contents()
    assert axes[:4] == ["Coverage over time", "0", "0.5", "1"]
    assert axes[4] == "0"
    assert axes[-1].endswith(" s")
    image = "document.querySelector('.scenes canvas').toDataURL()"
    end = page.evaluate(image)
    page.locator("#time").evaluate(
        "(slider) => { slider.value = 3; slider.dispatchEvent(new Event('input')); }"
    )
    assert page.locator("#clock").inner_text() == "0.3 s"
    assert page.evaluate(image) != end, "the image must change with time"
    page.locator("#play").click()
    wait_until(page, "state.time > 8")
    assert "Pause" in page.locator("#play").inner_text()
    page.locator("#play").click()
    assert page.evaluate("state.playing") is False
    page.locator("#speed").select_option("8")
    page.locator("#play").click()
    wait_until(page, "state.time === state.last && !state.playing")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("state.time === state.last - 1")
    chosen = page.evaluate("state.seed")
    page.keyboard.press("n")
    wait_until(page, f"state.seed === {(chosen + 1) % EPISODES}")
    assert_no_errors_or_requests(monitored, folder)
