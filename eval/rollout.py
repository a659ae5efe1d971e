"""Play episodes with a policy: receding-horizon chunks, one seed one result.

The result of a seed depends on that seed alone: its start, its noise, its troubles and its plans are computed
row by row, so not on the order, the number of processes or the other seeds. Played side by side in one batch
(on a GPU), matrix products round differently with the number of rows; nothing else changes.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.envs import register_envs
from nsde_policy.errors import ConfigError
from nsde_policy.eval.disturbances import Condition, Disturbances
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played."""

    env_id: str = "nsde_policy/PushT-v0"
    reset_rule: str = "benchmark"
    chunk: int | None = None
    """Actions executed before planning again; None for the policy's own."""
    sampling: Sampling | None = None
    """How actions are drawn; None for the policy's own."""
    condition: Condition = field(default_factory=Condition)
    """What episodes have to cope with."""

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1, got {self.chunk}")


@dataclass(frozen=True)
class EpisodeResult:
    """How one episode went."""

    seed: int
    max_reward: float
    """Largest clip(coverage / 0.95, 0, 1) along the way."""
    success: bool
    """Coverage above 0.95 at some moment."""
    final_coverage: float
    steps: int
    plans: int
    """How often it planned."""
    planned: int
    """Actions it planned; the last few may not have been needed."""
    network_calls: int
    planning_s: float
    """Time spent planning."""


@dataclass(frozen=True)
class Trace:
    """What happened in an episode, frame by frame, for pictures and recordings."""

    obs: list[np.ndarray] = field(default_factory=list)
    """Observation before each action, and the last one."""
    actions: list[np.ndarray] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    """After each reset or action."""
    memories: list[tuple[int, History]] = field(default_factory=list)
    """Control period of each plan, and what the policy knew then."""


