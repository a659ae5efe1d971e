"""Environments as policies see them: one flat observation, one flat action, every value checked."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any, NoReturn, Self

import gymnasium as gym
import numpy as np

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.base import IMAGE_KEY
from nsde_policy.errors import EnvError
from nsde_policy.tasks.base import Task
from nsde_policy.tasks.gym import INSTALL_EGL, close_env, open_env, run_env_code

MAX_STEPS = 20_000
"""An episode that takes longer is an error: most likely the environment never ends it."""
LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""Largest observation and reward: policies and stores hold float32."""
LARGEST_FIGURE = 1e100
"""Largest score; squares of larger ones overflow."""
RENDER_HINT = f"; leave out --render, or for MuJoCo without a display run: {INSTALL_EGL}"


class EnvAdapter:
    """An environment with a flat vector as observation and as action.

    A Box observation is flattened. Of a Dict, the parts that `obs_keys` names are concatenated if it has all
    of them and they have `obs_dim` values; otherwise all Box parts except images, in the order of the space.
    Actions are clipped to the action space and get its shape and type.

    Args:
        env: Environment, for one episode at a time.
        name: What error messages call it.
        obs_keys: Names of the observations that a policy was trained on.
        obs_dim: Number of values that it was trained on; None without a policy.
        cameras: Cameras that it was trained on. Each is the part of the observation with its name, with or
            without "observation.images."; a single camera is the only image of the observation.

    Raises:
        EnvError: If its spaces cannot be flattened.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        name: str,
        *,
        obs_keys: Sequence[str] = (),
        obs_dim: int | None = None,
        cameras: Sequence[CameraSpec] = (),
    ) -> None:
        self.env, self.name = env, name
        self._seed: int | None = None
        self._step = 0
        self.last_obs: Any = None
        """The last observation as the environment gave it."""
        self.last_frames: dict[str, np.ndarray] = {}
        """Frames of the last observation by the name of the camera, (height, width, 3) uint8."""
        with self.guard("its observation_space or action_space"):
            self._read_spaces(obs_keys, obs_dim, cameras)

    @classmethod
    def open(cls, task: Task, env_kwargs: Mapping[str, Any], **options: Any) -> Self:
        """Make the environment of a task; `options` are those of the constructor.

        Raises:
            EnvError: If it cannot be made, or its spaces cannot be flattened.
        """
        return cls(open_env(task, env_kwargs), task.env_id or task.name, **options)

    def _read_spaces(
        self, obs_keys: Sequence[str], obs_dim: int | None, cameras: Sequence[CameraSpec]
    ) -> None:
        space = getattr(self.env, "observation_space", None)
        if isinstance(space, gym.spaces.Dict) and not all(isinstance(key, str) for key in space.spaces):
            self._fail(f"its observation {_list_parts(space)} has names that are not text: rename them")
        self.images = _find_images(space)
        """Shape of each part of the observation that is a colour picture, uint8, by its name."""
        self.cameras = self._find_cameras(cameras)
        """Which part of the observation is the frame of each camera, by the camera's name."""
        self._observed = self._find_parts(space, obs_keys, obs_dim)
        action = getattr(self.env, "action_space", None)
        if not isinstance(action, gym.spaces.Box):
            self._fail(
                f"its action space is {action}, but policies give real numbers and need a Box: wrap the "
                "environment"
            )
        self._action = action
        self.low, self.high = (
            np.asarray(limit, np.float64).reshape(-1) for limit in (action.low, action.high)
        )
        self.obs_sizes = {key: int(np.prod(part.shape)) for key, part in self._observed.items()}
        """Number of values by the name of each part; the name is None if the space is a Box."""
        self.obs_dim = sum(self.obs_sizes.values())
        self.act_dim = self.low.size

    def check_sizes(self, obs_dim: int, act_dim: int) -> None:
        """Raise `EnvError` if observations or actions do not have the sizes that a policy needs."""
        parts = ", ".join(f"{key or 'observation'} {part.shape}" for key, part in self._observed.items())
        for what, found, needed, shapes in (
            ("observation", self.obs_dim, obs_dim, parts),
            ("action", self.act_dim, act_dim, f"action {self._action.shape}"),
        ):
            if found != needed:
                self._fail(
                    f"its {what} has {found} values ({shapes}), but the policy was trained with {needed}: "
                    "choose the environment that fits with --env, or wrap it"
                )

    def reset(self, seed: int | None, **options: Any) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Start an episode and return the first observation, (obs_dim,), and the info.

        Args:
            seed: Seed of the episode.
            options: Further arguments of the environment's own `reset`.
        """
        self._seed, self._step = seed, 0
        with self.guard("reset"):
            found = self.env.reset(seed=seed, **options)
            if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
                self._fail(
                    f"reset returned {_describe_found(found)}, expected (observation, info) with a dict as "
                    "info: follow Gymnasium's interface, Env.reset"
                )
            return self._flatten(found[0]), found[1]

    def clip(self, action: np.ndarray) -> np.ndarray:
        """Return an action, (act_dim,), inside the action space; rounded if that holds integers."""
        clipped: np.ndarray = np.clip(action, self.low, self.high)
        if np.issubdtype(self._action.dtype, np.integer):
            np.rint(clipped, out=clipped)
        return clipped

    def step(
        self, action: np.ndarray, *, is_limited: bool = True
    ) -> tuple[np.ndarray, float, bool, Mapping[str, Any]]:
        """Execute an action, (act_dim,), that `clip` returned.

        Args:
            action: The action.
            is_limited: Whether an episode of more than `MAX_STEPS` steps is an error.

        Returns:
            Observation (obs_dim,), reward, whether the episode is over, and the info.
        """
        self._step += 1
        given = action.astype(self._action.dtype).reshape(self._action.shape)
        with self.guard("step"):
            found: Any = self.env.step(given)
            if not (isinstance(found, tuple) and len(found) == 5):
                self._fail(
                    f"step returned {_describe_found(found)}, expected 5 values (observation, reward, "
                    "terminated, truncated, info): follow Gymnasium's interface, Env.step"
                )
            obs, reward, terminated, truncated, info = found
            if not isinstance(info, Mapping):
                self._fail(
                    f"step returned {_describe_found(info)} as info, expected a dict: return at least {{}}"
                )
            ended = bool(terminated) or bool(truncated)
            if is_limited and not ended and self._step >= MAX_STEPS:
                self._fail(
                    f"the episode has not ended after {MAX_STEPS} steps: set a limit, "
                    """--env-kwargs '{"max_episode_steps": 500}'"""
                )
            return self._flatten(obs), self._check_reward(reward), ended, info

    def render(self) -> np.ndarray:
        """Return the picture of the present state, (height, width, 3) uint8."""
        with self.guard("render", RENDER_HINT):
            picture = np.asarray(self.env.render())
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            self._fail(
                f"render returned {_describe_found(picture)}, expected an array (height, width, 3) uint8 "
                "with values from 0 to 255: convert it in render, or leave out --render"
            )
        return picture

    def close(self) -> None:
        """Close the environment; its errors do not matter any more."""
        close_env(self.env)

    def _find_parts(
        self, space: Any, obs_keys: Sequence[str], obs_dim: int | None
    ) -> dict[str | None, gym.spaces.Box]:
        parts: dict[str | None, Any]
        if isinstance(space, gym.spaces.Dict):
            parts = {key: space[key] for key in obs_keys if _is_numeric(space.spaces.get(key))}
            if len(parts) < len(obs_keys) or obs_dim not in (None, _count_values(parts.values())):
                parts = {}
            parts = parts or {key: part for key, part in space.spaces.items() if _is_numeric(part)}
            if not parts:
                self._fail(f"its observation {_list_parts(space)} has no numeric part: add one, or wrap it")
        else:
            parts = {None: space}
        for part in parts.values():
            if not _is_numeric(part):
                why = "a camera picture, and policies need numbers" if _is_image(part) else "not a Box"
                self._fail(f"its observation is {_describe_space(part)}, {why}: wrap the environment")
        return parts

    def _find_cameras(self, cameras: Sequence[CameraSpec]) -> dict[str, str]:
        """Return which part of the observation is the frame of each camera."""
        images, found = self.images, {}
        for camera in cameras:
            names = (camera.name, camera.name.removeprefix(IMAGE_KEY))
            key = next((name for name in names if name in images), None)
            if key is None and len(cameras) == len(images) == 1:
                (key,) = images
            if key is None or images[key] != camera.shape:
                self._fail(
                    f"the policy needs {camera.name} {camera.shape}, but the images of its observation are "
                    f"{images or 'none'}: choose its observation with --env-kwargs, or wrap it"
                )
            found[camera.name] = key
        return found

    def read_image(self, part: str) -> np.ndarray:
        """Return a picture of the last observation, one of `images`, (height, width, 3) uint8."""
        with self.guard(f"the frame {part!r}"):
            frame = np.asarray(self.last_obs.get(part) if isinstance(self.last_obs, Mapping) else None)
        if frame.dtype != np.uint8 or frame.shape != self.images[part]:
            self._fail(f"the frame {part!r} is {_describe_found(frame)}: return what it declares")
        return frame

    def _flatten(self, obs: Any) -> np.ndarray:
        """Return the parts of an observation as one vector of finite numbers, and keep its frames."""
        self.last_obs = obs
        self.last_frames = {name: self.read_image(key) for name, key in self.cameras.items()}
        values = []
        for key, part in self._observed.items():
            what = "observation" if key is None else f"observation {key!r}"
            if key is not None and (not isinstance(obs, Mapping) or key not in obs):
                found = list(obs) if isinstance(obs, Mapping) else _describe_found(obs)
                self._fail(f"{what} is missing, found {found}: return what observation_space declares")
            given = obs if key is None else obs[key]
            try:
                value = np.asarray(given, np.float64)
            except Exception:
                self._fail(f"{what} must hold numbers, found {_describe_found(given)}")
            if value.shape != part.shape:
                self._fail(
                    f"{what} has shape {value.shape}, but observation_space declares {part.shape}: return "
                    "what it declares, or correct it"
                )
            if not (np.abs(value) <= LARGEST_NUMBER).all():
                self._fail(f"{what} must be finite as float32, found {value.reshape(-1).tolist()!s:.120}")
            values.append(value.reshape(-1))
        return np.concatenate(values)

    def _check_reward(self, reward: Any) -> float:
        try:
            value = float(reward)
        except Exception:
            self._fail(f"the reward must be a number, found {_describe_found(reward)}")
        if not abs(value) <= LARGEST_NUMBER:
            self._fail(f"the reward must be finite as float32, found {value}")
        return value

    def guard(self, what: str, advice: str = "") -> AbstractContextManager[None]:
        """Return a context for code of the environment, see `run_env_code`; `what` names it in errors."""
        return run_env_code(f"{self._locate()}: {what}", advice)

    def _locate(self) -> str:
        where = "" if self._seed is None else f", episode seed {self._seed}, step {self._step}"
        return f"environment {self.name}{where}"

    def _fail(self, found: str) -> NoReturn:
        raise EnvError(f"{self._locate()}: {found}")


def check_figure(what: str, value: Any) -> None:
    """Raise `EnvError` if a figure of an episode is not a number that can be averaged and squared."""
    is_number = isinstance(value, Real)
    if not (is_number and abs(value) <= LARGEST_FIGURE):
        raise EnvError(f"{what} is {value!r:.60}, expected a finite number: correct the task or environment")


def _count_values(parts: Iterable[gym.spaces.Box]) -> int:
    return sum(int(np.prod(part.shape)) for part in parts)


def _find_images(space: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the colour pictures of a dictionary observation, by name."""
    spaces: Mapping[str, Any] = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    return {key: part.shape for key, part in spaces.items() if _is_image(part) and part.shape[2:] == (3,)}


def _is_image(space: Any) -> bool:
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3


def _is_numeric(space: Any) -> bool:
    return isinstance(space, gym.spaces.Box) and not _is_image(space)


def _describe_space(space: Any) -> str:
    return f"{type(space).__name__}{space.shape} {space.dtype}" if _is_image(space) else f"{space!s:.120}"


def _list_parts(space: gym.spaces.Dict) -> str:
    parts: Iterable[str] = (f"{key} {_describe_space(part)}" for key, part in space.spaces.items())
    return f"({', '.join(parts)})"


def _describe_found(value: Any) -> str:
    """Describe a wrong value in a message: its type, and its size or content."""
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} {value.dtype}"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"{type(value).__name__} {' '.join(repr(value).split()):.60}"
