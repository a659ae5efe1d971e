"""`nsde-policy eval --demos`: score a policy on recorded episodes instead of playing."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from nsde_policy.cli import options
from nsde_policy.errors import ConfigError

OFFLINE_FLAGS = ("horizon", "samples", "stride", "seed")
"""Flags of `eval` that only make sense with --demos."""
SHARED_FLAGS = ("run_dir", "demos", "alpha", "diffusion", "sampling", "device", "render", "out", "json")
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


def run_offline(command: Any, changes: list[str]) -> None:
    """Score the run of `eval` on the store of --demos, print the tables and draw the figure."""
    from nsde_policy.eval.offline.figures import draw_offline_score
    from nsde_policy.eval.offline.score import OfflineConfig, score_run
    from nsde_policy.eval.render.plotting import pyplot
    from nsde_policy.training.progress import pick_device

    given = {name: getattr(command, name) for name in OFFLINE_FLAGS}
    config = OfflineConfig(**{name: value for name, value in given.items() if value is not None})
    if command.render:
        pyplot()  # fail before the work starts, not after it
    score = score_run(
        command.run_dir, command.demos, config, sampling=changes, device=pick_device(command.device)
    )
    options.print_results(command.json, score.to_json(), score.as_text())
    if command.render:
        default = Path("out/eval") if command.run_dir is None else command.run_dir / "eval"
        files = draw_offline_score(score, command.out or default)
        print(f"wrote {files[0]}", file=sys.stderr)
