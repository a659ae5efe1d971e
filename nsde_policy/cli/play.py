"""`nsde-policy play`: show a policy live on a web page."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.errors import ConfigError

from .shared import options
from .shared.page import PageFlags, PageSeed


@dataclass(frozen=True, kw_only=True)
class Play(PageFlags):
    """Show a policy live on a web page: drag objects away and watch it recover.

    The page shows sampled futures and their σ, with sliders, seeds and two policies side by side. Runs until
    SIGTERM or Ctrl-C; no display is needed.
    """

    runs: tyro.conf.Positional[tuple[options.RunPath, ...]] = (Path("shipped"), Path("shipped-pixels"))
    """Run directories to switch between or to run side by side; by default both policies of this package."""
    seed: PageSeed = 100_000
    """Seed of the first episode."""

    def run(self) -> None:
        """Load the policies and serve the page until a signal."""
        import torch

        from nsde_policy.assets import resolve_run
        from nsde_policy.viewer.play_app import PlayApp
        from nsde_policy.viewer.policy_runner import load_runners

        if not self.runs:
            raise ConfigError("no policy to play: name a run directory, or `shipped`")
        settings = self.make_settings()
        torch.set_num_threads(1)
        app = PlayApp(load_runners([resolve_run(run) for run in self.runs]), seed=self.seed)
        self.serve(app, settings, what="playing")
