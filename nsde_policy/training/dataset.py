"""Training data: demonstrations with what training adds, and as tensors, either transitions or windows.

A state is x_t = (obs_t, act_{t−1}), which is fully known when the policy has to choose act_t.

Deviation: the paper's state holds the current action, which a policy does not know yet. With the previous
one, the action part of the *next* state is the command to send now.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from nsde_policy.config import WindowConfig
from nsde_policy.core.batches import Transitions, Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import measure_state
from nsde_policy.data.action_columns import (
    describe_changes,
    find_binary,
    format_matches,
    match_changes,
    match_columns,
    measure_first_action,
)
from nsde_policy.data.angles import unwrap_angles
from nsde_policy.data.augmentation import Mirror, add_mirror_images
from nsde_policy.data.types import Demonstrations, Floats
from nsde_policy.errors import ConfigError
from nsde_policy.interface.planner import check_first_action, replace_first_action
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Demonstrations that a policy is trained on."""

    demos: Demonstrations
    """Demonstrations; features of camera frames are the last columns of their observations."""
    mirror: Mirror | None = None
    """Mirror symmetry that doubles the demonstrations; None for no mirror images."""
    image_features: int = 0
    """Columns of observations that are features of camera frames."""
    mirror_image: Demonstrations | None = None
    """Mirror image of each demonstration, if it cannot be computed because it holds features."""
    copies: "tuple[TrainingSet, ...]" = ()
    """The same demonstrations with features of disturbed frames, on which a policy is trained as well."""

    def __len__(self) -> int:
        return len(self.demos)

    @property
    def without_features(self) -> Demonstrations:
        """The demonstrations without features of camera frames."""
        if not self.image_features:
            return self.demos
        return replace(self.demos, obs=self.demos.obs[:, : -self.image_features])

    @cached_property
    def with_mirror_images(self) -> Demonstrations:
        """The demonstrations, followed by the mirror image of each if there is a symmetry."""
        if self.mirror_image is not None:
            return self.demos.append(self.mirror_image)
        return add_mirror_images(self.demos, self.mirror)

    def join(self) -> Demonstrations:
        """Return the demonstrations, their copies, and mirror images of both."""
        return self.with_mirror_images.append(*(copy.with_mirror_images for copy in self.copies))

    def add_features(self, features: Floats, mirrored: Floats | None) -> "TrainingSet":
        """Return the set with features after all observations, (frames, features).

        `mirrored` are those of the mirror images, unless there are none.
        """
        image = None
        if self.mirror is not None and mirrored is not None:
            image = _append_columns(self.mirror.flip(self.demos), mirrored)
        demos = _append_columns(self.demos, features)
        return replace(self, demos=demos, image_features=features.shape[1], mirror_image=image)

    def select(self, episodes: Sequence[int]) -> "TrainingSet":
        """Return the set of some episodes, increasing."""
        if len(episodes) == len(self):
            return self
        return replace(
            self,
            demos=self.demos.select(episodes),
            mirror_image=None if self.mirror_image is None else self.mirror_image.select(episodes),
            copies=tuple(copy.select(episodes) for copy in self.copies),
        )

    def with_camera_dropout(self, settings: DemoConfig, spec: StateSpec) -> "TrainingSet":
        """Return the set with copies that lack one of the cameras, a fraction `images_dropout` of all data.

        A camera is lost for a whole episode: a policy that predicts states must not learn that features jump.
        """
        fraction, cameras = settings.images_dropout, len(settings.images)
        if not fraction:
            return self
        clean = replace(self, copies=())
        count = math.ceil(fraction / (1 - fraction) * len(self) * (1 + len(self.copies)) / cameras)
        order, lost = np.random.default_rng(0).permutation(len(self)), []
        for camera in range(cameras):
            columns, features = spec.find_lost_features(camera, cameras)
            episodes = order.take(range(camera * count, (camera + 1) * count), mode="wrap").tolist()
            image = None
            if clean.mirror_image is not None:
                image = _fill_columns(clean.mirror_image.select(episodes), columns, features)
            demos = _fill_columns(clean.demos.select(episodes), columns, features)
            lost.append(replace(clean, demos=demos, mirror_image=image))
        return replace(self, copies=(*self.copies, *lost))


