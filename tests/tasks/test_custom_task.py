"""Tests that a task of another package plays through evaluation without changes to the library."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.eval.render.video import Renderer
from nsde_policy.eval.rollouts.disturbances import Condition
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.eval.rollouts.scores import score_rollouts
from nsde_policy.tasks import GymTask, get_task
from nsde_policy.training.train import train_run
from tests.helpers.reach_task import demonstrate


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nearest-neighbour policy of the task `reach`."""
    config = get_task("reach").preset("fast", "knn")
    path = tmp_path_factory.mktemp("runs") / "reach"
    train_run(demonstrate(), config, path, task="reach", seed=0)
    return path


def test_eval_command_scores_a_custom_task(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "scores.json"
    assert main(["eval", str(run), "--episodes", "4", "--workers", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["env"] == "Reach-v0"
    assert "reset_rule" not in found
    assert found["success_rate"]["value"] == 1.0
    assert found["mean_min_distance"]["value"] < 0.15
    assert [episode["min_distance"] for episode in found["episodes"]] == [
        episode["final_distance"] for episode in found["episodes"]
    ]
    printed = capsys.readouterr().out
    assert "mean min distance" in printed
    assert "final distance" in printed


def test_env_kwargs_reach_the_environment(run: Path):
    near, far = (
        score_rollouts(run, RolloutConfig(episodes=1, seed_start=0, env_kwargs={"reach": reach}), workers=1)
        for reach in (0.3, 1.0)
    )
    assert near.context["env_kwargs"] == {"reach": 0.3}
    assert near.episodes[0].steps < far.episodes[0].steps
    with pytest.raises(ConfigError, match="does not take these arguments"):
        score_rollouts(run, RolloutConfig(episodes=1, seed_start=0, env_kwargs={"gravity": 1}), workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "message"),
    [("MatrixEnv", r"its observation has 4 values .* trained with 2"), ("MortalEnv", r"died.*--workers 1")],
)
def test_errors_of_worker_processes_are_raised(run: Path, env: str, message: str):
    task = GymTask(f"tests.helpers.environments:{env}")
    with pytest.raises(EnvError, match=message):
        list(RolloutPool(run, RolloutConfig(task), workers=2).run(range(4)))


@pytest.mark.parametrize(
    ("infos", "success", "step"),
    [
        ([{}, {}, {"is_success": True}], True, 2),
        ([{}, {"success": True}, {"success": False}], True, 1),
        ([{"success": False}, {}, {"is_success": False}], False, None),
        ([{}, {}, {}], None, None),
    ],
)
def test_default_outcome_is_the_return_and_success_at_any_step(
    infos: list[dict[str, bool]], success: bool, step: int | None
):
    outcome = get_task("none").outcome([1.0, 2.0], infos)
    assert (outcome.success, outcome.score, outcome.success_step) == (success, 3.0, step)


def test_a_task_without_drawing_cannot_be_rendered(run: Path, tmp_path: Path):
    assert not get_task("reach").drawing.can_draw
    assert get_task("pusht").drawing.can_draw
    with pytest.raises(EnvError, match="leave out --render"):
        Renderer(run, RolloutConfig(episodes=1, seed_start=0), tmp_path)
    with pytest.raises(ConfigError, match="give it a Drawing that overrides draw"):
        get_task("reach").drawing.draw(np.zeros(2), size=64)


def test_a_task_without_push_cannot_be_pushed(run: Path):
    with pytest.raises(ConfigError, match="leave out --push"):
        score_rollouts(run, RolloutConfig(episodes=1, seed_start=0, condition=Condition(push=1.0)), workers=1)
