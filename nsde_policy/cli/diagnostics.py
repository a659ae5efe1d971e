"""Checks of the installation, run by `nsde-policy doctor`."""

import platform
import re
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import numpy as np

from nsde_policy.assets import EMBEDDED_DEMOS, EMBEDDED_FIRST_SEED, SHIPPED_TASK
from nsde_policy.data import load_demonstrations
from nsde_policy.errors import NsdePolicyError, describe_install, list_extras, list_requirements
from nsde_policy.tasks import get_task
from nsde_policy.version import __version__

PACKAGES = ("torch", "numpy", "gymnasium", "pymunk", "pygame", "zarr", "diffusers", "safetensors")
DEVELOPMENT = ("dev", "docs")
"""Extras of those who change the package."""


def diagnose() -> Iterator[str]:
    """Check the installation and yield lines about it; raise `NsdePolicyError` at the end if one failed."""
    yield f"nsde-policy {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    yield "\npackages"
    for name in PACKAGES:
        yield f"  {name:<18} {_find_version(name) or 'not installed'}"
    yield "\nextras"
    for extra in sorted({*list_extras()} - {*DEVELOPMENT}):
        names = [re.split(r"[<>=]", requirement)[0] for requirement in list_requirements(extra)]
        missing = [name for name in names if _find_version(name) is None]
        present = ", ".join(f"{name} {_find_version(name)}" for name in names if name not in missing)
        add = f"missing {', '.join(missing)}: {describe_install(extra)}" if missing else ""
        yield f"  {extra:<18} {'; '.join(filter(None, [present, add]))}"
    import torch

    yield f"\ndevices\n  cpu, {torch.get_num_threads()} threads"
    for i in range(torch.cuda.device_count()):
        yield f"  cuda:{i}, {torch.cuda.get_device_name(i)}"
    if torch.backends.mps.is_available():
        yield "  mps"
    yield "\nchecks"
    failed = []
    for name, check in CHECKS.items():
        try:
            yield f"  ok     {name}: {check()}"
        except Exception as error:
            failed.append(name)
            yield f"  FAILED {name}: {type(error).__name__}: {error}"
    if failed:
        raise NsdePolicyError(f"{len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}")


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _find_version("pygame-ce") if package == "pygame" else None


def _check_environment() -> str:
    """Replay an embedded demonstration from its seed and compare all observations."""
    episode, env = load_demonstrations(EMBEDDED_DEMOS)[0], get_task(SHIPPED_TASK).make_env()
    obs, _ = env.reset(seed=EMBEDDED_FIRST_SEED)
    start, largest = time.perf_counter(), 0.0
    for expected, action in zip(episode.obs, episode.act, strict=True):
        largest = max(largest, float(np.abs(obs - expected).max()))
        obs = env.step(action)[0]
    if largest > 0.01:
        raise ValueError(f"a replayed demonstration deviates by {largest:.3g}, expected at most 0.01")
    rate = len(episode) / (time.perf_counter() - start)
    return f"a demonstration replays within {largest:.1g}; {rate:,.0f} control steps/s"


def _check_policy() -> str:
    from nsde_policy.policy.policy import Policy

    policy = Policy.from_pretrained(None)
    policy.reset(seed=0)
    action = policy.select_action(load_demonstrations(EMBEDDED_DEMOS)[0].obs[0])
    return f"action {np.round(action, 1).tolist()}"


CHECKS: dict[str, Callable[[], str]] = {
    "environment": _check_environment,
    "shipped policy": _check_policy,
}
