"""`nsde-policy play`: a policy that runs live, in a browser, to watch and to touch."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.cli.token import read_token
from nsde_policy.errors import ConfigError

LAST_PLAN_S = 1.0
"""Longest a plan that is being made is waited for at the end, seconds."""


@dataclass(frozen=True)
class Play:
    """Show a policy at work in Push-T, on a page: drag the block away and watch it recover.

    The fan of its futures, their σ, the drift; sliders, seeds, a way back, two methods side by side. One
    port, one page, no display needed here; until SIGTERM or Ctrl-C. Events go to stderr as JSON lines."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("shipped"),)
    """Run directories of the methods to switch between; the word shipped for the policy of this package."""
    host: str = "127.0.0.1"
    """Address to listen at; anything but this machine's own takes a token in the page's address."""
    port: int = 8000
    """0 picks a free one."""
    token_file: Path | None = None
    """File with the token; the variable NSDE_POLICY_TOKEN stands in for it. Where one is needed and none is
    given, one is made up and printed."""
    seed: int = 100_000
    """Start to begin with; published scores are of 100000 and up."""
    open: bool = False
    """Open the page in a browser here."""
    json: bool = False
    """Say where the page is as one line of JSON."""

    def run(self) -> None:
        """Load, show, stop."""
        import torch

        from nsde_policy.assets import resolve_run
        from nsde_policy.viewer.launch import performers, settings, show
        from nsde_policy.viewer.messages import MAX_SEED
        from nsde_policy.viewer.play_app import Play as PlayStage

        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"need --seed from 0 to {MAX_SEED}, got {self.seed}")
        if not self.runs:
            raise ConfigError("nobody to play: name a run, or the word shipped")
        where = settings(self.host, self.port, read_token(self.token_file))
        torch.set_num_threads(1)
        stage = PlayStage(performers([resolve_run(run) for run in self.runs]), seed=self.seed)
        try:
            show(stage, where, what="playing", browser=self.open, as_json=self.json)
        finally:
            ended = stage.close(LAST_PLAN_S)
        if not ended:  # Python would abort beside a thread inside torch
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