def _append_columns(demos: Demonstrations, features: Floats) -> Demonstrations:
    return replace(demos, obs=np.concatenate([demos.obs, features], axis=1))


def _fill_columns(demos: Demonstrations, columns: slice, values: Sequence[float]) -> Demonstrations:
    obs = demos.obs.copy()
    obs[:, columns] = values
    return replace(demos, obs=obs)


def resolve_first_action(demos: Demonstrations, config: RunConfig) -> RunConfig:
    """Return the settings with the action before the first one inferred where they leave it open.

    The demonstrations must hold neither mirror images nor features of images yet.
    """
    settings = config.demos
    columns = match_columns(demos) if settings.first_action_from is None else settings.first_action_from
    constants = settings.first_action or measure_first_action(demos, columns)
    check_first_action(columns, constants, demos.obs.shape[1], demos.act.shape[1])
    return replace(config, demos=replace(settings, first_action_from=columns, first_action=constants))


def infer_settings(demos: Demonstrations, config: RunConfig) -> RunConfig:
    """Return the settings with what they leave to the demonstrations; log what was inferred."""
    if not demos.rate_hz:
        logger.warning(
            "%s does not record its rate, which a control session needs: train with --rate HZ", demos.source
        )
    resolved = resolve_first_action(demos, config)
    if resolved != config:
        logger.info("action before the first one: %s", _describe_first_action(resolved.demos))
        if described := describe_changes(match_changes(demos, resolved.demos.first_action_from or ())):
            logger.info(described)
    return resolved


def _describe_first_action(settings: DemoConfig) -> str:
    """Describe what replaces the action before the first one, in one line."""
    columns, constants = settings.first_action_from or (), settings.first_action
    median = f"the median first action ({', '.join(f'{value:.4g}' for value in constants)})"
    if len(constants) == len(columns):
        return f"{median}: no action column is an observed position"
    return f"the observed position ({format_matches(columns)})" + (f", else {median}" if constants else "")


def build_training_data(data: TrainingSet, config: RunConfig) -> Transitions | Windows:
    """Build what the method is trained on: demonstrations, their copies, and mirror images of both.

    `config` comes from `infer_settings`.
    """
    model, settings, demos = config.model, config.demos, data.join()
    if get_method(config.method).model_class().training_view == "transitions":
        return build_transitions(
            demos,
            settings,
            history=model.history,
            dt=model.policy_period,
            final_action_weight=settings.final_action_weight,
        )
    if not isinstance(model, WindowConfig):
        raise ConfigError(f"{type(model).__name__} must be a WindowConfig to be trained on windows")
    return build_windows(
        demos, settings, horizon=model.horizon, history=model.history, n_action_steps=config.chunk
    )


def measure_state_spec(data: TrainingSet, config: RunConfig, *, scale_features: bool = True) -> StateSpec:
    """Measure ranges and increments on recorded pairs of states, with mirror images as in training.

    `config` comes from `infer_settings`. Without `scale_features`, features reach the policy's network as the
    encoder computes them.
    """
    demos = data.with_mirror_images
    pairs = build_transitions(demos, config.demos)
    spec = measure_state(
        pairs.x,
        pairs.x_next,
        act_dim=demos.act.shape[1],
        circular=_find_state_angles(demos),
        image_features=data.image_features,
    )
    if config.demos.round_binary:
        spec = replace(spec, binary=find_binary(demos))
    if scale_features:
        return spec
    features = range(spec.plain_dim, spec.obs_dim)
    low, high = (
        tuple(limit if i in features else value for i, value in enumerate(values))
        for limit, values in ((-1.0, spec.low), (1.0, spec.high))
    )
    return replace(spec, low=low, high=high)


def build_states(demos: Demonstrations, settings: DemoConfig) -> np.ndarray:
    """Concatenate each observation with the action before it, (frames, obs_dim + act_dim).

    The settings say what replaces the action before an episode's first one.
    """
    obs_dim, act_dim = demos.obs.shape[1], demos.act.shape[1]
    columns, constants = settings.first_action_from or (), settings.first_action
    check_first_action(columns, constants, obs_dim, act_dim)
    previous = np.roll(demos.act, 1, axis=0)
    previous[demos.starts] = replace_first_action(demos.obs[demos.starts], columns, constants, act_dim)
    return np.concatenate([demos.obs, previous], axis=1)


