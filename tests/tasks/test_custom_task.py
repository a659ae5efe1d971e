"""Tests that a task of another package plays through evaluation without changes to the library."""

from pathlib import Path

import pytest

from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.eval.rollouts.disturbances import Condition
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.eval.rollouts.scores import score_rollouts
from nsde_policy.tasks import GymTask, get_task
from nsde_policy.training.train import train_run
from tests.helpers.gates_task import demonstrate_gates


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nearest-neighbour policy of the task `gates`."""
    path = tmp_path_factory.mktemp("runs") / "gates"
    train_run(demonstrate_gates(), get_task("gates").preset("fast", "knn"), path, task="gates", seed=0)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "message"),
    [("MatrixEnv", r"its observation has 4 values .* have 3"), ("MortalEnv", r"died.*--workers 1")],
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


def test_a_task_without_push_cannot_be_pushed(run: Path):
    with pytest.raises(ConfigError, match="leave out --push"):
        score_rollouts(run, RolloutConfig(episodes=1, seed_start=0, condition=Condition(push=1.0)), workers=1)
