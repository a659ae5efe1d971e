"""Files shipped with the package: trained Push-T policies, and demonstrations of tasks."""

from pathlib import Path

from nsde_policy.errors import ConfigError, DemoError

ASSETS = Path(__file__).parent
SHIPPED_POLICY = ASSETS / "pusht"
"""Run directory of the shipped policy, which observes the state."""
SHIPPED = "shipped"
"""Name of the shipped policy on the command line; "shipped-pixels" is the one that observes pixels."""
SHIPPED_TASK = "pusht"
"""Task of the shipped policies, and of `train` without a task and without demonstrations."""
USUAL_OBSERVATIONS = "state"
"""Name of the observations that a task uses by default."""
EMBEDDED_DEMOS = ASSETS / "pusht_demos.zarr.zip"
"""Successful episodes of the shipped policy; provenance is in the store's attributes."""
EMBEDDED_FIRST_SEED = 300_000
"""Seed of the first embedded demonstration, for every task."""


def find_demos(task: str, *, folder: Path = ASSETS) -> Path:
    """Return the demonstrations of a task that are embedded in the package.

    They are `<task>_demos.zarr.zip`: a file that is added is found.

    Raises:
        DemoError: If there are none.
    """
    path = folder / f"{task}_demos.zarr.zip"
    if not path.is_file():
        raise DemoError(f"this package has no demonstrations of {task}: give a store with --demos")
    return path


def find_shipped(obs: str = USUAL_OBSERVATIONS, *, folder: Path = ASSETS) -> Path:
    """Return the run directory of the shipped policy with some observations, such as "pixels".

    It is `pusht` for the state and `pusht_<obs>` for others: a folder that is added is found.

    Raises:
        ConfigError: If no such policy is shipped.
    """
    available = {USUAL_OBSERVATIONS: folder / SHIPPED_TASK}
    for path in sorted(folder.glob(f"{SHIPPED_TASK}_*")):
        if (path / "config.json").is_file():
            available[path.name.removeprefix(f"{SHIPPED_TASK}_")] = path
    if obs not in available:
        raise ConfigError(
            f"this package has no policy for the observations {obs!r}; available: {', '.join(available)}. "
            "Name a run directory instead"
        )
    return available[obs]


def resolve_run(name: Path, *, folder: Path = ASSETS) -> Path:
    """Return the run directory for a command-line argument: a path, or the name of a shipped policy."""
    kind, dash, obs = str(name).partition("-")
    if kind != SHIPPED or name.exists():
        return name
    return find_shipped(obs if dash else USUAL_OBSERVATIONS, folder=folder)


def get_shipped_name(path: Path | None, *, folder: Path = ASSETS) -> str | None:
    """Return the name of a shipped policy on the command line; None for the run directory of another one."""
    if path is None or path == folder / SHIPPED_TASK:
        return SHIPPED
    obs = path.name.removeprefix(f"{SHIPPED_TASK}_")
    return f"{SHIPPED}-{obs}" if path.parent == folder and obs != path.name else None
