"""Train plan selection: the dynamics model before the policy, the rule after it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.augmentation import RigidMotions
from nsde_policy.data.goal import Goal, circular_mean, find_goal
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import CheckpointError
from nsde_policy.files import read_json, replace_file
from nsde_policy.methods.base import BatchRng
from nsde_policy.policy.loading import load_model
from nsde_policy.policy.selection import RULE_FILE
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.selection.dynamics import DynamicsModel
from nsde_policy.selection.rule import Kind, SelectionRule
from nsde_policy.selection.selector import PlanSelector

from .checkpoints import build_refusal
from .dataset import build_states, build_transitions, measure_demonstrations
from .recorder import FitOptions, fit_run, sample_rows
from .training_set import TrainingSet

logger = logging.getLogger(__name__)

REFERENCES = 6_000
"""Most demonstrated observations that the support rule compares plans with."""
TRIALS = 1_000
"""Demonstrated states from which plans are sampled to find the threshold of the support rule."""
SUPPORTED_FRACTION = 0.8
"""Fraction of these plans that stay within the threshold."""


@dataclass(frozen=True)
class SelectionTraining:
    """What plan selection, and the alignment of demonstrations, learned before the policy is trained."""

    kind: Kind
    """Rule by which plans will be selected."""
    goal: Goal | None
    """Where demonstrations end, if they agree."""
    dynamics: DynamicsModel
    """Trained model that predicts where a plan leads."""
    data: TrainingSet
    """Demonstrations as recorded."""


def train_dynamics(
    run: RunDirectory,
    data: TrainingSet,
    config: RunConfig,
    options: FitOptions,
    *,
    aligns: bool,
) -> SelectionTraining | None:
    """Choose the rule of plan selection and train the dynamics model; None if neither needs it.

    `aligns` is whether the ends of demonstrations will be aligned, by the predictions of the model.

    Raises:
        CheckpointError: If the run was begun with other settings, another seed or other demonstrations.
    """
    settings = config.selection
    if settings.select == "none" and not aligns:
        return None
    demos = data.with_mirror_images
    goal = find_goal(demos, data.image_features)
    kind = _choose_kind(data, config, goal)
    if kind == "none" and not aligns:
        return None
    _check_settings(run, {"config": config.to_dict(), "seed": options.seed, "demos": data.demos.fingerprint})
    history, spec = config.model.history, measure_demonstrations(data, config)
    generator = torch.Generator().manual_seed(options.seed)
    model = DynamicsModel(settings, spec, history=history, generator=generator)
    pairs = build_transitions(demos, config.demos, history=history)
    fit_run(run.selection, model, pairs, settings.train, options, title="dynamics model")
    return SelectionTraining(kind, goal, model, data)


def _choose_kind(data: TrainingSet, config: RunConfig, goal: Goal | None) -> Kind:
    """Return the rule that the settings name, or the one that suits the demonstrations."""
    choice = config.selection.select
    if choice != "auto":
        return SelectionRule(columns=() if goal is None else goal.columns).choose(choice).kind
    statistics = measure_statistics(data.demos, data.image_features)
    kind, reason = choose_rule(statistics, config.horizon)
    logger.info("plan selection: %s (%s)", kind, reason)
    return kind


def align_ends(selection: SelectionTraining, motions: RigidMotions, config: RunConfig) -> TrainingSet:
    """Move each demonstration as a whole so that its body ends in the mean of all final poses.

    The final pose is the one after the last action, which was not recorded: the dynamics model predicts
    it. A mirror image ends in the mirrored pose, so both predictions are averaged.
    """
    demos, mirror = selection.data.demos, selection.data.mirror
    poses = ends = _predict_ends(selection.dynamics, demos, config)
    if mirror is not None:
        mirrored_ends = _predict_ends(selection.dynamics, mirror.flip(demos), config)
        other = mirror.flip_observations(mirrored_ends, demos.angles)
        ends = other + wrap_columns(ends - other, demos.angles) / 2
        poses = np.concatenate([ends, mirror.flip_observations(ends, demos.angles)])
    columns = list(motions.body)
    goal = circular_mean(poses, list(demos.angles))[columns]
    aligned = motions.align(demos, ends[:, columns], goal)
    shift = np.linalg.norm(goal[:2] - ends[:, columns[:2]], axis=1)
    logger.info("ends of %d demonstrations are aligned: moved by %.3g on average", len(demos), shift.mean())
    return replace(selection.data, demos=aligned)


@torch.no_grad()
def _predict_ends(dynamics: DynamicsModel, demos: Demonstrations, config: RunConfig) -> np.ndarray:
    """Predict the observation after the last action of each demonstration, (episodes, obs_dim)."""
    states, device = build_states(demos, config.demos), next(dynamics.parameters()).device
    last = demos.episode_ends - 1
    recent = np.stack([states[np.maximum(last - lag, demos.starts)] for lag in range(2)], axis=1)
    inputs = (torch.from_numpy(array).to(device) for array in (recent, demos.act[last, None]))
    return dynamics.predict(*inputs)[:, 0].double().cpu().numpy()


@torch.no_grad()
def write_rule(run: RunDirectory, selection: SelectionTraining | None) -> None:
    """Measure goal and support with the trained policy, and write the rule with the dynamics model.

    Both come from the demonstrations as recorded: aligned ends would not show how exact an end has to be.
    """
    if selection is None or selection.kind == "none":
        return
    record, policy = load_model(run)
    config, dynamics, goal = record.config, selection.dynamics, selection.goal
    device = next(dynamics.parameters()).device
    demos = selection.data.with_mirror_images
    rule = SelectionRule(columns=() if goal is None else goal.columns)
    obs = sample_rows(torch.tensor(demos.obs), REFERENCES, seed=record.seed)
    directions = 0 if goal is None else goal.whitening.shape[1]
    selector = PlanSelector(rule, dynamics, directions=directions, references=len(obs)).to(device)
    selector.set_references(obs.to(device))
    if goal is not None:
        selector.set_goal(goal)
    pairs = build_transitions(demos, config.demos, history=config.model.history)
    trials = sample_rows(pairs.x, TRIALS, seed=record.seed)
    trials = trials.reshape(-1, config.model.history, record.spec.dim).to(device)
    rng = BatchRng([torch.Generator().manual_seed(record.seed)] * len(trials), device)
    plans = policy.to(device).plan(trials, steps=config.horizon, rng=rng)
    distance = selector.support_distance(dynamics.predict(trials, plans)).amax(1)
    threshold = float(distance.quantile(SUPPORTED_FRACTION))
    rule = replace(rule, threshold=threshold, kind=selection.kind)
    run.selection.save_tensors(run.selection.model, selector.state_dict())
    replace_file(run.selection.path / RULE_FILE, rule.to_json().encode())


def _check_settings(run: RunDirectory, settings: Mapping[str, object]) -> None:
    """Write the settings; to resume, raise `CheckpointError` if the run was begun with others."""
    file, text = run.selection.config, json.dumps(settings, indent=2)
    if not (file.exists() or run.config.exists()):
        replace_file(file, text.encode())
    else:
        written = read_json(file, error=CheckpointError) if file.exists() else {}
        if written != json.loads(text):
            raise build_refusal(run.path, written, settings)


def choose_rule(statistics: DemoStatistics, chunk: int) -> tuple[Kind, str]:
    """Return the rule that suits demonstrations, and the reason in words."""
    if statistics.is_predictable:
        return "none", "the demonstrations are predictable"
    if statistics.goal_frames >= chunk:
        return (
            "goal",
            f"the demonstrations end alike, after {statistics.goal_frames:g} frames near their goal",
        )
    if statistics.has_branches:
        return "support", "the demonstrations branch"
    return "none", "the demonstrations neither stay near a goal nor branch"
