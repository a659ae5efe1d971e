"""`nsde-policy collect`: record demonstrations by hand, or generate them with a policy."""

from dataclasses import dataclass
from pathlib import Path

from nsde_policy.cli import options
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class Collect:
    """Collect demonstrations into a store for `train --demos`.

    By default you demonstrate on a web page, with the agent following your pointer; --policy generates
    episodes with a policy instead. Every finished episode is saved; run the same command again to resume. A
    store with other settings is not overwritten.
    """

    out: Path
    """Zarr directory to create or to resume."""
    policy: Path | None = None
    """Run directory of the policy that generates episodes; `shipped` for the policy of this package."""
    episodes: int = 100
    """With --policy: number of episodes in the finished store."""
    only_success: bool = False
    """With --policy: discard failed episodes."""
    seed_start: options.SeedStartFlag = 300_000
    reset_rule: options.ResetRuleFlag = None
    chunk: options.ChunkFlag = None
    sampling: options.SamplingFlag = ()
    workers: options.WorkersFlag = 0
    host: options.HostFlag = "127.0.0.1"
    port: options.PortFlag = 8000
    token_file: options.TokenFileFlag = None
    open: options.BrowserFlag = False
    json: options.JsonAddressFlag = False

    def run(self) -> None:
        """Collect episodes and print how many the store holds."""
        if self.policy is None:
            self._record()
            return
        from nsde_policy.assets import resolve_run
        from nsde_policy.eval.generate import GenerateConfig, generate

        env = options.build_env_kwargs(self.reset_rule)
        config = GenerateConfig(
            self.episodes, self.seed_start, env, self.only_success, self.chunk, self.sampling
        )
        kept = generate(resolve_run(self.policy), self.out, config, workers=self.workers)
        won, tried = sum(each.success for each in kept), kept[-1].seed + 1 - self.seed_start
        print(f"{self.out} holds {len(kept)} episodes of {tried} tried, {won} successful")

    def _record(self) -> None:
        from nsde_policy.assets import SHIPPED_TASK
        from nsde_policy.cli.page import run_app
        from nsde_policy.data.collection import Collection
        from nsde_policy.tasks import get_task
        from nsde_policy.viewer.launch import make_settings
        from nsde_policy.viewer.messages import MAX_START_SEED
        from nsde_policy.viewer.record_app import RecordApp, make_provenance

        for name in ("chunk", "sampling", "only_success", "workers"):
            if getattr(self, name) != getattr(type(self), name):
                raise ConfigError(f"--{name.replace('_', '-')} requires --policy RUN (generated episodes)")
        if not 0 <= self.seed_start <= MAX_START_SEED:
            raise ConfigError(f"need --seed-start from 0 to {MAX_START_SEED}, got {self.seed_start}")
        settings = make_settings(self.host, self.port, options.read_token(self.token_file))
        rule = self.reset_rule or "benchmark"
        task, provenance = get_task(SHIPPED_TASK), make_provenance(rule)
        with Collection(self.out, provenance, rate_hz=task.rate_hz, angles=task.demos.angles) as collection:
            app = RecordApp(collection, seed_start=self.seed_start, reset_rule=rule)
            run_app(app, settings, what="collecting", browser=self.open, as_json=self.json)
            print(f"{self.out} holds {len(collection.episodes)} episodes")
