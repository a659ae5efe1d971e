"""Load the plan selector of a run directory."""

import os

import torch

from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.selection.dynamics import DynamicsModel
from nsde_policy.selection.rule import SelectionRule
from nsde_policy.selection.selector import PlanSelector

from .loading import check_weights

RULE_FILE = "rule.json"
"""File in the folder of plan selection, written when training is finished."""


def build_dynamics(record: RunRecord) -> DynamicsModel:
    """Build the dynamics model of a run with initial weights sampled from its seed."""
    config = record.config
    generator = torch.Generator().manual_seed(record.seed)
    return DynamicsModel(config.selection, record.spec, history=config.model.history, generator=generator)


def load_selector(run: RunDirectory, record: RunRecord) -> PlanSelector | None:
    """Load the plan selector of a run in evaluation mode; None if it has none, or is not trained to its end.

    Raises:
        CheckpointError: If the selector is damaged, or missing though the settings select plans.
    """
    folder = run.selection
    file = folder.path / RULE_FILE
    if not os.path.lexists(file):
        choice = record.config.selection.select  # earlier versions did not record what `auto` chose
        if choice in ("none", "auto") or run.describe_unfinished() is not None:
            return None
        raise CheckpointError(
            f"{run.path} selects plans by {choice}, but has no {folder.path.name}/{RULE_FILE}: restore the "
            "folder, or finish the training with train --resume"
        )
    try:
        rule = SelectionRule.from_dict(read_json(file, error=CheckpointError)).choose("auto")
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None
    weights = folder.read_weights()
    with check_weights(folder, weights):
        if max(rule.columns, default=-1) >= record.spec.obs_dim:
            raise ValueError(
                f"{RULE_FILE} names a column beyond its {record.spec.obs_dim} observation columns"
            )
        directions, references = weights["whitening"].shape[1], len(weights["references"])
        selector = PlanSelector(rule, build_dynamics(record), directions=directions, references=references)
        selector.load_state_dict(weights)
    return selector.eval()
