"""`nsde-policy collect`: record demonstrations by hand, or generate them with a policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.assets import is_expert
from nsde_policy.bounds import Count
from nsde_policy.config import check_value
from nsde_policy.errors import ConfigError

from .shared import options
from .shared.page import PageFlags, PageSeed

if TYPE_CHECKING:
    from nsde_policy.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Collect(PageFlags):
    """Record demonstrations on a web page, or with a policy or a script.

    They go into a store for `train --demos`. By default you demonstrate Push-T on a web page, with the agent
    following your pointer, or with --env another task that has a page; --policy generates episodes in any
    environment with a policy or a scripted expert. Every finished episode is saved; run the same command
    again to resume. A store with other settings is not overwritten.
    """

    out: Path
    """Zarr directory to create or to resume."""
    policy: str | None = None
    """What generates episodes: a run directory, `shipped` for the policy of this package, or module:Class of
    a scripted expert with select_action(obs), get_action(obs) or __call__(obs), which needs --env."""
    episodes: Count = 100
    """With --policy: number of episodes in the finished store."""
    only_success: bool = False
    """With --policy: discard failed episodes."""
    seed_start: options.SeedStartFlag = 300_000
    env: options.EnvFlag = None
    env_kwargs: options.EnvKwargsFlag = None
    obs: str = "state"
    """Also record what policies of --obs observe: pixels adds camera frames, for `train --obs pixels`."""
    chunk: options.ChunkFlag = None
    sampling: options.SamplingFlag = ()
    workers: options.WorkersFlag = 0

    def check(self) -> None:
        """Refuse a policy that does not exist, before torch is imported."""
        if self.policy is not None and not is_expert(self.policy):
            options.check_run(Path(self.policy))
        elif self.policy is not None and self.env is None:
            raise ConfigError(f"the expert {self.policy} needs an environment: give one with --env")

    def run(self) -> None:
        """Collect episodes and print how many the store holds."""
        if self.policy is None:
            self._record()
            return
        from nsde_policy.eval.demonstrator import CollectConfig, collect_demonstrations

        config = CollectConfig(
            episodes=self.episodes,
            seed_start=self.seed_start,
            env=self.env,
            env_kwargs=options.parse_env_kwargs(self.env_kwargs),
            only_success=self.only_success,
            chunk=self.chunk,
            sampling=self.sampling,
            obs=self.obs,
        )
        episodes = collect_demonstrations(self.policy, self.out, config, workers=self.workers)
        outcomes = [episode.success for episode in episodes if episode.success is not None]
        score = sum(episode.score for episode in episodes) / len(episodes)
        outcome = f"{sum(outcomes)} successful" if outcomes else f"mean score {score:.4g}"
        tried = episodes[-1].seed + 1 - self.seed_start
        print(f"{self.out} holds {len(episodes)} episodes of {tried} tried, {outcome}")

    def _record(self) -> None:
        from nsde_policy.tasks import with_observations
        from nsde_policy.viewer.record_app import RecordApp, open_collection

        for name in ("chunk", "sampling", "only_success", "workers"):
            if getattr(self, name) != getattr(type(self), name):
                raise ConfigError(f"--{name.replace('_', '-')} requires --policy RUN (generated episodes)")
        check_value("--seed-start", self.seed_start, PageSeed)
        settings = self.make_settings()
        task = self._choose_task()
        images = with_observations(task, self.obs).training.demos.images
        with open_collection(self.out, task, images) as collection:
            app = RecordApp(task, collection, seed_start=self.seed_start, images=images)
            self.serve(app, settings, what="collecting")
            print(f"{self.out} holds {len(collection.episodes)} episodes")

    def _choose_task(self) -> "Task":
        """Return the task to demonstrate by hand; raise `ConfigError` if it has no page."""
        from nsde_policy.assets import SHIPPED_TASK
        from nsde_policy.tasks import get_task, with_env_kwargs
        from nsde_policy.tasks.base import open_env
        from nsde_policy.tasks.environments import close_env

        task, env_kwargs = get_task(self.env or SHIPPED_TASK), options.parse_env_kwargs(self.env_kwargs)
        task.live_table()
        changed = with_env_kwargs(task, env_kwargs)
        close_env(open_env(changed))  # its errors should not wait for the page
        if unknown := [name for name in env_kwargs if name not in task.env_kwargs]:
            raise ConfigError(
                f"recording by hand does not take {', '.join(unknown)}: leave it out of --env-kwargs"
            )
        return changed
