"""Compare the verdicts of `score` with the success of rollouts, over runs from broken to good.

    python benchmarks/verdicts.py --out out/verdicts           # resumes; needs the extra `metaworld`
    python benchmarks/verdicts.py --out out/verdicts --table   # prints what is finished

Each run is a short training with one setting changed. It is scored on its held-out episodes and rolled out
from 30 seeds.
"""

import argparse
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nsde_policy import Policy, Score, rollout, train
from nsde_policy.assets import find_demos
from nsde_policy.data.split import suggest_fraction
from nsde_policy.eval.demonstrator import CollectConfig, collect_demonstrations
from nsde_policy.eval.score.episodes import select_episodes
from nsde_policy.eval.score.scorer import ScoreConfig, score_episodes
from nsde_policy.eval.score.verdict import FAIL, UNSURE, WORK
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tables import format_markdown
from nsde_policy.files import replace_file

SEEDS, FIRST_SEED = 30, 200_000
GOOD = 0.7
"""Success from which a run works, as a fraction of what the demonstrations reach."""
FEW = 12
"""Episodes of the runs with few."""
QUIET = {
    "model.action_noise": 3.0,
    "model.network.dropout": 0.0,
    "model.sampling.diffusion": 0.0,
    "chunk": 4,
}
"""Settings that suit a scripted expert."""


