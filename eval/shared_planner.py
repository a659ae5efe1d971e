"""Episodes of a policy with cameras on a GPU: processes step environments, one process plans for all of them.

A plan of a large network takes about as long for many episodes as for one. All episodes therefore advance
side by side: processes step their environments to the next plan and send states and frames, which are encoded
and planned from in one batch.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.eval.rollout import (
    EpisodeResult,
    EpisodeRunner,
    RolloutConfig,
    Trace,
    check_push,
    count_planned,
    make_adapter,
    make_generator,
)
from nsde_policy.inference.loading import build_policy_spec
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.observation import encode_plain, parse_frames
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.tasks import get_task_of_run

ENCODED_AT_ONCE = 512
"""Frames that are encoded in one batch."""


class PendingStates(NamedTuple):
    """What a process needs plans for, in the order of its running episodes."""

    seeds: list[int]
    states: np.ndarray
    """States (n, history, d), newest first; codes of frames are missing."""
    frames: list[np.ndarray]
    """Frames of these states by camera, (n, history, height, width, 3) uint8."""


class FrameCollector:
    """Stands for a policy in a process that steps environments: keeps frames instead of encoding them."""

    def __init__(self, record: RunRecord) -> None:
        self.record, self.spec, self.chunk = record, build_policy_spec(record), record.config.chunk
        self._frames: dict[int, list[np.ndarray]] = {}
        self._count = 0

    def encode(self, observations: dict[str, Any]) -> np.ndarray:
        """Return the observation with a number of its frames as first code."""
        plain = encode_plain(observations, self.spec)
        self._frames[self._count] = [frame[0] for frame in parse_frames(observations, self.spec.cameras)]
        codes = np.zeros(self.spec.codes)
        codes[0] = self._count
        self._count += 1
        return np.concatenate([plain, codes])

    def make_request(self, episodes: Sequence[EpisodeRunner]) -> PendingStates:
        """Collect states and frames of the episodes; other frames are dropped."""
        states = np.stack([episode.history.states() for episode in episodes])
        numbers = states[..., self.spec.plain_dim].astype(int)
        self._frames = {number: self._frames[number] for number in numbers.flatten().tolist()}
        frames = [
            np.stack([np.stack([self._frames[number][i] for number in row]) for row in numbers.tolist()])
            for i in range(len(self.spec.cameras))
        ]
        return PendingStates([episode.seed for episode in episodes], states, frames)


class EpisodeProcess(NamedTuple):
    """What an episode needs of the process that plays it."""

    policy: FrameCollector
    config: RolloutConfig
    task: Any


def _step_environments(
    pipe: "Connection[Any, Any]", record: RunRecord, config: RolloutConfig, seeds: Sequence[int]
) -> None:
    """Play episodes in a process of its own: send requests, receive plans, and send results at last."""
    torch.set_num_threads(1)
    try:
        task = config.task or get_task_of_run(record)
        host = EpisodeProcess(FrameCollector(record), config, task)
        envs = [make_adapter(task, record, config.env_kwargs) for _ in seeds]
        check_push(envs[0], config)
        episodes = [EpisodeRunner(host, env, seed) for env, seed in zip(envs, seeds, strict=True)]
        while running := [episode for episode in episodes if not episode.ended]:
            pipe.send(host.policy.make_request(running))
            for episode, actions in zip(running, pipe.recv(), strict=True):
                episode.run(actions)
        results = [episode.result(planned=0, calls=0) for episode in episodes]
        pipe.send([replace(result, trace=Trace()) for result in results])
    except EOFError:  # the other process needs no results any more
        return
    except Exception as error:  # raised again in the process that plans
        pipe.send(error)


@dataclass(frozen=True)
class SharedPlannerPool(BaseConfig):
    """Processes that step environments of a policy with cameras, which plans for all of them on a device."""

    path: Path
    """Run directory of the policy."""
    config: RolloutConfig
    workers: Count = 1
    device: str = "cuda"
    batch: Count = 256
    """Most episodes that are played side by side."""

    def evaluate(self, seeds: Sequence[int], *, traced: bool = False) -> Iterator[EpisodeResult]:
        """Play one episode per seed; results come in the order of the seeds.

        Raises:
            ConfigError: If traces are asked for, which `RolloutPool` returns.
        """
        if traced:
            raise ConfigError("episodes of a shared planner have no traces: use RolloutPool")
        record, policy = RunDirectory(self.path).read_record(), None
        for start in range(0, len(seeds), self.batch):
            shard = seeds[start : start + self.batch]
            context = multiprocessing.get_context("spawn")
            count = min(self.workers, len(shard))
            pipes, processes = [], []
            for worker in range(count):
                here, there = context.Pipe()
                given = (there, record, self.config, shard[worker::count])
                process = context.Process(target=_step_environments, args=given, daemon=True)
                process.start()
                there.close()  # a process that dies then ends the connection
                pipes.append(here)
                processes.append(process)
            try:
                policy = policy or Policy.from_pretrained(self.path).to(self.device)  # while they start
                found = self._plan_for(policy, pipes, shard)
            finally:
                for pipe in pipes:
                    pipe.close()
                for process in processes:
                    process.join(timeout=5)
                    process.terminate()
            yield from (found[seed] for seed in shard)

    def _plan_for(
        self, policy: Policy, pipes: Sequence["Connection[Any, Any]"], seeds: Sequence[int]
    ) -> dict[int, EpisodeResult]:
        """Answer the requests of all processes, in one batch at a time, until they have sent results."""
        generators = {seed: make_generator(seed) for seed in seeds}
        spent, results = dict.fromkeys(seeds, 0.0), {}
        planned = count_planned(policy, self.config)
        calls = policy.model.network_calls(planned, self.config.sampling)
        waiting = list(pipes)
        while waiting:
            received = {pipe: _receive(pipe) for pipe in waiting}
            requests = {pipe: found for pipe, found in received.items() if isinstance(found, PendingStates)}
            for found in received.values():
                for result in found if isinstance(found, list) else ():
                    n, plans = result.seed, result.plans
                    results[n] = replace(
                        result, planned=plans * planned, network_calls=plans * calls, planning_s=spent[n]
                    )
            if requests:
                self._answer(policy, requests, generators, spent, planned)
            waiting = list(requests)
        return results

    def _answer(
        self,
        policy: Policy,
        requests: "dict[Connection[Any, Any], PendingStates]",
        generators: dict[int, torch.Generator],
        spent: dict[int, float],
        planned: int,
    ) -> None:
        """Encode the frames of all requests, plan in one batch and send the actions."""
        started = time.perf_counter()
        seeds = [seed for request in requests.values() for seed in request.seeds]
        states = add_codes_to_states(policy, list(requests.values()))
        plans = policy.plan_states(
            states,
            generators=[generators[seed] for seed in seeds],
            chunk=planned,
            sampling=self.config.sampling,
        )
        share = (time.perf_counter() - started) / len(seeds)
        for seed in seeds:
            spent[seed] += share
        actions = iter(plan.actions for plan in plans)
        for pipe, request in requests.items():
            pipe.send([next(actions) for _ in request.seeds])


def add_codes_to_states(policy: Policy, requests: Sequence[PendingStates]) -> np.ndarray:
    """Return the states of all requests, (n, history, d), with the codes of their frames."""
    states = np.concatenate([request.states for request in requests])
    spec, rows = policy.spec, states.reshape(-1, states.shape[-1])
    cameras = [np.concatenate(parts) for parts in zip(*(r.frames for r in requests), strict=True)]
    flat = [camera.reshape(-1, *camera.shape[2:]) for camera in cameras]
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        part = slice(start, start + ENCODED_AT_ONCE)
        given = {camera.name: frames[part] for camera, frames in zip(spec.cameras, flat, strict=True)}
        values = rows[part, : spec.plain_dim]
        rows[part, : spec.obs_dim] = policy.encode({STATE_KEY: values, **given})
    return states


def _receive(pipe: "Connection[Any, Any]") -> PendingStates | list[EpisodeResult]:
    """Return what a process sent, or raise its error."""
    try:
        found = pipe.recv()
    except EOFError as error:
        raise EnvError(
            "a process that steps environments has died, perhaps in a library of the environment: play with "
            "--device cpu --workers 1 to see its message"
        ) from error
    if isinstance(found, Exception):
        raise found
    sent: PendingStates | list[EpisodeResult] = found
    return sent
