"""Runs that select plans, made without training or trained for a few steps."""

import shutil
from pathlib import Path
from typing import Any

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.policy.selection import RULE_FILE, build_dynamics
from nsde_policy.run_directory import RunDirectory
from nsde_policy.selection.rule import SelectionRule
from nsde_policy.selection.selector import PlanSelector
from nsde_policy.tasks import get_task
from nsde_policy.training.options import Monitor, TrainOptions
from nsde_policy.training.train import train_run

FEW = TrainConfig(steps=20, batch_size=64, log_every=5)
TINY = get_task("pusht").preset("fast").replace_parts(
    demos={"episodes": 12},
    model={"network": NetworkConfig(width=16, depth=2)},
    train=vars(FEW),
    selection={"select": "goal", "network": NetworkConfig(width=16, depth=2, dropout=0.0), "train": FEW},
)  # fmt: skip
"""Tiny settings for Push-T on twelve demonstrations; the dynamics model takes as many steps as the policy."""


def make_selecting_run(path: Path) -> Path:
    """Copy the shipped policy and add an untrained dynamics model; plans are compared in the middle third."""
    shutil.copytree(SHIPPED_POLICY, path)
    run, rule = RunDirectory(path), SelectionRule("goal", columns=(0,))
    selector = PlanSelector(rule, build_dynamics(run.read_record()), directions=1, references=1)
    selector.goal.fill_(256.0)
    selector.whitening.fill_(0.03)
    run.selection.path.mkdir(exist_ok=True)
    run.selection.save_tensors(run.selection.model, selector.state_dict())
    (run.selection.path / RULE_FILE).write_text(rule.to_json())
    return path


def train_tiny(
    path: Path,
    *,
    seed: int = 1,
    resume: bool = False,
    monitor: Monitor | None = None,
    **parts: dict[str, Any],
) -> RunDirectory:
    """Train `TINY` with some settings changed."""
    config, options = TINY.replace_parts(**parts), TrainOptions(seed=seed, resume=resume, monitor=monitor)
    return train_run(None, config, path, task="pusht", options=options)
