"""Files shipped with the package: trained Push-T policies, and demonstrations of tasks."""

from pathlib import Path

from nsde_policy.errors import ConfigError, DemoError

ASSETS = Path(__file__).parent
SHIPPED_POLICY = ASSETS / "pusht"
"""Run directory of the shipped policy, which observes the state."""
SHIPPED_POLICIES = {"state": SHIPPED_POLICY, "pixels": ASSETS / "pusht_pixels"}
"""Run directories of the shipped policies by what they observe."""
SHIPPED = "shipped"
"""Name of the shipped policy; "shipped-pixels" is the one that observes pixels."""
SHIPPED_TASK = "pusht"
"""Task of the shipped policies, and of `train` without a task and without demonstrations."""
USUAL_OBSERVATIONS = "state"
"""Name of the observations that a task uses by default."""
EMBEDDED_DEMOS = ASSETS / "pusht_demos.zarr.zip"
"""Successful episodes of the shipped policy; provenance is in the store's attributes."""
EMBEDDED_FIRST_SEED = 300_000
"""Seed of the first embedded demonstration, for every task."""


def find_demos(task: str) -> Path:
    """Return the demonstrations of a task in the package, `<task>_demos.zarr.zip`, or raise `DemoError`."""
    path = ASSETS / f"{task}_demos.zarr.zip"
    if not path.is_file():
        raise DemoError(f"this package has no demonstrations of {task}: give a store with --demos")
    return path


def find_shipped(obs: str = USUAL_OBSERVATIONS) -> Path:
    """Return the run directory of the shipped policy with some observations, such as "pixels", or raise."""
    if obs not in SHIPPED_POLICIES:
        raise ConfigError(
            f"this package has no policy for the observations {obs!r}; available: "
            f"{', '.join(SHIPPED_POLICIES)}. Name a run directory instead"
        )
    return SHIPPED_POLICIES[obs]


def resolve_run(name: Path) -> Path:
    """Return the run directory of a shipped policy by its name, or any other path as it is."""
    kind, dash, obs = str(name).partition("-")
    if kind != SHIPPED or name.exists():
        return name
    return find_shipped(obs if dash else USUAL_OBSERVATIONS)


def is_expert(name: str) -> bool:
    """Return whether `--policy` names a scripted expert, `module:Class`, instead of a run directory."""
    return ":" in name and not Path(name).exists()


def get_shipped_name(path: Path | None) -> str | None:
    """Return the name of a shipped policy on the command line; None for the run directory of another one."""
    if path is None or path == SHIPPED_POLICY:
        return SHIPPED
    return next((f"{SHIPPED}-{obs}" for obs, run in SHIPPED_POLICIES.items() if run == path), None)
