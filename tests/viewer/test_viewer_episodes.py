"""Tests of the page of episodes: `data view` and `score --report`."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.data.oddities import find_flags
from nsde_policy.viewer.episodes import group_columns
from tests.helpers.browser import PHONE, check_layout, open_page, wait_until
from tests.helpers.camera_robot import write_camera_store
from tests.helpers.episodes import join_episodes
from tests.helpers.lerobot_sets import write_v2

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def make_demos() -> list[Episode]:
    """Return smooth episodes: one begins still, two jump, one is a copy."""
    time = np.linspace(0, 3, 60, dtype=np.float32)
    paths = [np.stack([np.sin(time + k), np.cos(2 * time + k)], 1) for k in range(8)]
    paths[1][:20] = paths[1][20]
    paths[2][30:] += 5
    paths[3][40:42] = 40
    paths[5] = paths[4]
    return [Episode(path, path[:, :1]) for path in paths]


def test_what_stands_out_is_flagged() -> None:
    flags = find_flags(join_episodes(make_demos(), obs_names=("hip", "knee")))
    assert flags[0] == flags[4] == flags[6] == []
    assert flags[1] == ["still: 20 frames at the start, 0 at the end"]
    assert "jump in hip at frame 30" in flags[2]
    assert "jump in hip at frame 40" in flags[3]
    assert flags[5] == ["same as episode 4"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    """Serve a store with a camera, with a token, and yield its address and the store."""
    folder = tmp_path_factory.mktemp("view")
    store = folder / "demos.zarr"
    with DemoWriter(store, rate_hz=10, attributes={"columns": {"state": ["hip", "knee"]}}) as writer:
        for k, episode in enumerate(make_demos()):
            frames = np.full((len(episode), 24, 32, 3), k, np.uint8)
            frames[:, :, :, 0] = np.arange(len(episode))[:, None, None]
            writer.append(episode, {"top": frames})
    (folder / "token").write_text("a" * 32)
    with serve("data", "view", store, "--token-file", folder / "token") as url:
        yield url, store


@contextmanager
def serve(*args: object) -> Iterator[str]:
    """Run a command that serves a page, and yield its address."""
    command = [sys.executable, "-m", "nsde_policy", *map(str, args), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(20)


def fetch(url: str, path: str, query: str = "") -> bytes:
    return urllib.request.urlopen(url.replace("/?", f"{path}?") + query).read()


def test_the_server_answers_with_numbers_and_frames(page: tuple[str, Path]) -> None:
    url, store = page
    overview = json.loads(fetch(url, "/overview"))
    assert (overview["source"], overview["rate"], overview["cameras"]) == (str(store), 10, ["top"])
    assert overview["lengths"] == [60] * 8
    assert overview["observations"] == ["hip", "knee"]
    numbers = json.loads(fetch(url, "/episode", "&episode=2"))
    np.testing.assert_allclose(np.array(numbers["obs"]).T, make_demos()[2].obs, rtol=1e-4)
    assert fetch(url, "/frame", "&episode=2&camera=top&frame=9").startswith(b"\x89PNG")


def test_cameras_with_missing_frames_are_not_shown(tmp_path: Path) -> None:
    store = write_v2(tmp_path / "set")
    next(store.glob("videos/*/*/*.mp4")).unlink()
    with serve("data", "view", store) as url:
        overview = json.loads(urllib.request.urlopen(f"{url.rstrip('/')}/overview").read())
    assert (overview["cameras"], overview["lengths"]) == ([], [8, 5, 9])


@pytest.mark.parametrize(
    "path",
    [
        "/episode",
        "/nothing",
        "//[",
        "/frame?episode=9&camera=top&frame=0",
        "/frame?episode=0&camera=top&frame=60",
    ],
)
def test_what_does_not_exist_is_refused(page: tuple[str, Path], path: str) -> None:
    path, _, query = path.partition("?")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(page[0], path, f"&{query}")


@pytest.mark.parametrize("path", ["/", "/overview", "/episode?episode=0"])
def test_data_need_the_token(page: tuple[str, Path], path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(re.sub(r"/\?.*", path, page[0]))


def test_columns_of_similar_size_share_a_scale() -> None:
    largest = np.array([500, -3, 480, 0.02, 2.5, 60, 0.005, 0])
    values = np.stack([largest / 3, largest])
    expected = [("rad", [1]), ("", [0, 2, 5]), ("", [4]), ("", [3, 6, 7])]
    assert group_columns(values, angles=(1,)) == expected
    assert group_columns(np.zeros((4, 2)), ()) == [("", [0, 1])]


def test_marks_become_a_command_that_runs(
    browser: "Browser", page: tuple[str, Path], tmp_path: Path, monkeypatch
) -> None:
    url, store = page
    seen = open_page(browser.new_context(viewport=PHONE))
    tab, late = seen.page, []
    tab.route("**/episode?episode=0*", lambda route: late.append(route))  # answered after the next one
    tab.goto(url)
    tab.wait_for_selector("#list button:nth-child(8)")
    tab.click("#list button:nth-child(2)")
    tab.wait_for_selector("#flags:has-text('still')")
    check_layout(tab, "#play")
    tab.set_viewport_size(PHONE)
    tab.evaluate("seek(20)")
    with tab.expect_response("**/episode?episode=0*"):
        late[0].continue_()
    tab.click("#start")
    tab.click("#list button:nth-child(6)")
    tab.wait_for_selector("#flags:has-text('same')")
    tab.click("#drop")
    command = tab.inner_text("#command")
    assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    tab.context.close()
    assert seen.errors == []
    assert command == f"nsde-policy data edit {store} edited.zarr --drop 5 --trim 1:20:60"
    monkeypatch.chdir(tmp_path)
    assert main(command.split()[1:]) == 0
    assert (tmp_path / "edited.zarr").is_dir()


@pytest.fixture(scope="module")
def arm_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a barely trained policy of an arm with two cameras, and its demonstrations."""
    folder = tmp_path_factory.mktemp("arm")
    store, run = write_camera_store(folder / "arm.zarr", arm=True), folder / "run"
    few = ["--steps=3", "--width=16", "--select=none", "--encoder=keypoints", "--encoder.size=32"]
    flags = ["--images", "top", "wrist", *few, "--validation=0.4", "--device=cpu", "--out", str(run)]
    assert main(["train", "--demos", str(store), *flags]) == 0
    return run, store


