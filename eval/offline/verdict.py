"""What a score on recorded episodes means, in a few lines."""

import numpy as np

from nsde_policy.eval.offline.result import COVERAGE_LEVELS, OfflineScore
from nsde_policy.eval.offline.sums import EpisodeSums, estimate_difference
from nsde_policy.eval.statistics import MIN_PAIRS

SMALL_GAIN = 0.02
"""Relative differences of the error up to this count as none."""
FITTING = (0.90, 0.98)
"""Shares of recorded actions in the 95 % interval at which σ fits."""


def describe_score(score: OfflineScore) -> list[str]:
    """Return the verdict on a run: its error against repeating the last action, σ, and how sure this is."""
    last = score.horizon - 1
    lines = [f"{_compare_errors(score, last)}; {_compare_errors(score, 0)}{_blame(score)}"]
    coverage = _cover(score)
    if coverage is not None:
        share = float(coverage.compute()[-1])
        low, high = FITTING
        fit = "fits" if low <= share <= high else "is too narrow" if share < low else "is too wide"
        remedy = "record more episodes" if score.record.cameras else "train with --calibration 0.1"
        advice = "" if fit == "fits" else f": {remedy}"
        lines.append(
            f"σ {fit}: {share:.0%} of recorded actions in its {COVERAGE_LEVELS[-1]:.0%} interval{advice}"
        )
    episodes = len(score.error("sample").total)
    if episodes < MIN_PAIRS:
        few = f"{episodes} episodes are too few to tell: hold out at least {MIN_PAIRS}"
        lines.append(few.replace("episodes are", "episode is") if episodes == 1 else few)
    return lines


def describe_episodes(score: OfflineScore) -> list[str]:
    """Return a line about each scored episode: the error of a plan, and of repeating the last action."""
    errors = [score.error(name).pool(1) for name in ("sample", "repeat")]
    each = [error.compute(np.eye(len(error.total))) for error in errors]
    return [f"error {ours:.2f}, repeating {theirs:.2f}" for ours, theirs in zip(*each, strict=True)]


def _cover(score: OfflineScore) -> EpisodeSums | None:
    """Return how often σ covers recorded actions; binary ones do not count, because no σ fits them."""
    found, chosen = score.sums["all"].get("coverage_actions"), ~np.array(score.scale.binary)
    if found is None or not chosen.any():
        return None
    return EpisodeSums(found.total[..., chosen], found.count[..., chosen]).pool(-1)


def _compare_errors(score: OfflineScore, step: int) -> str:
    """Compare the error some periods ahead with that of repeating the last action."""
    ours, theirs = (_at(score.error(name), step) for name in ("sample", "repeat"))
    found = estimate_difference(ours, theirs)
    gain = 1 - float(ours.compute()) / max(float(theirs.compute()), 1e-12)
    when = "in the next period" if step == 0 else f"{step + 1} periods ahead"
    if abs(gain) <= SMALL_GAIN:
        return f"{when} as good as repeating the last action"
    is_sure = bool(np.isfinite(found.low)) and (found.high < 0 or found.low > 0)
    word = "better" if gain > 0 else "worse"
    unsure = "" if is_sure or len(ours.total) < MIN_PAIRS else ", but the interval includes 0"
    return f"{when} {abs(gain):.0%} {word} than repeating the last action{unsure}"


def _blame(score: OfflineScore) -> str:
    """Name the action that makes the next period worse than repeating the last one, if there is one."""
    ours, theirs = (
        _at(score.sums["all"][f"error_{name}"], 0).total.sum(0) / score.scale.std**2
        for name in ("sample", "repeat")
    )
    excess = ours - theirs
    worst = int(np.argmax(excess))
    if excess.sum() <= 0 or excess[worst] < 0.5 * excess.sum() or len(excess) == 1:
        return ""
    binary = ", which is binary" if score.scale.binary[worst] else ""
    return f" because of {score.scale.names[worst]}{binary}"


def _at(sums: EpisodeSums, step: int) -> EpisodeSums:
    return EpisodeSums(sums.total[:, step], sums.count[:, step], sums.root)
