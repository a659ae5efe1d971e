"""A run that selects plans, made without training."""

import shutil
from pathlib import Path

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.inference.selection import RULE_FILE, build_dynamics
from nsde_policy.run_directory import RunDirectory
from nsde_policy.selection.rule import SelectionRule
from nsde_policy.selection.selector import PlanSelector


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
