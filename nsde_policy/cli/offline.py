"""--demos of `eval`, `compare` and `report`: score policies on recorded episodes."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsde_policy.cli import options
from nsde_policy.errors import ComparisonError, ConfigError

if TYPE_CHECKING:
    from nsde_policy.eval.offline.comparison import OfflineComparison

OFFLINE_FLAGS = ("horizon", "samples", "stride", "seed", "accept_omitted_chunks")
"""Flags of `eval` that only make sense with --demos."""
SHARED_FLAGS = (
    *("run_dir", "obs", "demos", "alpha", "diffusion", "sampling", "device", "render", "out", "json"),
)
"""Flags of `eval` that make sense with recorded episodes and with an environment."""


def check_flags(command: Any) -> None:
    """Raise `ConfigError` for flags of `eval` that do not belong to the chosen kind of score."""
    given = [f.name for f in fields(command) if getattr(command, f.name) != f.default]
    if command.demos is None:
        wrong = [name for name in given if name in OFFLINE_FLAGS]
        reason = "flags for recorded episodes need --demos STORE: add it or leave out"
    else:
        wrong = [name for name in given if name not in (*OFFLINE_FLAGS, *SHARED_FLAGS)]
        reason = "--demos scores recorded episodes without an environment: leave out"
    if wrong:
        raise ConfigError(f"{reason} {', '.join('--' + name.replace('_', '-') for name in wrong)}")


def run_offline(command: Any, run: Path | None, changes: list[str]) -> None:
    """Score a run of `eval` on the store of --demos, print the tables and draw the figure."""
    from nsde_policy.assets import SHIPPED_POLICY
    from nsde_policy.eval.offline.comparison import compare_offline
    from nsde_policy.eval.offline.figures import draw_offline_comparison
    from nsde_policy.eval.offline.score import OfflineConfig
    from nsde_policy.eval.render.plotting import pyplot
    from nsde_policy.eval.render.video import choose_eval_folder

    given = {name: getattr(command, name) for name in OFFLINE_FLAGS}
    config = OfflineConfig(**{name: value for name, value in given.items() if value is not None})
    if command.render:
        pyplot()  # fail before the work starts, not after it
    found = compare_offline(
        [run or SHIPPED_POLICY], command.demos, config=config, sampling=changes, device=command.device
    )
    options.print_results(command.json, found.reference.to_json(), found.as_text())
    if command.render:
        files = draw_offline_comparison(found, command.out or choose_eval_folder(run))
        print(f"wrote {files[0]}", file=sys.stderr)


def compare_recorded(command: Any, runs: Sequence[Path]) -> "OfflineComparison | None":
    """Score runs on the store of --demos; None without the flag."""
    from nsde_policy.eval.offline.comparison import compare_offline
    from nsde_policy.eval.offline.score import OfflineConfig
    from nsde_policy.run_directory import RunDirectory

    if command.demos is None:
        if command.accept_omitted_chunks:
            raise ConfigError("--accept-omitted-chunks needs --demos STORE: add it, or leave this out")
        return None
    if not runs:
        raise ConfigError("--demos scores run directories on recorded episodes: name the runs")
    for path in runs:
        if (stopped := RunDirectory(path).describe_unfinished()) is not None:
            raise ComparisonError(stopped)
    return compare_offline(
        runs,
        command.demos,
        config=OfflineConfig(accept_omitted_chunks=command.accept_omitted_chunks),
        reference=command.reference,
        device=command.device,
    )


def have_environment(runs: Sequence[Path], env: str | None) -> bool:
    """Return whether any of the runs has an environment to play in."""
    from nsde_policy.run_directory import RunDirectory
    from nsde_policy.tasks import get_task_of_run

    records = (RunDirectory(path).read_record() for path in runs)
    return any(get_task_of_run(record, env).env_id is not None for record in records)


def write_comparison(comparison: "OfflineComparison", out: Path) -> None:
    """Write offline.json, offline.md and the figure into a directory."""
    from nsde_policy.eval.offline.figures import draw_offline_comparison
    from nsde_policy.files import replace_file

    replace_file(out / "offline.json", comparison.to_json())
    replace_file(out / "offline.md", f"{comparison.as_text()}\n")
    draw_offline_comparison(comparison, out)
    print(f"wrote {out / 'offline.json'}, offline.md and offline.png", file=sys.stderr)
