"""Train plan selection: the dynamics model before the policy, the rule after it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from nsde_policy.data.angles import wrap_columns
from nsde_policy.data.augmentation import Mirror, RigidMotions, add_mirror_images
from nsde_policy.data.goal import Goal, circular_mean, find_goal
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import CheckpointError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import load_model
from nsde_policy.inference.selection import RULE_FILE
from nsde_policy.methods.base import Draws
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.selection.dynamics import DynamicsModel
from nsde_policy.selection.rule import Kind, SelectionRule
from nsde_policy.selection.selector import PlanSelector
from nsde_policy.training.checkpoints import Monitor, build_refusal, train_loop
from nsde_policy.training.dataset import build_states, build_transitions, measure_demonstrations
from nsde_policy.training.loop import Training, choose_rows

if TYPE_CHECKING:
    from nsde_policy.training.run import TrainOptions

logger = logging.getLogger(__name__)

REFERENCES = 6_000
"""Most demonstrated observations that the support rule compares plans with."""
TRIALS = 1_000
"""Demonstrated states from which plans are sampled to find the threshold of the support rule."""
SUPPORT_SHARE = 0.8
"""Share of these plans that stay within the threshold."""


class SelectionTraining:
    """The training of plan selection, which also aligns the ends of demonstrations; often there is neither.

    Args:
        motions: Rigid motions that align the ends; None to leave the demonstrations as they are.
        options: Device and resuming.
        monitor: Called at every record of the losses.
    """

    def __init__(
        self, motions: RigidMotions | None, options: "TrainOptions", monitor: Monitor | None
    ) -> None:
        self._motions = motions
        self._options = options
        self._monitor = monitor
        self._dynamics: DynamicsModel | None = None
        self._recorded: Demonstrations | None = None
        self._goal: Goal | None = None
        self.kind: Kind = "none"
        """Rule by which plans will be selected."""

    def prepare(
        self, run: RunDirectory, demos: Demonstrations, config: RunConfig, mirror: Mirror | None, seed: int
    ) -> Demonstrations:
        """Train the dynamics model; return the demonstrations, with aligned ends if the settings ask for it.

        Raises:
            CheckpointError: If the run was begun with other settings, another seed or other demonstrations.
        """
        settings = config.selection
        if settings.select == "none" and self._motions is None:
            return demos
        self._recorded, self._goal = demos, find_goal(add_mirror_images(demos, mirror))
        self.kind = self._choose_kind(config, demos)
        if self.kind == "none" and self._motions is None:
            return demos
        _check_settings(run, {"config": config.to_dict(), "seed": seed, "demos": demos.fingerprint})
        history = config.model.history
        spec = measure_demonstrations(demos, config, mirror)
        model = DynamicsModel(
            settings, spec, history=history, generator=torch.Generator().manual_seed(seed)
        ).to(self._options.device)
        data = build_transitions(add_mirror_images(demos, mirror), config.demos, history=history)
        training = Training(model, data, settings.train, seed=seed)
        if self._options.resume and run.selection.training.exists():
            training.restore(run.selection.read_tensors(run.selection.training))
        if training.step < settings.train.steps:
            run.selection.truncate_metrics(training.step or -1)
            train_loop(run.selection, training, settings.train, self._monitor, title="dynamics model")
        training.finish()
        self._dynamics = model
        if self._motions is None:
            return demos
        return self._align(self._motions, demos, config, mirror)

    def _choose_kind(self, config: RunConfig, demos: Demonstrations) -> Kind:
        """Return the rule that the settings name, or the one that suits the demonstrations."""
        choice = config.selection.select
        if choice != "auto":
            return SelectionRule(columns=() if self._goal is None else self._goal.columns).choose(choice).kind
        kind, reason = choose_rule(measure_statistics(demos), config.horizon)
        logger.info("plan selection: %s (%s)", kind, reason)
        return kind

    def _align(
        self, motions: RigidMotions, demos: Demonstrations, config: RunConfig, mirror: Mirror | None
    ) -> Demonstrations:
        """Move each demonstration as a whole so that its body ends in the mean of all final poses.

        The final pose is the one after the last action, which was not recorded: the dynamics model predicts
        it. A mirror image ends in the mirrored pose, so both predictions are averaged.
        """
        ends = self._predict_ends(demos, config)
        poses = ends
        if mirror is not None:
            other = mirror.flip_observations(self._predict_ends(mirror.flip(demos), config), demos.angles)
            ends = other + wrap_columns(ends - other, demos.angles) / 2
            poses = np.concatenate([ends, mirror.flip_observations(ends, demos.angles)])
        columns = list(motions.body)
        goal = circular_mean(poses, list(demos.angles))[columns]
        aligned = motions.align(demos, ends[:, columns], goal)
        shift = np.linalg.norm(goal[:2] - ends[:, columns[:2]], axis=1)
        logger.info(
            "ends of %d demonstrations are aligned: moved by %.3g on average", len(demos), shift.mean()
        )
        return aligned

    @torch.no_grad()
    def _predict_ends(self, demos: Demonstrations, config: RunConfig) -> np.ndarray:
        """Predict the observation after the last action of each demonstration, (episodes, obs_dim)."""
        assert self._dynamics is not None
        states = build_states(demos, config.demos)
        last = demos.episode_ends - 1
        known = np.stack([states[np.maximum(last - lag, demos.starts)] for lag in range(2)], axis=1)
        given = (torch.from_numpy(array).to(self._options.device) for array in (known, demos.act[last, None]))
        return self._dynamics.predict(*given)[:, 0].double().cpu().numpy()

    @torch.no_grad()
    def finish(self, run: RunDirectory, mirror: Mirror | None) -> None:
        """Measure goal and support, choose the rule, and write both with the dynamics model.

        Both come from the demonstrations as recorded: aligned ends would not show how exact an end has to be.
        """
        if self._dynamics is None or self.kind == "none":
            return
        assert self._recorded is not None
        record, policy = load_model(run)
        config, device = record.config, self._options.device
        both, goal = add_mirror_images(self._recorded, mirror), self._goal
        rule = SelectionRule(columns=() if goal is None else goal.columns)
        obs = choose_rows(torch.tensor(both.obs), REFERENCES, seed=record.seed)
        directions = 0 if goal is None else goal.whitening.shape[1]
        selector = PlanSelector(rule, self._dynamics, directions=directions, references=len(obs)).to(device)
        selector.set_references(obs.to(device))
        if goal is not None:
            selector.set_goal(goal)
        pairs = build_transitions(both, config.demos, history=config.model.history)
        trials = choose_rows(pairs.x, TRIALS, seed=record.seed).reshape(
            -1, config.model.history, record.spec.dim
        )
        draws = Draws([torch.Generator().manual_seed(record.seed)] * len(trials), device)
        plans = policy.to(device).plan(trials.to(device), steps=config.horizon, draws=draws)
        distance = selector.support_distance(self._dynamics.predict(trials.to(device), plans)).amax(1)
        threshold = float(distance.quantile(SUPPORT_SHARE))
        rule = replace(rule, threshold=threshold, kind=self.kind)
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
