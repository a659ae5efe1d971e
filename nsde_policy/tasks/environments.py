"""Environments by a Gymnasium id or as `module:Class`, whose code may raise anything."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from ctypes.util import find_library
from typing import TYPE_CHECKING, Any, TypeAlias

from nsde_policy.errors import ConfigError, EnvError, NsdePolicyError, summarize_error

if TYPE_CHECKING:
    import gymnasium as gym

AnyEnv: TypeAlias = "gym.Env[Any, Any]"
"""An environment with any observations and actions; `EnvAdapter` turns them into vectors."""
RENDERER_HINT = (
    "; without a display set MUJOCO_GL=egl and run: apt-get install libegl1 libgl1-mesa-dri libopengl0, or "
    "set MUJOCO_GL=osmesa and run: apt-get install libosmesa6"
)
_ENV_ID = re.compile(r"[\w./-]+-v\d+|[\w.]+:[\w./-]+")


@contextmanager
def run_env_code(what: str, advice: str = "") -> Iterator[None]:
    """Run code of an environment, and turn every exception, even `SystemExit`, into an `EnvError`.

    The message starts with `what`, such as "environment Mine-v0: step", and ends with `advice`.
    """
    try:
        yield
    except (NsdePolicyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {summarize_error(error)}"
        raise EnvError(f"{what} raised {problem}{advice}") from error


def close_env(env: AnyEnv) -> None:
    """Close an environment; its errors do not matter any more."""
    with suppress(EnvError), run_env_code("close"):
        env.close()


def is_env_id(name: str) -> bool:
    """Return whether a name can be that of an environment: `Name-v0`, `module:Class`, or a registered id."""
    if _ENV_ID.fullmatch(name):
        return True
    from gymnasium.envs.registration import registry

    return name in registry


def make_gym_env(env_id: str, kwargs: Mapping[str, object]) -> AnyEnv:
    """Make an environment by its Gymnasium id or as `module:Class`.

    Gymnasium's own checks are off, because `EnvAdapter` checks every value with clearer messages.
    """
    import gymnasium as gym

    from nsde_policy.envs import register_envs

    register_envs()
    maker = find_env_class(env_id)
    arguments: dict[str, Any] = dict(kwargs)
    try:
        if maker is None:
            return gym.make(env_id, disable_env_checker=True, **arguments)
        limit = arguments.pop("max_episode_steps", -1)
        is_other_class = isinstance(maker, type) and not issubclass(maker, gym.Env)
        env = maker if is_other_class else maker(**arguments)  # what is no environment is not even called
        if not isinstance(env, gym.Env):
            raise EnvError(f"{env_id} gives {env!r:.80}, expected a gymnasium.Env: derive the class from it")
        return env if limit == -1 else gym.wrappers.TimeLimit(env, limit)
    except gym.error.UnregisteredEnv as error:
        raise EnvError(
            f"the environment {env_id!r} is not registered with Gymnasium ({summarize_error(error)}); check "
            "the name, or give module:Class (--env)"
        ) from error
    except TypeError as error:
        reason = summarize_error(error)
        if "argument" not in reason:
            raise
        raise ConfigError(
            f"{env_id} does not take these arguments: {dict(kwargs)} ({reason}); change --env-kwargs"
        ) from error


def find_env_class(env_id: str) -> Callable[..., object] | None:
    """Return the class that `module:Class` names; None for an id that Gymnasium resolves itself."""
    import gymnasium as gym

    module_name, colon, name = env_id.partition(":")
    if not colon:
        return None
    maker = import_named(env_id, "environment")
    if maker is None and name not in gym.registry:  # Gymnasium has `module:id` as well
        raise EnvError(f"the module {module_name} has no environment {name!r} (--env module:Class)")
    return maker


def import_named(name: str, what: str) -> Callable[..., object] | None:
    """Import what `module:Name` names, also from the current directory; None if the module lacks it."""
    module_name, _, attribute = name.partition(":")
    advice = "; run the command in its folder, or install it"
    with run_env_code(f"importing the module of the {what} {name!r}", advice):
        if not {"", os.getcwd()} & {*sys.path}:
            sys.path.insert(0, os.getcwd())  # a console script does not look there
        maker: object = getattr(importlib.import_module(module_name), attribute, None)
    return maker if callable(maker) else None


def has_display() -> bool:
    """Return whether pictures can be shown; on Linux, variables name the display."""
    return sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def choose_mujoco_renderer() -> None:
    """Let MuJoCo draw pictures without a display, with EGL or else OSMesa, unless MUJOCO_GL chooses one."""
    if "mujoco" in sys.modules and not has_display() and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl" if find_library("EGL") else "osmesa"


def check_mujoco_renderer() -> None:
    """Raise `EnvError` if MuJoCo cannot draw with the renderer that MUJOCO_GL names."""
    choose_mujoco_renderer()
    if name := os.environ.get("MUJOCO_GL"):
        with guard_mujoco():
            importlib.import_module(f"mujoco.{name}").GLContext(16, 16).free()


def guard_mujoco() -> AbstractContextManager[None]:
    """Return a context for code that fails without the libraries of the renderer that MUJOCO_GL names."""
    name = os.environ.get("MUJOCO_GL") or "(not set)"
    return run_env_code(f"MuJoCo with MUJOCO_GL={name}", RENDERER_HINT)
