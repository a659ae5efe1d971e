"""The self-check behind `nsde-policy doctor`."""

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from nsde_policy import __version__
from nsde_policy.errors import NsdePolicyError

PACKAGES = ("torch", "numpy", "gymnasium", "pymunk", "pygame", "zarr", "diffusers", "safetensors")
OPTIONAL_PACKAGES = ("matplotlib", "imageio", "imageio-ffmpeg")


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    """What should work."""
    ok: bool
    detail: str
    """What came out, or the error."""


@dataclass(frozen=True)
class Findings:
    """Everything the doctor looked at."""

    nsde_policy: str
    python: str
    platform: str
    packages: dict[str, str | None]
    """Installed version by package; None where it is missing."""
    devices: list[str]
    """Where torch can compute."""
    checks: list[Check]

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=2)

    def as_text(self) -> str:
        """For people."""
        lines = [f"nsde-policy {self.nsde_policy}, Python {self.python}, {self.platform}", "", "packages"]
        lines += [f"  {name:<15} {version or 'not installed'}" for name, version in self.packages.items()]
        lines += ["", "devices", *(f"  {device}" for device in self.devices), "", "checks"]
        lines += [f"  {'ok    ' if c.ok else 'FAILED'} {c.name}: {c.detail}" for c in self.checks]
        return "\n".join(lines)

    def raise_if_ill(self) -> None:
        """Raise when a check failed, naming it."""
        failed = [check for check in self.checks if not check.ok]
        if failed:
            raise NsdePolicyError(f"{failed[0].name} and {len(failed) - 1} other checks failed")


def examine() -> Findings:
    """Look at the installation; takes a few seconds, most of them importing torch."""
    return Findings(
        nsde_policy=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in PACKAGES + OPTIONAL_PACKAGES},
        devices=_devices(),
        checks=[_try(name, check) for name, check in CHECKS.items()],
    )


def _version(package: str) -> str | None:
    names = (package, "pygame-ce") if package == "pygame" else (package,)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _devices() -> list[str]:
    import torch

    devices = [f"cpu, {torch.get_num_threads()} threads"]
    devices += [f"cuda:{i}, {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _try(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _environment_steps() -> str:
    import gymnasium as gym

    from nsde_policy.envs import PUSHT_ID

    env = gym.make(PUSHT_ID)
    obs, _ = env.reset(seed=100000)
    expected = [235.0, 124.0]
    if obs[:2].tolist() != expected:
        raise ValueError(f"seed 100000 put the agent at {obs[:2]}, expected {expected}")
    start, steps = time.perf_counter(), 300
    for _ in range(steps):
        env.step(np.array([256.0, 256.0]))
    return f"seed 100000 starts where it should; {steps / (time.perf_counter() - start):,.0f} control steps/s"


def _frame_draws() -> str:
    from nsde_policy.envs.pusht.drawing import benchmark_frame, frame

    shapes = [
        picture.shape
        for picture in (benchmark_frame((99, 99), (256, 256, 0)), frame((99, 99), (256, 256, 0)))
    ]
    return f"{shapes[0]} for policies, {shapes[1]} for people, no display needed"


def _state_rollouts_skip_pygame() -> str:
    import subprocess

    code = (
        "import sys, gymnasium, nsde_policy.envs;"
        "e = gymnasium.make('nsde_policy/PushT-v0'); e.reset(seed=0); e.step([9.0, 9.0]);"
        "sys.exit('pygame' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return "pygame is imported for drawing only"


def _demonstrations_round_trip() -> str:
    from nsde_policy.data import DemoWriter, Episode, load_demonstrations

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demos.zarr"
        obs, act = rng.normal(size=(20, 3)).astype("f4"), rng.normal(size=(20, 2)).astype("f4")
        with DemoWriter(path) as writer:
            writer.append(Episode(obs, act))
        episode = load_demonstrations(path)[0]
    if not (np.array_equal(episode.obs, obs) and np.array_equal(episode.act, act)):
        raise ValueError("what was read is not what was written")
    return "written, read back, equal"


CHECKS: dict[str, Callable[[], str]] = {
    "Push-T steps": _environment_steps,
    "frames draw": _frame_draws,
    "state rollouts need no pygame": _state_rollouts_skip_pygame,
    "demonstrations round-trip": _demonstrations_round_trip,
}
