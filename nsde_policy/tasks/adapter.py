"""Environments as policies see them: one flat observation, one flat action, every value checked."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any, NoReturn, Self

import gymnasium as gym
import numpy as np

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.encoder import IMAGE_KEY
from nsde_policy.errors import EnvError

from .base import Info, Task, open_env
from .environments import AnyEnv, close_env, run_env_code

logger = logging.getLogger(__name__)

MAX_STEPS = 20_000
"""An episode that takes longer is an error: most likely the environment never ends it."""
LONG_EPISODE = 1_000
"""Steps after which an episode without a limit is mentioned."""
LIMIT_HINT = """set a limit, --env-kwargs '{"max_episode_steps": 500}'"""
LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""Largest observation and reward: policies and stores hold float32."""
RENDER_HINT = (
    "; leave out --render, or for MuJoCo without a display run: apt-get install libegl1 libgl1-mesa-dri "
    "libopengl0"
)


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
        env: AnyEnv,
        name: str,
        *,
        obs_keys: Sequence[str] = (),
        obs_dim: int | None = None,
        cameras: Sequence[CameraSpec] = (),
    ) -> None:
        self.env, self.name = env, name
        self._seed: int | None = None
        self._step = 0
        self._draw = True
        self.last_obs: Any = None
        self.last_frames: dict[str, np.ndarray] = {}
        """Frames of the last observation by the name of the camera, (height, width, 3) uint8; empty if they
        were not to be drawn."""
        with self.guard("its observation_space or action_space"):
            self._read_spaces(env.observation_space, env.action_space, obs_keys, obs_dim)
            self._can_skip_frames = bool(self.images) and env.has_wrapper_attr("draws_frames")
        self.cameras = self._find_cameras(cameras)
        """Part of the observation that is the frame of each camera, by the camera's name."""

    @classmethod
    def open(cls, task: Task, env_kwargs: Mapping[str, object], **options: Any) -> Self:
        """Make the environment of a task; `options` are those of the constructor."""
        return cls(open_env(task, env_kwargs), task.env_id or task.name, **options)

    def _read_spaces(
        self, observed: object, action: object, obs_keys: Sequence[str], obs_dim: int | None
    ) -> None:
        self.images = _find_images(observed)
        """Shape of each part of the observation that is a colour picture, uint8, by its name."""
        self._observed = self._find_parts(observed, obs_keys, obs_dim)
        self.obs_sizes = {key: int(np.prod(part.shape)) for key, part in self._observed.items()}
        """Number of values by the name of each part; the name is None if the space is a Box."""
        self.obs_dim = sum(self.obs_sizes.values())
        if not isinstance(action, gym.spaces.Box):
            self._fail(
                f"its action space is {action}, but policies give real numbers and need a Box: wrap the "
                "environment"
            )
        self._action = action
        self.low = np.asarray(action.low, np.float64).reshape(-1)
        self.high = np.asarray(action.high, np.float64).reshape(-1)
        self.act_dim = self.low.size

    def check_sizes(self, obs_dim: int, act_dim: int) -> None:
        """Raise `EnvError` unless observations and actions have the sizes of a policy or demonstrations."""
        parts = ", ".join(f"{key or 'observation'} {part.shape}" for key, part in self._observed.items())
        for what, size, needed, shapes in (
            ("observation", self.obs_dim, obs_dim, parts),
            ("action", self.act_dim, act_dim, f"action {self._action.shape}"),
        ):
            if size != needed:
                self._fail(
                    f"its {what} has {size} values ({shapes}), but the policy or the demonstrations have "
                    f"{needed}: choose the environment that fits with --env, or the task with --task"
                )

    def reset(self, seed: int) -> tuple[np.ndarray, Info]:
        """Start an episode; return observation and info."""
        self._seed, self._step = seed, 0
        with self.guard("reset"):
            self._set_drawing(True)
            obs, info = self.env.reset(seed=seed)
            return self._flatten(obs), info

    @property
    def _has_limit(self) -> bool:
        return self.env.spec is not None and self.env.spec.max_episode_steps is not None

    def clip(self, action: np.ndarray) -> np.ndarray:
        """Return an action, (act_dim,), inside the action space; rounded if that holds integers."""
        clipped: np.ndarray = np.clip(action, self.low, self.high)
        if np.issubdtype(self._action.dtype, np.integer):
            np.rint(clipped, out=clipped)
        return clipped

    def step(self, action: np.ndarray, *, draw: bool = True) -> tuple[np.ndarray, float, bool, Info]:
        """Execute an action that `clip` returned; return observation, reward, end and info.

        Without `draw`, no frames are read, and an environment with the attribute `draws_frames` draws none.
        """
        self._step += 1
        shaped = action.astype(self._action.dtype).reshape(self._action.shape)
        with self.guard("step"):
            self._set_drawing(draw)
            obs, reward, terminated, truncated, info = self.env.step(shaped)
            reward = float(reward)
            if not abs(reward) <= LARGEST_NUMBER:
                self._fail(f"the reward must be finite as float32, got {reward}")
            ended = bool(terminated) or bool(truncated)
            if not ended and self._step >= MAX_STEPS:
                self._fail(f"the episode has not ended after {MAX_STEPS} steps: {LIMIT_HINT}")
            if not ended and self._step == LONG_EPISODE and not self._has_limit:
                logger.warning(
                    "environment %s: an episode goes on after %d steps, and fails after %d: %s",
                    *(self.name, LONG_EPISODE, MAX_STEPS, LIMIT_HINT),
                )
            return self._flatten(obs), reward, ended, info

    def _set_drawing(self, draw: bool) -> None:
        self._draw = draw
        if self._can_skip_frames:
            self.env.set_wrapper_attr("draws_frames", draw)

    def render(self) -> np.ndarray:
        """Return the picture of the present state, (height, width, 3) uint8."""
        with self.guard("render", RENDER_HINT):
            picture = np.asarray(self.env.render())
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            self._fail(
                f"render returned an array {picture.shape} {picture.dtype}, expected (height, width, 3) and "
                "uint8 from 0 to 255: convert it in render, or leave out --render"
            )
        return picture

    def read_image(self, part: str) -> np.ndarray:
        """Return a picture of the last observation, one of `images`, (height, width, 3) uint8."""
        with self.guard(f"the frame {part!r}"):
            frame = np.asarray(self.last_obs[part])
        if frame.dtype != np.uint8 or frame.shape != self.images[part]:
            self._fail(f"the frame {part!r} is {frame.shape} {frame.dtype}: return what it declares")
        return frame

    def close(self) -> None:
        """Close the environment; its errors do not matter any more."""
        close_env(self.env)

    def guard(self, what: str, advice: str = "") -> AbstractContextManager[None]:
        """Return a context for code of the environment, see `run_env_code`; `what` names it in errors."""
        return run_env_code(f"{self._locate()}: {what}", advice)

    def _find_parts(
        self, space: object, obs_keys: Sequence[str], obs_dim: int | None
    ) -> dict[str | None, gym.spaces.Box]:
        if not isinstance(space, gym.spaces.Dict):
            if not isinstance(space, gym.spaces.Box) or _is_image(space):
                self._fail(
                    f"its observation is {space!s:.120}, expected a Box of numbers: wrap the environment"
                )
            return {None: space}
        numeric: dict[str | None, gym.spaces.Box] = {
            key: part
            for key, part in space.spaces.items()
            if isinstance(part, gym.spaces.Box) and not _is_image(part)
        }
        if not numeric:
            self._fail(f"its observation {space!s:.300} has no numeric part: add one, or wrap it")
        named: dict[str | None, gym.spaces.Box] = {key: numeric[key] for key in obs_keys if key in numeric}
        size = sum(int(np.prod(part.shape)) for part in named.values())
        return named if named and len(named) == len(obs_keys) and obs_dim in (None, size) else numeric

    def _find_cameras(self, cameras: Sequence[CameraSpec]) -> dict[str, str]:
        """Return which part of the observation is the frame of each camera."""
        images, parts = self.images, {}
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
            parts[camera.name] = key
        return parts

    def _flatten(self, obs: Any) -> np.ndarray:
        """Return the parts of an observation as one vector of finite numbers, and keep its frames."""
        self.last_obs = obs
        cameras = self.cameras if self._draw else {}
        self.last_frames = {name: self.read_image(key) for name, key in cameras.items()}
        values = []
        for key, part in self._observed.items():
            what = "observation" if key is None else f"observation {key!r}"
            value = np.asarray(obs if key is None else obs[key], np.float64)
            if value.shape != part.shape:
                self._fail(
                    f"{what} has shape {value.shape}, but observation_space declares {part.shape}: return "
                    "what it declares, or correct it"
                )
            if not (np.abs(value) <= LARGEST_NUMBER).all():
                self._fail(f"{what} must be finite as float32, got {value.reshape(-1).tolist()!s:.120}")
            values.append(value.reshape(-1))
        return np.concatenate(values)

    def _locate(self) -> str:
        where = "" if self._seed is None else f", episode seed {self._seed}, step {self._step}"
        return f"environment {self.name}{where}"

    def _fail(self, problem: str) -> NoReturn:
        raise EnvError(f"{self._locate()}: {problem}")


def check_figure(what: str, value: Any) -> None:
    """Raise `EnvError` if a figure of an episode is not a finite number."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise EnvError(f"{what} is {value!r:.60}, expected a finite number: correct the task or environment")


def _find_images(space: object) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the colour pictures of a dictionary observation, by name."""
    if not isinstance(space, gym.spaces.Dict):
        return {}
    parts = {key: part for key, part in space.spaces.items() if isinstance(part, gym.spaces.Box)}
    return {key: part.shape for key, part in parts.items() if _is_image(part) and part.shape[2:] == (3,)}


def _is_image(space: gym.spaces.Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) >= 3
