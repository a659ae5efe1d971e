"""Tests of episodes whose plans one process makes for all processes that step environments."""

from multiprocessing import Pipe
from pathlib import Path

import pytest

from nsde_policy.errors import EnvError
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.shared_planner import SharedPlannerPool, _receive, _step_environments
from nsde_policy.run_directory import RunDirectory

SEEDS = [200_000, 200_001, 200_002]
CONFIG = RolloutConfig(env_kwargs={"max_episode_steps": 12})


@pytest.mark.slow
def test_results_are_those_of_episodes_played_one_by_one(pixel_run: Path):
    shared = list(SharedPlannerPool(pixel_run, CONFIG, workers=2, device="cpu").evaluate(SEEDS))
    alone = list(RolloutPool(pixel_run, CONFIG).evaluate(SEEDS))
    assert [result.seed for result in shared] == SEEDS
    for one, other in zip(shared, alone, strict=True):
        assert (one.steps, one.plans, one.planned) == (other.steps, other.plans, other.planned)
        assert (one.success, one.network_calls) == (other.success, other.network_calls)
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.planning_s > 0


def test_error_of_an_environment_is_raised_by_the_process_that_plans(pixel_run: Path):
    here, there = Pipe()
    record = RunDirectory(pixel_run).read_record()
    _step_environments(there, record, RolloutConfig(env_kwargs={"obs_type": "state"}), SEEDS[:1])
    with pytest.raises(EnvError, match="observation"):
        _receive(here)


def test_process_that_died_is_reported():
    here, there = Pipe()
    there.close()
    with pytest.raises(EnvError, match=r"has died.*--workers 1"):
        _receive(here)
