"""Tests for eval/rollouts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.eval.compare.run import EntryCache, compare_runs
from nsde_policy.eval.rollouts.disturbances import Condition, Disturbances
from nsde_policy.eval.rollouts.episode import EpisodeResult, Trace
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from nsde_policy.eval.rollouts.scores import RolloutScores, rollout, score_rollouts
from nsde_policy.interface.roughness import describe_roughness, measure_roughness
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import get_task
from tests.helpers.selecting_runs import make_selecting_run

SEEDS = [200003, 200001, 200002]
CONFIG = RolloutConfig()


def timeless(results):
    return [replace(result, planning_s=0.0) for result in results]


@pytest.fixture(scope="module")
def alone():
    return timeless(RolloutPool(None, CONFIG).run(SEEDS))


@pytest.mark.slow
def test_result_of_a_seed_is_independent_of_workers_order_and_other_seeds(alone):
    assert timeless(RolloutPool(None, CONFIG, workers=2).run(SEEDS[::-1]))[::-1] == alone
    assert timeless(RolloutPool(None, CONFIG).run(SEEDS[1:2])) == alone[1:2]


def test_a_loaded_policy_and_a_run_directory_roll_out_alike(alone):
    seeds = {"episodes": 2, "seed_start": SEEDS[1]}
    scores = [rollout(policy, workers=1, **seeds) for policy in (Policy.from_pretrained(), "shipped")]
    assert [timeless(each.episodes) for each in scores] == [alone[1:3]] * 2
    assert repr(scores[0]).splitlines()[0].split() == ["episodes", "2"]
    assert rollout(env="pusht", chunk=3, **seeds).context["chunk"] == 3


def test_trace_matches_the_result(alone):
    result = EnvRunner(None, CONFIG).run_one(SEEDS[0])
    trace = result.trace
    assert timeless([result]) == alone[:1]
    assert len(trace.actions) == result.steps == len(trace.obs) - 1 == len(trace.progress) - 1
    assert max(trace.progress) / 0.95 >= result.score
    assert len(trace.histories) == result.plans
    assert (result.network_calls - 8 * result.plans) % (32 - 8) == 0, "some plans were selected"


def test_roughness_compares_the_commands_sent_with_the_calibration():
    policy = Policy.from_pretrained()
    policy.calibration = replace(policy.calibration, roughness=0.001)
    scores = rollout(policy, episodes=1, seed_start=SEEDS[0])
    trace = EnvRunner(policy, CONFIG).run_one(SEEDS[0]).trace
    expected = measure_roughness([np.array(trace.actions)], policy.spec)
    assert expected is not None
    assert scores.metrics["roughness"].value == pytest.approx(expected / 0.001)
    assert describe_roughness(expected / 0.001) in repr(scores)
    policy.calibration = replace(policy.calibration, roughness=None)
    assert "rough" not in repr(rollout(policy, episodes=1, seed_start=SEEDS[0]))


def test_batched_episodes_have_similar_scores(alone):
    together = timeless(RolloutPool(None, CONFIG, batch=3).run(SEEDS))
    assert [result.seed for result in together] == SEEDS
    assert [r.score for r in together] == pytest.approx([r.score for r in alone], abs=0.1)


def traced(condition: Condition, chunk: int = 8) -> Trace:
    return EnvRunner(None, RolloutConfig(condition=condition, chunk=chunk)).run_one(SEEDS[0]).trace


def test_late_plan_drops_actions_of_past_periods():
    policy, late = Policy.from_pretrained(), 3
    trace = traced(Condition(latency_steps=late))
    start, memory = trace.histories[0]
    generator = torch.Generator().manual_seed(SEEDS[0])
    planned = policy.plan(memory, generator=generator, steps=8 + late).actions
    assert start == 0
    assert np.array_equal(trace.actions[:late], [trace.obs[0][:2]] * late)  # the agent holds its place
    assert np.allclose(trace.actions[late : late + 8], np.clip(planned[late:], 0, 512))
    assert [step for step, _ in trace.histories][:3] == [0, 8, 16]


def test_plan_shorter_than_the_latency_is_executed_late(tmp_path):
    args = ["train", "--policy", "regression", "--preset", "fast", "--train.steps", "1"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 0
    policy = Policy.from_pretrained(tmp_path / "run")
    config = RolloutConfig(condition=Condition(latency_steps=5))
    trace = EnvRunner(tmp_path / "run", config).run_one(SEEDS[0]).trace
    planned = policy.plan(trace.histories[0][1], generator=torch.Generator()).actions
    assert len(planned) == 8
    assert np.allclose(trace.actions[5:13], np.clip(planned, 0, 512))


def test_noise_and_push_depend_only_on_the_seed():
    condition = Condition(obs_noise=0.5, push=80.0)
    one, two = (Disturbances(condition, 7, np.array([2.0, 0.0])) for _ in range(2))
    seen = [one.add_noise(np.zeros(2)) for _ in range(2000)]
    assert np.array_equal(seen, [two.add_noise(np.zeros(2)) for _ in range(2000)])
    assert np.std(seen, axis=0) == pytest.approx([1.0, 0.0], abs=0.05)
    pushes = [period for period in range(300) if one.push_rng(period)]
    assert pushes == [period for period in range(300) if two.push_rng(period)]
    assert len(pushes) == 1


def test_push_moves_the_block_once():
    moved = np.linalg.norm(np.diff(np.array(traced(Condition(push=80.0)).obs)[:, 2:4], axis=0), axis=1)
    calm = np.linalg.norm(np.diff(np.array(traced(Condition()).obs)[:, 2:4], axis=0), axis=1)
    assert calm.max() < 50 < moved.max()
    assert (moved > 50).sum() == 1


def test_scores_average_episodes():
    def episode(seed, reward, success):
        return EpisodeResult(seed, success, reward, {"error": seed}, 100 + seed, 10, 80, 80, 0.8)

    episodes = [episode(0, 1.0, True), episode(1, 0.5, False), episode(2, 1.0, True)]
    longer = replace(episodes[0], success_step=60)
    assert RolloutScores([longer, *episodes[1:]], get_task("none")).mean_steps_to_success == 81
    needed = [each.to_dict("return")["steps_to_success"] for each in (longer, *episodes)]
    assert needed == [60, 100, None, 102]
    scores = RolloutScores(episodes, get_task("none"))
    assert scores.score.value == pytest.approx(2.5 / 3)
    assert scores.success.value == pytest.approx(2 / 3)
    assert scores.success.n == 3
    assert scores.metrics["error"].value == 1
    assert "mean return" in scores.as_text()
    assert scores.steps.value == 101
    assert scores.mean_steps_to_success == 101
    assert scores.ms_per_action == pytest.approx(10.0)
    assert scores.network_calls_per_chunk == 8


def test_scores_and_comparisons_count_the_network_calls_of_plan_selection(tmp_path: Path):
    run = make_selecting_run(tmp_path / "run")
    config = RolloutConfig(episodes=2, env_kwargs={"max_episode_steps": 40})
    scores = score_rollouts(run, config, workers=1)
    plans = sum(each.plans for each in scores.episodes)
    calls = sum(each.network_calls for each in scores.episodes)
    selected = (calls - 8 * plans) // (32 - 8)
    assert 0 < selected < plans
    (entry,) = compare_runs([run], EntryCache(tmp_path / "entries", config, workers=1)).entries
    assert entry.calls_per_chunk == pytest.approx(calls / plans, abs=1e-4)
    assert entry.select == "goal"
    without = score_rollouts(run, replace(config, select="none"), workers=1)
    assert without.network_calls_per_chunk == 8
