"""Tests of the verdict on a run: sums of known errors and coverages give known sentences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import resolve_run
from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.split import FEWEST_EPISODES, count_held_out, suggest_fraction
from nsde_policy.eval.score.result import ActionScale, Score, describe_score
from nsde_policy.eval.statistics import MIN_PAIRS, EpisodeSums
from nsde_policy.run_directory import RunDirectory


def make_score(errors: dict[str, list[list[float]]], coverage: float, *, episodes: int = 8) -> Score:
    """Make a score with a root mean square error per period and action, and a coverage of the 95 % level."""
    spread = np.random.default_rng(0).uniform(90, 110, (episodes, 1, 1))
    sums = {}
    for name, values in errors.items():
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
    return Score("run", record, {}, scale, sums)


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
    assert lines == [
        "2 periods ahead 50% better than repeating the last action; in the next period 124% worse than "
        "repeating the last action because of gripper, which is binary",
        "σ fits: 95% of recorded actions in its 95% interval",
    ]


@pytest.mark.parametrize(("coverage", "words"), [(0.8, "too narrow: 80%"), (0.999, "too wide: 100%")])
def test_sigma_that_does_not_fit_gets_a_remedy(coverage: float, words: str):
    same = [[0.2, 0.2], [0.4, 0.4]]
    error, sigma, few = describe_score(make_score({"sample": same, "repeat": same}, coverage, episodes=2))
    assert error == (
        "2 periods ahead as good as repeating the last action; "
        "in the next period as good as repeating the last action"
    )
    assert words in sigma
    assert sigma.endswith("train with --scale-std 0.1")
    score = make_score({"sample": same, "repeat": same}, coverage)
    camera = CameraSpec("observation.images.top", 96, 96)
    seeing = replace(score, record=replace(score.record, cameras=(camera,)))
    assert describe_score(seeing)[1].endswith("record more episodes")
    assert few == "2 episodes are too few to tell: hold out at least 6"
