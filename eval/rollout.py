"""Play episodes with a policy: receding-horizon chunks, one seed one result, on as many processes as asked.

The result of a seed depends on that seed alone: its start, its noise and its plans are computed row by row,
so not on the batch, the order, the number of processes or the other seeds.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from nsde_policy.config import SamplingConfig
from nsde_policy.envs import register_envs
from nsde_policy.errors import ConfigError
from nsde_policy.policy import Memory, NSDEPolicy


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played."""

    env_id: str = "nsde_policy/PushT-v0"
    reset_rule: str = "benchmark"
    chunk: int | None = None
    """Actions executed before planning again; None for the policy's own."""
    sampling: SamplingConfig | None = None
    """How paths are drawn; None for the policy's own."""

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
    memories: list[tuple[int, Memory]] = field(default_factory=list)
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


def play(
    policy: NSDEPolicy, env: gym.Env[Any, Any], seed: int, config: RolloutConfig, trace: Trace | None = None
) -> EpisodeResult:
    """Play one episode to its end."""
    generator = noise_generator(seed)
    chunk = config.chunk or policy.chunk
    sampling = config.sampling or policy.model.config.sampling
    calls_per_action = sampling.substeps * (2 if sampling.denoiser == "learned" else 1)
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    obs, info = env.reset(seed=seed)
    memory = Memory(policy)
    memory.see(obs)
    rewards, steps, plans, planning = [0.0], 0, 0, 0.0
    if trace is not None:
        trace.obs.append(obs)
        trace.coverage.append(info["coverage"])
    ended = False
    while not ended:
        started = time.perf_counter()
        plan = policy.plan(memory, generator=generator, chunk=chunk, sampling=config.sampling)
        planning += time.perf_counter() - started
        plans += 1
        if trace is not None:
            trace.memories.append((steps, memory.copy()))
        for planned in plan.actions:
            action = np.clip(planned, low, high)
            obs, reward, terminated, truncated, info = env.step(action)
            memory.did(action)
            memory.see(obs)
            steps += 1
            rewards.append(float(reward))
            if trace is not None:
                trace.actions.append(action)
                trace.obs.append(obs)
                trace.coverage.append(info["coverage"])
            ended = terminated or truncated
            if ended:
                break
    return EpisodeResult(
        seed=seed,
        max_reward=max(rewards),
        success=bool(info["success"]),
        final_coverage=info["coverage"],
        steps=steps,
        plans=plans,
        planned=plans * chunk,
        network_calls=plans * chunk * calls_per_action,
        planning_s=planning,
    )


def evaluate(
    path: Path | None, seeds: Sequence[int], config: RolloutConfig, *, workers: int = 1
) -> Iterator[EpisodeResult]:
    """Play one episode per seed, in their order; `path` is a run, or None for the shipped policy."""
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if workers == 1 or len(seeds) == 1:
        player = Player(path, config)
        with one_thread():
            for seed in seeds:
                yield player.play(seed)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(seeds)), _start_worker, (path, config)) as pool:
        yield from pool.imap(_play_in_worker, seeds, chunksize=1)


class Player:
    """A policy and an environment, ready to play."""

    def __init__(self, path: Path | None, config: RolloutConfig) -> None:
        register_envs()
        self.policy = NSDEPolicy.from_pretrained(path)
        self.config = config
        self.env = gym.make(config.env_id, reset_rule=config.reset_rule)

    def play(self, seed: int, trace: Trace | None = None) -> EpisodeResult:
        """Play one episode to its end."""
        return play(self.policy, self.env, seed, self.config, trace)


_player: Player | None = None


def _start_worker(path: Path | None, config: RolloutConfig) -> None:
    global _player
    torch.set_num_threads(1)
    _player = Player(path, config)


def _play_in_worker(seed: int) -> EpisodeResult:
    assert _player is not None
    return _player.play(seed)