def build_transitions(
    demos: Demonstrations,
    settings: DemoConfig,
    *,
    history: int = 1,
    dt: float = 1.0,
    final_action_weight: float = 0.0,
) -> Transitions:
    """Pair every state with its successor; no pair, and no history, spans two episodes.

    Angles continue those of the present state, so that no difference holds a 2π jump. Before the beginning of
    an episode, its first state is repeated. An episode of T frames gives T − 1 pairs. If
    `final_action_weight` is positive, its last frame gives one more pair with this weight: what came after it
    was not recorded, but the last action was, often the one that finished the task.
    """
    states = build_states(demos, settings)
    obs_dim, now = demos.obs.shape[1], np.arange(len(states))
    if final_action_weight <= 0:
        now = np.delete(now, demos.episode_ends - 1)
    episode = np.searchsorted(demos.episode_ends, now, side="right")
    recent = np.maximum(now[:, None] - np.arange(history), demos.starts[episode][:, None])
    successor = np.minimum(now + 1, demos.episode_ends[episode] - 1)
    path = states[np.column_stack([recent[:, ::-1], successor])]
    final = now == successor
    path[final, -1, obs_dim:] = demos.act[now[final]]
    path = unwrap_angles(path, _find_state_angles(demos), anchor=history - 1)
    weight = np.ones(path[:, -1].shape, np.float32)
    weight[final] = final_action_weight
    weight[final, :obs_dim] = 0.0  # the observation after a final action was not recorded
    return Transitions(
        x=torch.from_numpy(path[:, -2::-1].reshape(len(path), -1)),
        x_next=torch.from_numpy(path[:, -1].copy()),
        dt=torch.full((len(path), 1), dt),
        weight=torch.from_numpy(weight),
    )


def build_windows(
    demos: Demonstrations, settings: DemoConfig, *, horizon: int, history: int, n_action_steps: int
) -> Windows:
    """Cut every window that holds `n_action_steps` recorded actions from the present on.

    As in Diffusion Policy; with horizon 6, history 2, n_action_steps 3:

        frame        t-1  t   t+1  t+2  t+3  t+4
        observed      x   x
        predicted     x   x   x    x    x    x
        executed          x   x    x

    Windows that reach past either end of their episode repeat its first or last frame; none spans two
    episodes. Angles of states lead up to the present one, those of actions start from it: no window holds a
    2π jump.

    Deviation: an episode too short to hold `n_action_steps` actions gives one padded window; Diffusion Policy
    drops it.
    """
    frames = find_window_frames(demos, horizon=horizon, history=history, n_action_steps=n_action_steps)
    states = build_states(demos, settings)
    recent = unwrap_angles(states[frames[:, :history]], _find_state_angles(demos), anchor=-1)
    actions = unwrap_angles(demos.act[frames], demos.act_angles, anchor=history - 1)
    return Windows(states=torch.from_numpy(recent[:, ::-1].copy()), actions=torch.from_numpy(actions.copy()))


def find_window_frames(
    demos: Demonstrations, *, horizon: int, history: int, n_action_steps: int
) -> np.ndarray:
    """Return the index of each frame of the windows that `build_windows` cuts, (n, horizon), oldest first."""
    counts = np.maximum(demos.lengths - horizon + history + n_action_steps - 1, 1)
    episode = np.repeat(np.arange(len(demos)), counts)
    nth = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    steps = (nth - (history - 1))[:, None] + np.arange(horizon)
    frames: np.ndarray = demos.starts[episode][:, None] + np.clip(
        steps, 0, demos.lengths[episode][:, None] - 1
    )
    return frames


def _find_state_angles(demos: Demonstrations) -> tuple[int, ...]:
    """List the columns of a state that are angles."""
    obs_dim = demos.obs.shape[1]
    return demos.angles + tuple(obs_dim + column for column in demos.act_angles)
