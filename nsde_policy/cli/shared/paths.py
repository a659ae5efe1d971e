"""Paths on the command line, checked before anything heavy is imported."""

from pathlib import Path

from nsde_policy.assets import SHIPPED_TASK, resolve_run
from nsde_policy.errors import CheckpointError, DemoError, suggest

RUNS = Path("runs")
"""Folder in which training writes runs by default."""
SHOWN_RUNS = 5
"""Most names that an error lists."""


def check_paths(command: object) -> None:
    """Raise if a run directory, demonstrations or an environment do not exist, with similar names."""
    runs = getattr(command, "runs", None) or getattr(command, "run_dir", None) or ()
    for run in (runs,) if isinstance(runs, Path) else runs:
        _check_run(run)
    for name in ("demos", "path", "data"):
        given = getattr(command, name, None)
        if isinstance(given, Path) and not given.exists() and given.parts[:1] != ("hf:",):
            raise DemoError(f"{given} does not exist{_suggest_demos(given)}")
    if getattr(command, "env", None) is not None:
        from nsde_policy.tasks import get_task

        get_task(command.env)  # type: ignore[attr-defined]


def _check_run(run: Path) -> None:
    """Raise `CheckpointError` unless a folder is a run directory."""
    found = resolve_run(run)
    if (found / "config.json").exists() or not isinstance(run, Path):
        return
    what = "is not a run directory: it has no config.json" if found.exists() else "does not exist"
    others = sorted(
        {path.parent for folder in {found.parent, found, RUNS} for path in folder.glob("*/config.json")}
    )
    listed = ", ".join(map(str, others[:SHOWN_RUNS])) + (", …" if others[SHOWN_RUNS:] else "")
    there_are = f"there are {listed}" if others else "`nsde-policy train` writes one"
    raise CheckpointError(f"{run} {what}; {there_are}, and `shipped` is the policy of this package")


def _suggest_demos(path: Path) -> str:
    """Return what to do about demonstrations that do not exist."""
    if SHIPPED_TASK in path.name:
        return f": `nsde-policy data download {SHIPPED_TASK} --out {path}` writes human demonstrations there"
    names = (each.name for each in path.parent.glob("*")) if path.parent.is_dir() else ()
    similar = suggest(path.name, names)
    return f"{similar}; expected a file or folder of demonstrations"