def noise_generator(seed: int) -> torch.Generator:
    """Where the noise of an episode comes from: its own seed, nothing else."""
    return torch.Generator().manual_seed(seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for a while: on one row, more only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Episode:
    """One episode under way.

    A plan is asked for every `chunk` control periods. Where it comes late, the command in force stands until
    the first one is there; later ones are asked for in time to follow on the one before. Actions whose moment
    has passed when a plan arrives are dropped, as far as the plan is long enough; with 2 periods of latency:

        period      0 1 2 3 4 5 6 7 8 9 …
        asked       x               x
        planned     - - x x x x x x x x
        executed    hold x x x x x x x x …
    """

    def __init__(
        self,
        policy: Policy,
        env: gym.Env[Any, Any],
        seed: int,
        config: RolloutConfig,
        trace: Trace | None = None,
    ) -> None:
        self.seed, self.generator, self.memory = seed, noise_generator(seed), policy.spec.new_history()
        self._env, self._trace, self._push = env, trace, config.condition.push
        self._low, self._high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
        std = np.array(policy.record.layout.increment_std[: policy.obs_dim])
        self._troubles = Disturbances(config.condition, seed, std)
        self._late, self._chunk = config.condition.latency_steps, config.chunk or policy.chunk
        self.steps = self.plans = 0
        self.ended = False
        self._coming: list[tuple[int, np.ndarray]] = []
        self._actions: list[np.ndarray] = []
        self._rewards = [0.0]
        obs, self._info = env.reset(seed=seed)
        self._see(obs)

    def run(self, planned: np.ndarray) -> None:
        """Take the plan asked for now, and go on until the next one is due, or to the end."""
        if self._trace is not None:
            self._trace.memories.append((self.steps, self.memory.copy()))
        self.plans += 1
        passed = min(self._late, len(planned) - min(self._chunk, len(planned)))
        self._coming.append((self.steps + self._late, planned[passed:]))
        for _ in range(self._chunk):
            self._step()
            if self.ended:
                break

    def _step(self) -> None:
        if self._coming and self._coming[0][0] == self.steps:
            self._actions = list(self._coming.pop(0)[1])
        planned = self._actions.pop(0) if self._actions else self.memory.last_action
        if (rng := self._troubles.push_at(self.steps)) is not None:
            self._env.unwrapped.push(self._push, rng)  # type: ignore[attr-defined]
        action = np.clip(planned, self._low, self._high)
        obs, reward, terminated, truncated, self._info = self._env.step(action)
        self.memory.add_action(action)
        self.steps += 1
        self._rewards.append(float(reward))
        if self._trace is not None:
            self._trace.actions.append(action)
        self._see(obs)
        self.ended = terminated or truncated

    def _see(self, obs: np.ndarray) -> None:
        self.memory.add_observation(self._troubles.seen(obs))
        if self._trace is not None:
            self._trace.obs.append(obs)
            self._trace.coverage.append(self._info["coverage"])

    def result(self, *, planned: int, calls: int, planning_s: float) -> EpisodeResult:
        """How it went; the rest is of one plan: its actions, its network calls, the time of all plans."""
        return EpisodeResult(
            seed=self.seed,
            max_reward=max(self._rewards),
            success=bool(self._info["success"]),
            final_coverage=self._info["coverage"],
            steps=self.steps,
            plans=self.plans,
            planned=self.plans * planned,
            network_calls=self.plans * calls,
            planning_s=planning_s,
        )


def play(
    policy: Policy, env: gym.Env[Any, Any], seed: int, config: RolloutConfig, trace: Trace | None = None
) -> EpisodeResult:
    """Play one episode to its end."""
    (result,) = play_together(policy, [env], [seed], config, [trace])
    return result


def play_together(
    policy: Policy,
    envs: Sequence[gym.Env[Any, Any]],
    seeds: Sequence[int],
    config: RolloutConfig,
    traces: Sequence[Trace | None] | None = None,
) -> list[EpisodeResult]:
    """Play episodes side by side, each to its end, planning for all of them in one batch."""
    wanted = policy.check_chunk(config.chunk or policy.chunk) + config.condition.latency_steps
    steps = min(wanted, policy.model.config.longest_chunk or wanted)
    traces = traces or [None] * len(seeds)
    episodes = [
        Episode(policy, env, seed, config, trace)
        for env, seed, trace in zip(envs, seeds, traces, strict=True)
    ]
    planning = dict.fromkeys(seeds, 0.0)
    while running := [episode for episode in episodes if not episode.ended]:
        started = time.perf_counter()
        plans = policy.plans(
            [episode.memory for episode in running],
            generators=[episode.generator for episode in running],
            chunk=steps,
            sampling=config.sampling,
        )
        share = (time.perf_counter() - started) / len(running)
        for episode, plan in zip(running, plans, strict=True):
            planning[episode.seed] += share
            episode.run(plan.actions)
    calls = policy.model.network_calls(steps, config.sampling)
    return [
        episode.result(planned=steps, calls=calls, planning_s=planning[episode.seed]) for episode in episodes
    ]


Played = tuple[EpisodeResult, Trace | None]
"""How an episode went, and what happened in it where that was asked for."""


class Player:
    """A policy and its environments, ready to play."""

    def __init__(
        self, path: Path | None, config: RolloutConfig, *, device: str = "cpu", batch: int = 1
    ) -> None:
        register_envs()
        self.policy = Policy.from_pretrained(path).to(device)
        self.config = config
        self._envs = [gym.make(config.env_id, reset_rule=config.reset_rule) for _ in range(batch)]
        if config.condition.push and not hasattr(self._envs[0].unwrapped, "push"):
            raise ConfigError(f"nothing can be pushed in {config.env_id}: leave out --push")

    def play(self, seed: int, trace: Trace | None = None) -> EpisodeResult:
        """Play one episode to its end."""
        return play(self.policy, self._envs[0], seed, self.config, trace)

    def play_all(self, seeds: Sequence[int], *, traced: bool = False) -> list[Played]:
        """Play at most `batch` episodes side by side."""
        traces = [Trace() if traced else None for _ in seeds]
        results = play_together(self.policy, self._envs[: len(seeds)], seeds, self.config, traces)
        return list(zip(results, traces, strict=True))
