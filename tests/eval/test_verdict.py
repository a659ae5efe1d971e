"""Tests of the verdict on a run: sums of known errors and coverages give known sentences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import resolve_run
from nsde_policy.data.split import FEWEST_EPISODES, count_held_out, suggest_fraction
from nsde_policy.eval.score.result import ActionScale, Score, describe_score
from nsde_policy.eval.score.verdict import judge
from nsde_policy.eval.statistics import MIN_PAIRS, EpisodeSums
from nsde_policy.run_directory import RunDirectory


def make_score(errors: dict[str, list[list[float]]], coverage: float, *, episodes: int = 8) -> Score:
    """Make a score with a root mean square error per period and action, and a coverage of the 95 % level."""
    spread = np.random.default_rng(0).uniform(90, 110, (episodes, 1, 1))
    sums = {}
    for name, values in {"mean_plan": errors["sample"], **errors}.items():
        total = np.square(values)[None] * spread
        sums[f"error_{name}"] = EpisodeSums(total, np.full(total.shape, 100.0), root=True)
    level = np.full((episodes, 3, 2), 100.0)
    shares = [
        [0.5, 0.1],
        [0.68, 0.1],
        [coverage, 0.1],
    ]  # σ cannot fit the binary action, which does not count
    sums["coverage_actions"] = EpisodeSums(level * shares, level)
    scale = ActionScale(np.zeros(2), np.ones(2), (), ("elbow", "gripper"), (False, True))
    record = RunDirectory(resolve_run(Path("shipped"))).read_record()
    context = {"episodes": list(range(10, 10 + episodes)), "seen_in_training": False}
    return Score("run", record, context, scale, sums)


def make_judged(ours: float, linear: float, training: float) -> Score:
    """Make a score with errors relative to that of repeating the last action."""
    errors = {"sample": ours, "repeat": 1.0, "linear": linear}
    score = make_score({name: [[error, error]] * 2 for name, error in errors.items()}, 0.95)
    known = make_score({"sample": [[training, training]] * 2, "repeat": [[1.0, 1.0]] * 2}, 0.95)
    return replace(score, training=known.sums)


@pytest.mark.parametrize(
    ("errors", "outlook", "advice"),
    [
        ((0.25, 0.4, 0.25), "expect it to work", "for the robot with `nsde-policy train --preset RUN`"),
        ((0.4, 0.45, 0.38), "cannot tell", "train longer"),
        ((0.8, 0.5, 0.8), "expect it to fail", "train longer"),
        ((0.8, 0.6, 0.4), "expect it to fail", "record more episodes like number 13"),
        ((0.9, 0.95, 0.4), "expect it to fail", "such as another camera"),
    ],
)
def test_a_run_is_judged_by_repeating_and_by_a_linear_model(
    errors: tuple[float, float, float], outlook: str, advice: str
):
    score = make_judged(*errors)
    squared = score.sums["error_mean_plan"]
    squared.total[3] *= 1.5
    verdict = judge(score)
    assert verdict.outlook == outlook
    assert advice in verdict.advice
    assert str(verdict) == describe_score(score)[0]
    assert score.to_dict()["verdict"] == verdict.to_dict()


def test_the_number_of_a_verdict_counts_halvings_of_the_error():
    assert judge(make_judged(0.25, 0.5, 0.25)).score == pytest.approx(2 + 1)
    assert judge(make_judged(1.0, 0.5, 1.0)).score == pytest.approx(0 - 1)


def test_the_last_period_that_an_episode_reaches_counts():
    short = make_judged(0.25, 0.5, 0.25)
    for name in ("mean_plan", "repeat", "linear"):
        short.sums[f"error_{name}"].total[:, 1] = 0.0
        short.sums[f"error_{name}"].count[:, 1] = 0.0
    assert judge(short).score == pytest.approx(2 + 1)
    assert judge(short).because.startswith("1 periods ahead")


def test_a_verdict_needs_held_out_episodes_and_those_of_the_training():
    score = make_judged(0.3, 0.4, 0.3)
    trained = make_score({"sample": [[0.3, 0.3]], "repeat": [[1.0, 1.0]]}, 0.95, episodes=30)
    seen = judge(replace(trained, context={"seen_in_training": True}))
    few = judge(make_score({"sample": [[0.3, 0.3]], "repeat": [[1.0, 1.0]]}, 0.95, episodes=2))
    alone = judge(replace(score, training={}))
    assert {each.outlook for each in (seen, few, alone)} == {"cannot tell"}
    assert {each.score for each in (seen, few, alone)} == {None}
    assert seen.advice == "train with --validation 0.2"
    assert "only 2 of these episodes were held out" in few.because
    assert score.record.demos.source in alone.advice


@pytest.mark.parametrize(("episodes", "fraction"), [(11, None), (12, 0.5), (20, 0.3), (30, 0.2), (100, 0.1)])
def test_the_suggested_fraction_holds_out_enough_episodes_for_a_verdict(
    episodes: int, fraction: float | None
):
    assert FEWEST_EPISODES == MIN_PAIRS
    assert suggest_fraction(episodes) == fraction
    assert fraction is None or count_held_out(episodes, fraction) >= MIN_PAIRS


def test_the_action_that_spoils_the_next_period_is_named():
    lines = describe_score(
        make_score({"sample": [[0.1, 0.3], [0.3, 0.3]], "repeat": [[0.1, 0.1], [0.6, 0.6]]}, 0.95)
    )
    assert lines[1:] == [
        "2 periods ahead 50% better than repeating the last action; in the next period 124% worse than "
        "repeating the last action because of gripper, which is binary",
        "σ fits: 95% of recorded actions in its 95% interval",
    ]


@pytest.mark.parametrize(("coverage", "words"), [(0.8, "too narrow: 80%"), (0.999, "too wide: 100%")])
def test_sigma_that_does_not_fit_gets_a_remedy(coverage: float, words: str):
    same = [[0.2, 0.2], [0.4, 0.4]]
    few, error, sigma = describe_score(make_score({"sample": same, "repeat": same}, coverage, episodes=2))
    assert error == (
        "2 periods ahead as good as repeating the last action; "
        "in the next period as good as repeating the last action"
    )
    assert words in sigma
    assert sigma.endswith("% of recorded actions in its 95% interval; record more episodes")
    score = make_score({"sample": same, "repeat": same}, coverage)
    demos = replace(score.record.demos, held_out=(1,))
    measured = replace(score, record=replace(score.record, demos=demos))
    assert describe_score(measured)[2].endswith("; `nsde-policy train --preset RUN` scales it")
    assert few.startswith("cannot tell, because only 2 of these episodes were held out")
