"""Comparisons with invented numbers, for tests of tables and plots only."""

from typing import Any

import msgspec
import numpy as np

from nsde_policy.eval.compare.entries import Entry
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.episodes import Episodes
from nsde_policy.eval.rollouts.disturbances import Condition
from nsde_policy.methods.registry import METHODS

STARTS = range(100_000, 100_060)
INVENTED: dict[str, tuple[float, float, int]] = {
    "neural_sde": (0.88, 8, 346_000),
    "diffusion, DDPM-100": (0.74, 100, 65_000_000),
    "diffusion, DDIM-10": (0.72, 10, 65_000_000),
    "lstm_gmm": (0.35, 8, 18_000_000),
    "ibc": (0.55, 24, 3_000_000),
    "bet": (0.42, 8, 400_000),
    "regression": (0.66, 1, 340_000),
    "flow": (0.70, 9, 340_000),
    "mip": (0.73, 2, 20_000_000),
    "knn": (0.18, 1, 0),
}
"""Success probability, network calls and parameters by name; none of it was measured."""


def make_episodes(skill: float, seed: int, starts: range = STARTS) -> Episodes:
    """Make episodes that succeed if skill exceeds the difficulty of a start and some noise."""
    difficulty, rng = np.random.default_rng(99).random(len(starts)), np.random.default_rng(seed)
    success = 0.6 * difficulty + 0.4 * rng.random(len(starts)) < 0.2 + 0.6 * skill
    reward = np.where(success, 1.0, np.clip(1 - 0.5 * rng.random(len(starts)), 0, 1))
    return Episodes(
        seed=tuple(starts),
        score=tuple(round(float(r), 5) for r in reward),
        success=tuple(bool(s) for s in success),
        metrics={"final_coverage": tuple(round(float(0.95 * r), 5) for r in reward)},
        steps=tuple(150 if s else 300 for s in success),
    )


def make_entry(name: str = "neural_sde", *, skill: float | None = None, **changes: Any) -> Entry:
    """Make an entry; give a lower skill for a harder setting."""
    probability, calls, parameters = INVENTED.get(name, (0.5, 8, 1000))
    method = name.split(",")[0]
    seed = changes.get("train_seed", 0)
    order = [*INVENTED].index(name) if name in INVENTED else 50
    values: dict[str, Any] = {
        "name": name,
        "title": METHODS.get(method).title if method in METHODS.names() else name,
        "method": method,
        "train_seed": seed,
        "demos": 206,
        "chunk": 8,
        "sampling": {"steps": 10} if "DDIM" in name else {},
        "condition": Condition(),
        "parameters": parameters,
        "train_steps": 100_000,
        "train_s": 60.5 + seed,
        "calls_per_chunk": float(calls),
        "episodes": make_episodes(probability if skill is None else skill, 1000 * order + seed),
    }
    return Entry(**values | changes)


def make_comparison(*entries: Entry) -> Comparison:
    """Compare entries on the invented starts."""
    machine = {"train": "an abacus", "play": "a table", "torch": "0.0"}
    return Comparison("pusht", {"reset_rule": "benchmark"}, (STARTS[0], STARTS[-1]), machine, entries)


def make_full_comparison() -> Comparison:
    """Compare every method, two trainings each."""
    return make_comparison(*(make_entry(name, train_seed=seed) for name in INVENTED for seed in (0, 1)))


def without_success(*entries: Entry) -> Comparison:
    """Compare entries in an environment that does not report successes; scores are returns below 0."""
    changed = []
    for entry in entries:
        score = tuple(round(1000 * value - 1000, 5) for value in entry.episodes.score)
        episodes = msgspec.structs.replace(entry.episodes, score=score, success=None, metrics={})
        changed.append(msgspec.structs.replace(entry, episodes=episodes))
    return msgspec.structs.replace(make_comparison(*changed), task="Pendulum-v1", env_kwargs={"g": 9.8})