@dataclass(frozen=True)
class TaskRuns:
    """A task, and the settings of its reference run."""

    name: str
    episodes: int
    steps: int
    noise: float = 0.7
    figure: str = "success"
    """Figure of the rollouts that counts: on Push-T the mean score, because success needs long trainings."""
    expert: str = ""
    """Class of `metaworld.policies` that makes the demonstrations; empty for those of this package."""
    settings: Mapping[str, Any] | None = None
    env_kwargs: Mapping[str, Any] | None = None

    def find_store(self, folder: Path) -> Path:
        """Return the demonstrations; those of an expert are collected first."""
        if not self.expert:
            return find_demos(self.name)
        store = folder / f"{self.name.partition(':')[2]}.zarr"
        config = CollectConfig(env=self.name, episodes=self.episodes, only_success=True)
        collect_demonstrations(f"metaworld.policies:{self.expert}", store, config, workers=1)
        return store

    def list_runs(self) -> dict[str, dict[str, Any]]:
        """Return the settings of all runs by name; the first ones differ most."""
        steps, noise = self.steps, self.noise
        changes: dict[str, dict[str, Any]] = {
            "reference": {},
            "2 % of the steps": {"steps": steps // 50},
            "few episodes": {"demos.episodes": FEW},
            "10 % of the steps": {"steps": steps // 10},
            "strong noise": {"model.noise": 5 * noise},
            "rough": {"model.sampling.diffusion": 2.5},
            "30 % of the steps": {"steps": steps * 3 // 10},
            "few episodes, twice the steps": {"demos.episodes": FEW, "steps": 2 * steps},
            "weak noise": {"model.noise": 0.1 * noise},
            "strong dropout": {"model.network.dropout": 0.5},
            "twice the steps": {"steps": 2 * steps},
        }
        reference = {"demos.episodes": self.episodes, "steps": steps, "model.noise": noise}
        return {name: reference | dict(self.settings or {}) | change for name, change in changes.items()}


SMALL: dict[str, Any] = {
    "selection.select": "none",
    "model.network.width": 128,
    "train.batch_size": 256,
    "train.log_every": 50,
}
"""Settings that make a training short."""
SHORT = {"max_episode_steps": 150}
TASKS = (
    TaskRuns("pusht", 220, 6000, figure="score"),
    TaskRuns("avoiding", 120, 5000, noise=1.5),
    TaskRuns("metaworld:push-v3", 30, 1000, 0.7, "success", "SawyerPushV3Policy", QUIET, SHORT),
    TaskRuns("metaworld:pick-place-v3", 30, 1500, 0.7, "success", "SawyerPickPlaceV3Policy", QUIET, SHORT),
)


def list_runs() -> Iterator[tuple[TaskRuns, str, dict[str, Any]]]:
    """List all runs with their settings, the tasks in turn."""
    for name in TASKS[0].list_runs():
        for task in TASKS:
            yield task, name, task.list_runs()[name]


def train_run(settings: Mapping[str, Any], store: Path, run: Path) -> Policy:
    """Train a run, unless it is finished."""
    if (run / "calibration.json").exists():
        return Policy.from_pretrained(run)
    shutil.rmtree(run, ignore_errors=True)
    fraction = suggest_fraction(settings["demos.episodes"])
    assert fraction is not None
    return train(store, preset="fast", out=run, device="cpu", validation=fraction, **SMALL, **settings)


def score_held_out(policy: Policy, store: Path) -> Score:
    """Score the episodes that the training held out; others of the store are left alone."""
    scored = select_episodes(policy, store)
    held_out = [scored.episodes.index(episode) for episode in policy.record.demos.held_out]
    return score_episodes(policy, scored.select(held_out), ScoreConfig(), name="run")


def roll_out(policy: Policy, task: TaskRuns) -> float:
    """Return the success of a run; demonstrations reach about 1."""
    scores = rollout(policy, episodes=SEEDS, seed_start=FIRST_SEED, env_kwargs=dict(task.env_kwargs or {}))
    estimate: Estimate = getattr(scores, task.figure)
    return estimate.value


def find_result(out: Path, task: str, name: str) -> Path:
    """Return the file of a run's result, which has the name of the run."""
    return out / (re.sub(r"[^\w-]+", "_", f"{task} {name}") + ".json")


def rank(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    array = np.asarray(values)
    ranks: npt.NDArray[np.float64] = (array[:, None] > array).sum(1) + 0.5 * (array[:, None] == array).sum(1)
    return ranks


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print all runs, the best first, and how well their verdicts agree with their success."""
    lines = [
        [
            each["task"],
            each["run"],
            f"{each['success']:.2f}",
            f"{each['verdict']['score']:.2f}",
            each["verdict"]["outlook"],
            f"{each['roughness']:.1f}",
        ]
        for each in sorted(results, key=lambda each: -each["success"])
    ]
    print(format_markdown(["task", "run", "success", "score", "verdict", "roughness"], lines))
    for task in ("", *(task.name for task in TASKS)):
        of_task = [each for each in results if task in ("", each["task"])]
        if len(of_task) > 2:
            numbers = [each["verdict"]["score"] for each in of_task]
            ranks = rank(numbers), rank([each["success"] for each in of_task])
            correlation = float(np.corrcoef(*ranks)[0, 1])
            print(f"{task or 'all tasks'}: {len(of_task)} runs, Spearman's correlation {correlation:.2f}")
    for outlook in (WORK, FAIL, UNSURE):
        good = [each["success"] >= GOOD for each in results if each["verdict"]["outlook"] == outlook]
        print(f"{outlook}: {len(good)} runs, {sum(good)} of them with a success of at least {GOOD}")


def main() -> None:
    """Train, score and roll out what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/verdicts"), help="folder of runs and results")
    parser.add_argument("--table", action="store_true", help="print the results of finished runs")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results = []
    for task, name, settings in list_runs():
        file = find_result(args.out, task.name, name)
        if not file.exists() and not args.table:
            store = task.find_store(args.out)
            policy = train_run(settings, store, file.with_suffix(""))
            score = score_held_out(policy, store)
            result = {
                "task": task.name,
                "run": name,
                "success": roll_out(policy, task),
                "verdict": score.verdict.to_dict(),
                "roughness": score.roughness,
            }
            replace_file(file, json.dumps(result, indent=1).encode())
            print(f"{task.name}, {name}: success {result['success']:.2f}, {score.verdict}", flush=True)
        if file.exists():
            results.append(json.loads(file.read_text()))
    print_table(results)


if __name__ == "__main__":
    main()
