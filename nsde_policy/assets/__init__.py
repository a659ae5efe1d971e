"""Files shipped with the package: trained Push-T policies, and demonstrations of tasks."""

from pathlib import Path

from nsde_policy.errors import DemoError

ASSETS = Path(__file__).parent
SHIPPED_POLICY = ASSETS / "pusht"
"""Run directory of the shipped policy, which observes the state."""
SHIPPED_POLICIES = {"shipped": SHIPPED_POLICY, "shipped-pixels": ASSETS / "pusht_pixels"}
"""Run directories of the shipped policies by name; the second one observes pixels."""
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


def resolve_run(name: Path) -> Path:
    """Return the run directory of a shipped policy by its name, or any other path as it is."""
    return name if name.exists() else SHIPPED_POLICIES.get(str(name), name)


def is_expert(name: str) -> bool:
    """Return whether `--policy` names a scripted expert, `module:Class`, instead of a run directory."""
    return ":" in name and not Path(name).exists()


def get_shipped_name(path: Path | None) -> str | None:
    """Return the name of a shipped policy on the command line; None for the run directory of another one."""
    path = path or SHIPPED_POLICY
    return next((name for name, run in SHIPPED_POLICIES.items() if run == path), None)
