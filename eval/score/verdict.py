"""Verdict on a run: whether to expect it to work, why, and what to do next.

It comes from the error of the mean plan in its last period, in held-out episodes. A good policy is far better
than repeating the last action, and better than a linear model of its training episodes. Both gains count in
halvings of the error, so that they add up. The error over all periods or in the next one, nearest neighbours,
the error in training episodes, roughness, the coverage of σ, likelihoods and a held-out loss that rose did
not help to rank the runs of benchmarks/verdicts.py.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from nsde_policy.data.split import FEWEST_EPISODES, advise_validation

if TYPE_CHECKING:
    from .result import Score

WORK, FAIL, UNSURE = "expect it to work", "expect it to fail", "cannot tell"
WORKS_FROM, FAILS_BELOW = 2.2, 1.2
"""Scores from which a run is expected to work, and below which it is expected to fail; they were chosen on 36
runs of benchmarks/verdicts.py."""
OVERFIT = 1.5
"""Training episodes are too few if the error in held-out ones is this many times the error in them."""
UNINFORMED = 0.9
"""Observations tell little if the linear model's error is more than this fraction of the error of
repeating."""


@dataclass(frozen=True)
class Verdict:
    """What to expect of a run on a robot, and what to do."""

    outlook: str
    """`WORK`, `FAIL` or `UNSURE`."""
    because: str
    advice: str
    score: float | None = None
    """Halvings of the error, from repeating the last action plus from a linear model; None if unknown."""

    def __str__(self) -> str:
        return f"{self.outlook}, because {self.because}: {self.advice}"

    def to_dict(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)


def judge(score: "Score") -> Verdict:
    """Judge a run by its errors in episodes that it was not trained on."""
    episodes = len(score.error("mean_plan").total)
    if score.context.get("seen_in_training"):
        return Verdict(UNSURE, "the run was trained on all of these episodes", advise_validation(episodes))
    if episodes < FEWEST_EPISODES:
        held_out = f"only {episodes} of these episodes were held out of the training"
        return Verdict(UNSURE, held_out, advise_validation(score.record.demos.episodes))
    if not score.training:
        return Verdict(
            UNSURE,
            "the training episodes, to compare with, are not in the store",
            f"score with the store of the training, {score.record.demos.source}",
        )
    last = int(np.flatnonzero(score.error("repeat").count.sum(0))[-1])  # that any episode reaches
    ours = score.error("mean_plan")[:, last]
    others = (score.error("repeat"), score.error("linear"), score.training_error)
    error, repeated, linear, trained = (
        max(float(sums.compute()), 1e-12) for sums in (ours, *(each[:, last] for each in others))
    )
    number = math.log2(repeated / error) + math.log2(linear / error)
    outlook = WORK if number >= WORKS_FROM else FAIL if number < FAILS_BELOW else UNSURE
    because = f"{last + 1} periods ahead its error is {error / repeated:.2f} × that of repeating the last "
    because += f"action and {error / linear:.2f} × that of a linear model"
    if outlook == WORK:
        advice = "train on all episodes for the robot with `nsde-policy train --preset RUN`"
    elif linear > UNINFORMED * repeated:
        advice = "record what the demonstrator looked at, such as another camera"
    elif error > OVERFIT * trained:
        numbers = cast("Sequence[int]", score.context["episodes"])
        worst = numbers[int(np.nanargmax(ours.compute(np.eye(episodes))))]
        advice = f"record more episodes like number {worst}, the worst one"
    else:
        advice = "train longer (--steps)"
    return Verdict(outlook, because, advice, number)
