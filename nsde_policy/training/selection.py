"""Train plan selection: the dynamics model before the policy, the rule after it."""

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch

from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.augmentation import RigidMotions
from nsde_policy.data.goal import Goal, circular_mean, find_goal
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.data.types import Demonstrations
from nsde_policy.files import replace_file
from nsde_policy.methods.base import BatchRng
from nsde_policy.policy.loading import load_model
from nsde_policy.policy.selection import RULE_FILE
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.selection.dynamics import MAX_STATES, DynamicsModel
from nsde_policy.selection.rule import Kind, SelectionRule
from nsde_policy.selection.selector import PlanSelector

from .dataset import TrainingSet, build_states, build_transitions, measure_state_spec
from .fit import fit
from .options import TrainOptions
from .recorder import RunRecorder, sample_rows
from .resume import record_or_check_settings

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
    recorded: TrainingSet
    """Demonstrations as recorded."""
    aligned: TrainingSet
    """Demonstrations for the policy; their ends are aligned if the settings say so."""


def train_dynamics(
    run: RunDirectory,
    data: TrainingSet,
    config: RunConfig,
    options: TrainOptions,
    *,
    kind: Kind,
    motions: RigidMotions | None,
) -> SelectionTraining | None:
    """Train the dynamics model for a rule of plan selection; None if nothing needs it.

    With `motions`, its predictions also align the ends of the demonstrations.

    Raises:
        CheckpointError: If the run was begun with other settings, another seed or other demonstrations.
    """
    if kind == "none" and motions is None:
        return None
    demos = data.with_mirror_images
    goal = find_goal(demos, data.image_features)
    settings = {"config": config.to_dict(), "seed": options.seed, "demos": data.demos.fingerprint}
    record_or_check_settings(run, run.selection, settings, resume=options.resume)
    history, spec = config.model.history, measure_state_spec(data, config)
    generator = torch.Generator().manual_seed(options.seed)
    model = DynamicsModel(config.selection, spec, history=history, generator=generator)
    pairs = build_transitions(demos, config.demos, history=history)
    recorder = RunRecorder(run.selection, options, title="dynamics model")
    fit(model.to(options.device), pairs, config.selection.train, seed=options.seed, recorder=recorder)
    aligned = data if motions is None else _align_ends(data, motions, model, config)
    return SelectionTraining(kind, goal, model, data, aligned)


def choose_kind(data: TrainingSet, config: RunConfig) -> Kind:
    """Return the rule that the settings name, or the one that suits the demonstrations.

    With held-out episodes among them, a run that is scored on these has the rule of the run on all episodes.
    """
    choice = config.selection.select
    if choice == "auto":
        kind: Kind = "none"
        reason = "plans are sampled without noise and do not differ"
        if config.model.plans_vary:
            statistics = measure_statistics(data.demos, data.image_features)
            kind, reason = choose_rule(statistics)
        logger.info("plan selection: %s (%s)", kind, reason)
        return kind
    goal = find_goal(data.with_mirror_images, data.image_features) if choice == "goal" else None
    return SelectionRule(columns=() if goal is None else goal.columns).choose(choice).kind


def choose_rule(statistics: DemoStatistics) -> tuple[Kind, str]:
    """Return the rule that suits demonstrations, and the reason in words."""
    if statistics.has_goal:
        return (
            "goal",
            f"the demonstrations end alike, after {statistics.goal_frames:.0f} frames near their goal",
        )
    if statistics.has_branches:
        return "support", "the demonstrations branch"
    return "none", "the demonstrations neither stay near a goal nor branch"


def _align_ends(
    data: TrainingSet, motions: RigidMotions, dynamics: DynamicsModel, config: RunConfig
) -> TrainingSet:
    """Move each demonstration as a whole so that its body ends in the mean of all final poses.

    The final pose is the one after the last action, which was not recorded: the dynamics model predicts
    it. A mirror image ends in the mirrored pose, so both predictions are averaged.
    """
    demos, mirror = data.demos, data.mirror
    poses = ends = _predict_ends(dynamics, demos, config)
    if mirror is not None:
        mirrored_ends = _predict_ends(dynamics, mirror.flip(demos), config)
        other = mirror.flip_observations(mirrored_ends, demos.angles)
        ends = other + wrap_columns(ends - other, demos.angles) / 2
        poses = np.concatenate([ends, mirror.flip_observations(ends, demos.angles)])
    columns = list(motions.body)
    goal = circular_mean(poses, list(demos.angles))[columns]
    shift = np.linalg.norm(goal[:2] - ends[:, columns[:2]], axis=1)
    logger.info("ends of %d demonstrations are aligned: moved by %.3g on average", len(demos), shift.mean())
    return replace(data, demos=motions.align(demos, ends[:, columns], goal))


@torch.no_grad()
def _predict_ends(dynamics: DynamicsModel, demos: Demonstrations, config: RunConfig) -> np.ndarray:
    """Predict the observation after the last action of each demonstration, (episodes, obs_dim)."""
    states, device = build_states(demos, config.demos), next(dynamics.parameters()).device
    last = demos.episode_ends - 1
    recent = np.stack([states[np.maximum(last - lag, demos.starts)] for lag in range(MAX_STATES)], axis=1)
    inputs = (torch.from_numpy(array).to(device) for array in (recent, demos.act[last, None]))
    return dynamics.predict(*inputs)[:, 0].double().cpu().numpy()


@torch.no_grad()
def write_rule(run: RunDirectory, selection: SelectionTraining) -> None:
    """Measure goal and support with the trained policy, and write the rule with the dynamics model.

    Both come from the demonstrations as recorded: aligned ends would not show how exact an end has to be.
    """
    record, policy = load_model(run)
    config, dynamics, goal = record.config, selection.dynamics, selection.goal
    device = next(dynamics.parameters()).device
    demos = selection.recorded.with_mirror_images
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
