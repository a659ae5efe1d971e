"""`nsde-policy play`: show a policy live on a web page."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.bounds import SeedNumber
from nsde_policy.cli import options
from nsde_policy.errors import ConfigError

LAST_PLAN_TIMEOUT_S = 1.0
"""Longest wait at exit for a plan in progress, seconds."""


@dataclass(frozen=True)
class Play:
    """Show a policy live on a web page: drag objects away and watch it recover.

    The page shows sampled futures, their σ and the drift, with sliders, seeds, rewind and two methods side by
    side. Runs until SIGTERM or Ctrl-C; no display is needed. Events are logged to stderr as JSON lines.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("shipped"),)
    """Run directories to switch between; `shipped` and `shipped-pixels` for the policies of this package."""
    obs: options.ShippedObsFlag = "state"
    host: options.HostFlag = "127.0.0.1"
    port: options.PortFlag = 8000
    token_file: options.TokenFileFlag = None
    tls_cert: options.TlsCertFlag = None
    tls_key: options.TlsKeyFlag = None
    seed: SeedNumber = 100_000
    """Seed of the first episode."""
    open: options.BrowserFlag = False
    json: options.JsonAddressFlag = False

    def run(self) -> None:
        """Load the policies and serve the page until a signal."""
        import torch

        from nsde_policy.assets import SHIPPED, resolve_run
        from nsde_policy.cli.page import run_app
        from nsde_policy.viewer.http import make_settings
        from nsde_policy.viewer.messages import MAX_START_SEED
        from nsde_policy.viewer.play_app import PlayApp
        from nsde_policy.viewer.policy_runner import load_runners

        if not 0 <= self.seed <= MAX_START_SEED:
            raise ConfigError(f"need --seed from 0 to {MAX_START_SEED}, got {self.seed}")
        if not self.runs:
            raise ConfigError("no policy to play: name a run directory, or `shipped`")
        is_default = self.runs == (Path(SHIPPED),)
        chosen = options.choose_run(None if is_default else self.runs[0], self.obs)
        runs = (chosen,) if is_default and chosen is not None else self.runs
        token = options.read_token(self.token_file)
        settings = make_settings(self.host, self.port, token, self.tls_cert, self.tls_key)
        torch.set_num_threads(1)
        app = PlayApp(load_runners([resolve_run(run) for run in runs]), seed=self.seed)
        try:
            run_app(app, settings, what="playing", browser=self.open, as_json=self.json)
        finally:
            ended = app.close(LAST_PLAN_TIMEOUT_S)
        if not ended:  # Python would abort while a thread is inside torch
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
