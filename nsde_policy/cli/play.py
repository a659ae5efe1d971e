"""`nsde-policy play`: show a policy live on a web page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from nsde_policy.errors import ConfigError

from .shared import options
from .shared.page import PageFlags, PageSeed

if TYPE_CHECKING:
    from nsde_policy.viewer.http import ViewerSettings


@dataclass(frozen=True, kw_only=True)
class Play(PageFlags):
    """Show a policy live on a web page: drag objects away and watch it recover.

    The page shows sampled futures and their σ, with sliders, seeds and two policies side by side. Runs until
    SIGTERM or Ctrl-C; no display is needed.
    """

    runs: tyro.conf.Positional[tuple[options.RunPath, ...]] = (Path("shipped"), Path("shipped-pixels"))
    """Run directories to switch between or to run side by side; by default both policies of this package."""
    demos: options.DemosPath | None = None
    """Show the plans of the first policy over recorded episodes instead, for your own robot."""
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
        runs = [resolve_run(run) for run in self.runs]
        if self.demos is not None:
            self._show_recorded(runs[0], self.demos, settings)
            return
        self.serve(PlayApp(load_runners(runs), seed=self.seed), settings, what="playing")

    def _show_recorded(self, run: Path, demos: Path, settings: "ViewerSettings") -> None:
        """Serve the page of recorded episodes with the plans of a policy."""
        from nsde_policy.eval.score.episodes import select_episodes
        from nsde_policy.policy.policy import Policy
        from nsde_policy.viewer.episodes import EpisodePage, EpisodeServer

        policy = Policy.from_pretrained(run)
        scored = select_episodes(policy, demos)
        page = EpisodePage.from_policy(policy, scored, [f"{run}: {policy!r}", f"Shown: {scored.note}"])
        self.run_server(EpisodeServer(page, settings), settings, what="plans")
