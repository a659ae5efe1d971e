"""Tests of the live page with a task that has no block: obstacle avoidance."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.data import load_demonstrations
from nsde_policy.envs.avoiding import geometry
from nsde_policy.errors import ConfigError
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.train import train_run
from nsde_policy.viewer.messages import Drag, KeepEpisode, MoveAgent, SetControl
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from nsde_policy.viewer.record_app import RecordApp, open_collection
from tests.helpers.browser import wait_until
from tests.helpers.viewer_servers import run_events, run_viewer, show_viewer

AVOIDING = get_task("avoiding")
TO_PAGE = geometry.PAGE.to_page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Train nearest neighbours and a tiny Neural SDE."""
    folder = tmp_path_factory.mktemp("runs")
    configs = {
        "knn": AVOIDING.preset("default", "knn"),
        "sde": AVOIDING.preset("fast").replace_parts(train={"steps": 10}, selection={"select": "none"}),
    }
    for name, config in configs.items():
        train_run(None, config, folder / name, task="avoiding")
    return [folder / name for name in configs]


def test_a_seed_is_the_episode_that_eval_scores(runs: list[Path]):
    app = PlayApp(load_runners(runs[:1]), seed=3, plan_timeout_s=60)
    result = EnvRunner(runs[0], RolloutConfig()).run_one(3)
    run_events(app, result.steps + 20)
    (panel,) = app.frame()["panels"]
    assert app.frame()["last"] == result.steps
    assert (panel["solved"], panel["failed"]) == (result.success, not result.success)
    assert app.state()["progress"][0] == [round(share, 3) for share in result.trace.progress]
    assert panel["trail"][-1] == np.round(TO_PAGE(result.trace.obs[-1][2:]), 2).tolist()


def test_forecast_plan_and_drift_are_drawn_on_the_page(runs: list[Path]):
    app = PlayApp(load_runners(runs[1:]), seed=3, plan_timeout_s=60)
    run_events(app, SetControl("paths", 5), 3)
    (panel,) = app.frame()["panels"]
    state = app._panels[0].simulation.state
    rod, command = TO_PAGE(state[2:]), TO_PAGE(state[:2])
    assert panel["target"] == np.round(command, 1).tolist()
    assert np.allclose([path[:2] for path in panel["fan"]["paths"]], rod, atol=0.1)
    assert panel["fan"]["block"] == []
    plan = app._panels[0]._plan.actions[3:]
    assert np.allclose(panel["plan"], TO_PAGE(state[:2] + np.cumsum(plan, axis=0)), atol=0.1)


def test_a_user_drags_the_rod(runs: list[Path]):
    app = PlayApp(load_runners(runs[:1]), seed=3, plan_timeout_s=60)
    x, y = TO_PAGE(np.array([0.3, -0.2])).tolist()
    run_events(app, 2, Drag("agent", x, y), 30)
    (panel,) = app.frame()["panels"]
    assert np.allclose(panel["trail"][-1], (x, y), atol=1)


@pytest.mark.parametrize(
    ("way", "success"),
    [
        ([(0.57, -0.17), (0.57, -0.04), (0.5, 0.05), (0.5, 0.15), (0.575, 0.2), (0.575, 0.38)], True),
        ([(0.5, -0.1), (0.5, 0.0)], False),
    ],
    ids=["through", "touching"],
)
def test_a_recorded_episode_ends_at_the_line_or_an_obstacle(way, success, tmp_path: Path):
    store = tmp_path / "demos.zarr"
    with open_collection(store, AVOIDING) as collection:
        app = RecordApp(AVOIDING, collection, seed_start=7)
        run_events(app, MoveAgent(*TO_PAGE(np.array(geometry.FIXED_START)).tolist()))
        for a, b in itertools.pairwise([geometry.FIXED_START, *way]):
            for share in np.linspace(0, 1, 12):
                run_events(app, MoveAgent(*TO_PAGE(np.add(a, share * np.subtract(b, a))).tolist()), 1)
        run_events(app, 20)  # the command may still be on its way
        assert app.state()["phase"] == "done"
        assert app.frame()["panels"][0]["failed"] != success
        run_events(app, KeepEpisode())
        assert [(kept.seed, kept.success) for kept in collection.episodes] == [(7, success)]
    (episode,) = load_demonstrations(store)
    env = AVOIDING.make_env()
    env.reset(seed=7)
    for action in episode.act:
        *_, info = env.step(action)
    assert info["success"] == success


def test_policies_of_different_tasks_do_not_play_side_by_side(runs: list[Path]):
    with pytest.raises(ConfigError, match="was trained for the task pusht and knn for avoiding"):
        PlayApp(load_runners([runs[0], SHIPPED_POLICY]), seed=3)


@pytest.mark.browser
def test_the_page_draws_rod_and_obstacles(runs: list[Path], browser: Any):
    app = PlayApp(load_runners(runs[::-1]), seed=3)
    with run_viewer(app) as viewer, show_viewer(browser, viewer) as page:
        page.keyboard.press("s")
        wait_until(page, "viewer.frame.panels.length === 2 && viewer.frame.last > 5")
        page.keyboard.press(" ")
        x, y = TO_PAGE(np.array(geometry.OBSTACLES[0][:2])) / 512
        pixel = """([x, y]) => {
            const canvas = document.querySelectorAll(".panel .frame canvas")[1];
            const at = [x, y].map((share) => Math.round(share * canvas.width));
            return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
        }"""
        assert sum(page.evaluate(pixel, [x, y])[:3]) < 550, "an obstacle is grey, the table nearly white"
        assert "rod" in page.locator("#legend").inner_text()