@pytest.mark.slow
def test_a_report_shows_plans_over_recorded_episodes(
    arm_run: tuple[Path, Path], tmp_path: Path, browser: "Browser"
) -> None:
    run, store = arm_run
    file = tmp_path / "report.html"
    assert main(["score", str(run), "--demos", str(store), "--samples", "4", "--report", str(file)]) == 0
    held = re.search(r'id="recorded">(.*?)</script>', file.read_text(), re.S)
    assert held is not None
    recorded = json.loads(held[1])
    assert len(recorded["episodes"]) == 2
    plans = recorded["episodes"][1]["plans"]
    assert np.shape(plans["actions"])[:2] == np.shape(plans["std"])[:2] == (12, 7)
    assert (np.diff(plans["std"], axis=-1) >= 0).all()  # accumulated along the plan

    seen = open_page(browser.new_context(viewport=PHONE))
    seen.page.goto(file.as_uri())
    wait_until(seen.page, "document.querySelector('#cameras canvas').width > 30")
    seen.page.evaluate("seek(5)")
    assert "planned from frame 5, with a band of ± 2 σ" in seen.page.inner_text("#planned")
    assert "only 2 of these episodes were held out" in seen.page.inner_text("#verdict")
    assert seen.page.is_hidden("#drop")
    seen.page.click("#act .legend button:nth-child(2)")
    group = "document.querySelector('#act .legend').querySelectorAll('[aria-pressed=true]').length"
    assert seen.page.evaluate(group) == 1
    check_layout(seen.page, "#play")
    seen.page.context.close()
    assert seen.errors == []
    assert seen.requests == [file.as_uri()]
