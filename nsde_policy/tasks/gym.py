"""Any Gymnasium environment as a task: a registered id such as `Pendulum-v1`, or `module:Class`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import ConfigError, EnvError, NsdePolicyError, import_optional, summarize_error
from nsde_policy.tasks.base import Task
from nsde_policy.tasks.reporting import Reporting

if TYPE_CHECKING:
    import gymnasium as gym

INSTALL_EGL = "apt-get install libegl1 libgl1-mesa-dri libopengl0"
"""Command that installs what MuJoCo needs to draw pictures without a display, and without a GPU."""
MUJOCO_GL_VALUES = "egl, osmesa (needs libOSMesa) or glfw (needs a display), or unset it"
"""What the variable MUJOCO_GL may be, for errors."""
_ENV_ID = re.compile(r"[\w./-]+-v\d+|[\w.]+:[\w./-]+")
_env_folder: str | None = None
"""Working directory of the environments of this process, if one of them has left ours."""


@contextmanager
def run_env_code(what: str, advice: str = "") -> Iterator[None]:
    """Run code of an environment, which may raise anything and change the working directory.

    Environments keep the directory that they change to, but our relative paths stay what they are.

    Args:
        what: Start of the error message, such as "environment Mine-v0: step".
        advice: End of the error message.

    Raises:
        EnvError: For every exception that is not from this package, even `SystemExit`.
    """
    global _env_folder
    folder, chosen, _env_folder = _find_folder(), _env_folder, None
    try:
        if chosen is not None:
            os.chdir(chosen)
        yield
    except (NsdePolicyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        found = f"{type(error).__name__}: {summarize_error(error)}"
        raise EnvError(f"{what} raised {found}{advice}") from error
    finally:
        left = _find_folder()
        if folder is not None and left != folder:
            _env_folder = _env_folder or left
            os.chdir(folder)


def _find_folder() -> str | None:
    """Return the working directory, None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def open_env(task: Task, env_kwargs: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """Make the environment of a task; raise `EnvError` whatever its code raises."""
    with run_env_code(f"environment {task.env_id or task.name}: make_env"):
        return task.make_env(**(env_kwargs or {}))


def close_env(env: gym.Env[Any, Any]) -> None:
    """Close an environment; its errors do not matter any more."""
    with suppress(EnvError), run_env_code("close"):
        env.close()


class GymTask(Task):
    """An environment without a task of its own: score is the return, success what its info says.

    Args:
        env_id: Gymnasium id, or `module:Class`.
        env_kwargs: Keyword arguments of the environment.
    """

    reporting = Reporting(score_note="Return: the sum of an episode's rewards.")

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
        self.name = self.env_id = env_id
        self.env_kwargs = dict(env_kwargs or {})


def is_env_id(name: str) -> bool:
    """Return whether a name can be that of an environment: `Name-v0`, `module:Class`, or a registered id."""
    if _ENV_ID.fullmatch(name):
        return True
    from gymnasium.envs.registration import registry

    return name in registry


def suggest_env_id(name: str) -> str | None:
    """Return the newest registered id that is the name with a version, whatever its case."""
    from gymnasium.envs.registration import registry

    versions = {
        spec.version or 0: env_id for env_id, spec in registry.items() if spec.name.lower() == name.lower()
    }
    return versions[max(versions)] if versions else None


def make_gym_env(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make an environment by its Gymnasium id or as `module:Class`.

    Gymnasium's own checks are off, because `EnvAdapter` checks every value with clearer messages.

    Raises:
        ConfigError: If the environment does not take these keyword arguments.
        EnvError: If the environment is unknown, or its constructor fails.
    """
    import gymnasium as gym

    from nsde_policy.envs import register_envs

    register_envs()
    try:
        cls = find_env_class(env_id)
        if cls is None:
            return gym.make(env_id, disable_env_checker=True, **kwargs)
        kwargs = dict(kwargs)
        limit = kwargs.pop("max_episode_steps", -1)
        is_other_class = isinstance(cls, type) and not issubclass(cls, gym.Env)
        env = cls if is_other_class else cls(**kwargs)  # what is no environment is not even called
        if not isinstance(env, gym.Env):
            raise EnvError(f"{env_id} gives {env!r:.80}, expected a gymnasium.Env: derive the class from it")
        return env if limit == -1 else gym.wrappers.TimeLimit(env, limit)
    except (NsdePolicyError, KeyboardInterrupt):
        raise
    except gym.error.UnregisteredEnv as error:
        raise EnvError(
            f"the environment {env_id!r} is not registered with Gymnasium ({summarize_error(error)}); check "
            "the name, or give module:Class (--env)"
        ) from error
    except BaseException as error:
        reason = summarize_error(error)
        if isinstance(error, TypeError) and "argument" in reason:
            raise ConfigError(
                f"{env_id} does not take these arguments: {dict(kwargs)} ({reason}); change --env-kwargs"
            ) from error
        raise EnvError(
            f"the environment {env_id!r} cannot be made with {dict(kwargs)}: {type(error).__name__}: {reason}"
        ) from error


def find_env_class(env_id: str) -> Callable[..., gym.Env[Any, Any]] | None:
    """Return the class that `module:Class` names, importing from the current directory too.

    Returns:
        None for an id that Gymnasium resolves itself, which includes its `module:id`.

    Raises:
        EnvError: If the module cannot be imported or has no such environment.
    """
    import gymnasium as gym

    module_name, colon, name = env_id.partition(":")
    if not colon:
        return None
    try:
        module = import_user_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise EnvError(
            f"the module of the environment {env_id!r} cannot be imported: {summarize_error(error)}; run the "
            "command in its folder, or install it"
        ) from error
    found = getattr(module, name, None)
    if found is None and name in gym.registry:
        return None
    if found is None or not callable(found):
        classes = [
            key for key, value in vars(module).items() if isinstance(value, type) and hasattr(value, "step")
        ]
        raise EnvError(
            f"the module {module_name} has no environment {name!r}; it has: {', '.join(classes) or 'none'} "
            "(--env module:Class)"
        )
    environment: Callable[..., gym.Env[Any, Any]] = found
    return environment


def import_user_module(name: str) -> ModuleType:
    """Import a module, also from the current directory."""
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.insert(0, os.getcwd())  # a console script does not look there
    return importlib.import_module(name)


def import_simulator(package: str, extra: str) -> Any:
    """Import a package that uses MuJoCo.

    Raises:
        MissingDependencyError: If it is not installed.
        EnvError: If it cannot be imported; MuJoCo refuses values of MUJOCO_GL that it cannot use.
    """
    try:
        return import_optional(package, extra)
    except NsdePolicyError:
        raise
    except Exception as error:
        given = os.environ.get("MUJOCO_GL")
        hint = f" with MUJOCO_GL={given}: set it to {MUJOCO_GL_VALUES}" if given else ""
        raise EnvError(f"{package} cannot be imported{hint} ({summarize_error(error)})") from error


def choose_mujoco_renderer(name: str) -> None:
    """Let MuJoCo draw pictures without a display, with EGL or else OSMesa, unless MUJOCO_GL chooses one.

    Args:
        name: What the error calls the environment.

    Raises:
        EnvError: If MUJOCO_GL names nothing that draws, or neither library is installed.
    """
    if "mujoco" not in sys.modules:
        return
    if given := os.environ.get("MUJOCO_GL"):
        if given not in ("egl", "osmesa", "glfw"):
            raise EnvError(
                f"environment {name} cannot be rendered with MUJOCO_GL={given}: set it to "
                f"{MUJOCO_GL_VALUES}, or leave out --render"
            )
        return
    found = next((each for each in ("EGL", "OSMesa") if find_library(each)), None)
    if found is None:
        raise EnvError(
            f"environment {name} cannot be rendered: found no display, and neither libEGL nor libOSMesa, "
            f"with which MuJoCo draws without one; leave out --render, or run: {INSTALL_EGL}"
        )
    os.environ["MUJOCO_GL"] = found.lower()


def find_rate(task: Task, env: gym.Env[Any, Any]) -> float | None:
    """Return the control periods per second of an environment, None if nothing says.

    They are `task.rate_hz`, else 1 / `env.unwrapped.dt`, else `env.metadata["render_fps"]`.
    """
    if task.rate_hz:
        return task.rate_hz
    with run_env_code(f"environment {task.env_id or task.name}: its rate (dt, metadata)"):
        period: Any = getattr(env.unwrapped, "dt", None)
        if _is_positive(period):
            return 1.0 / float(period)
        frames: Any = env.metadata.get("render_fps")
        return float(frames) if _is_positive(frames) else None


def _is_positive(value: Any) -> bool:
    try:
        return 0.0 < float(value) < float("inf")
    except (TypeError, ValueError):
        return False
