"""`nsde-policy play`: show a policy live on a web page."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.cli.shared import options
from nsde_policy.cli.shared.page import PageFlags, PageSeed
from nsde_policy.errors import ConfigError

LAST_PLAN_TIMEOUT_S = 1.0
"""Longest wait at exit for a plan in progress, seconds."""


@dataclass(frozen=True, kw_only=True)
class Play(PageFlags):
    """Show a policy live on a web page: drag objects away and watch it recover.

    The page shows sampled futures, their σ and the drift, with sliders, seeds, rewind and two methods side by
    side. Runs until SIGTERM or Ctrl-C; no display is needed. --json logs events to stderr.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("shipped"),)
    """Run directories to switch between; `shipped` and `shipped-pixels` for the policies of this package."""
    obs: options.ShippedObsFlag = "state"
    seed: PageSeed = 100_000
    """Seed of the first episode."""

    def run(self) -> None:
        """Load the policies and serve the page until a signal."""
        import torch

        from nsde_policy.assets import SHIPPED, resolve_run
        from nsde_policy.viewer.play_app import PlayApp
        from nsde_policy.viewer.policy_runner import load_runners

        if not self.runs:
            raise ConfigError("no policy to play: name a run directory, or `shipped`")
        is_default = self.runs == (Path(SHIPPED),)
        chosen = options.choose_run(None if is_default else self.runs[0], self.obs)
        runs = (chosen,) if is_default and chosen is not None else self.runs
        settings = self.make_settings()
        torch.set_num_threads(1)
        app = PlayApp(load_runners([resolve_run(run) for run in runs]), seed=self.seed)
        try:
            self.serve(app, settings, what="playing")
        finally:
            ended = app.close(LAST_PLAN_TIMEOUT_S)
        if not ended:  # Python would abort while a thread is inside torch
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
