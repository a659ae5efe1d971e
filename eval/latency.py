"""How long a plan takes: all methods in one process, in turns, one observation at a time, one thread.

Within a round every method plans once, so that whatever else the machine does hits all of them alike.
"""

import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import EMBEDDED_DEMOS, SHIPPED_POLICY
from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.compare.result import ACTIONS
from nsde_policy.eval.compare.suite import preset_of
from nsde_policy.eval.rollout import one_thread
from nsde_policy.inference.loading import build_model, build_policy_spec, load_model
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.tasks import get_task_of_run
from nsde_policy.training.dataset import build_training_data, load_training_demos

START_SEED = 100_000
"""Seed of the start that is planned from."""
FEWEST = 3
"""Rounds that even the slowest method takes part in."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "diffusion": {
        "DDPM-100": {"scheduler": "ddpm", "steps": 100},
        "DDIM-10": {"scheduler": "ddim", "steps": 10},
    }
}
"""Ways to sample a method that are timed each, by what is added to its name."""


@dataclass(frozen=True)
class Contender:
    """A model, and what it is asked."""

    name: str
    method: str
    preset: str
    model: PolicyModel[Any] = field(repr=False)
    sampling: Sampling
    chunk: int
    """Actions it executes before it plans again (T_a), and so plans at a time."""
    states: Tensor = field(repr=False)
    """What it sees, (1, history, d)."""

    @classmethod
    def of(
        cls,
        name: str,
        record: RunRecord,
        model: PolicyModel[Any],
        sampling: Sampling,
        *,
        device: str = "cpu",
    ) -> "Contender":
        """A model at the start of an episode."""
        config, states = record.config, _states(record).to(device)
        model = model.eval().to(device)
        return cls(name, config.method, preset_of(record), model, sampling, config.chunk, states)

    @property
    def parameters(self) -> int:
        """Numbers it learns."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def plan_sizes(self, actions: int) -> list[int]:
        """Actions of each plan that it takes to get so many."""
        longest = min(self.chunk, self.model.config.longest_chunk or actions, actions)
        whole, rest = divmod(actions, longest)
        return [longest] * whole + [rest] * (rest > 0)

    def network_calls(self, actions: int) -> int:
        """Network calls, one after the other, for so many actions."""
        return sum(self.model.network_calls(size, self.sampling) for size in self.plan_sizes(actions))

    def seconds(self, actions: int, draws: Draws) -> float:
        """Time from states to so many actions, in the memory of the CPU."""
        started = time.perf_counter()
        for size in self.plan_sizes(actions):
            self.model.plan(self.states, steps=size, draws=draws, sampling=self.sampling).cpu()
        return time.perf_counter() - started


@dataclass(frozen=True)
class Timing:
    """How long one contender took."""

    contender: Contender
    actions: int
    chunks: tuple[float, ...]
    """Seconds for all actions, round by round."""
    first_actions: tuple[float, ...]
    """Seconds for the first action alone."""

    @property
    def median_ms(self) -> float:
        """For all actions."""
        return 1e3 * float(np.median(self.chunks))

    @property
    def p99_ms(self) -> float:
        """99 of 100 plans are faster; of few rounds, about the slowest."""
        return 1e3 * float(np.percentile(self.chunks, 99))

    @property
    def first_action_ms(self) -> float:
        """Median for the first action alone."""
        return 1e3 * float(np.median(self.first_actions))


def fresh_contenders(methods: Sequence[str], *, device: str = "cpu") -> Iterator[Contender]:
    """Models of the default preset with fresh weights, on which time does not depend; Push-T.

    What they keep of the demonstrations, such as neighbours, is taken from the embedded ones.
    """
    shipped = RunDirectory(SHIPPED_POLICY).read_record()
    task = get_task_of_run(shipped)
    for method in methods:
        record = replace(shipped, config=task.preset("default", method))
        model = build_model(record)
        demos = load_training_demos(record.config.demos, EMBEDDED_DEMOS)
        model.prepare(build_training_data(demos, record.config, task=task.name))
        yield from _variants(method, record, model, device)


def run_contenders(runs: Sequence[Path], *, device: str = "cpu") -> Iterator[Contender]:
    """Trained runs, named by their directories."""
    for path in runs:
        record, model = load_model(RunDirectory(path))
        yield from _variants(str(path), record, model, device)


def _variants(name: str, record: RunRecord, model: PolicyModel[Any], device: str) -> Iterator[Contender]:
    own = model.config.sampling
    for detail, changes in VARIANTS.get(record.config.method, {"": {}}).items():
        sampling = type(own).from_dict({**own.to_dict(), **changes})
        full = f"{name}, {detail}" if detail else name
        yield Contender.of(full, record, model, sampling, device=device)


def _states(record: RunRecord) -> Tensor:
    """What a policy remembers at the start of an episode, (1, history, d)."""
    task, obs = get_task_of_run(record), np.zeros(record.layout.obs_dim)
    if task.env_id is not None:
        env = task.make_env()
        obs, _ = env.reset(seed=START_SEED)
        env.close()
    memory = build_policy_spec(record).new_history()
    memory.add_observation(obs)
    return torch.from_numpy(memory.states())[None]


@torch.no_grad()
def time_in_turns(
    contenders: Sequence[Contender], *, rounds: int = 30, actions: int = ACTIONS, budget_s: float = 20.0
) -> list[Timing]:
    """Time all contenders in turns, after a warm-up.

    One that would take more than `budget_s` sits out some rounds, evenly, though never so many that fewer
    than three remain.
    """
    if rounds < FEWEST or actions < 1 or budget_s <= 0:
        raise ConfigError(
            f"need at least {FEWEST} rounds, an action and some time, got {rounds}, {actions}, {budget_s:g} s"
        )
    if not contenders:
        raise ConfigError("nothing to time: name methods, or give runs")
    chunks: list[list[float]] = [[] for _ in contenders]
    firsts: list[list[float]] = [[] for _ in contenders]
    draws = [Draws([torch.Generator().manual_seed(0)], each.states.device) for each in contenders]
    with one_thread():
        turns = []
        for contender, random in zip(contenders, draws, strict=True):
            contender.seconds(1, random)
            once = contender.seconds(1, random) + contender.seconds(actions, random)
            turns.append(min(rounds, max(FEWEST, int(budget_s / once))))
        for now in range(rounds):
            for i, contender in enumerate(contenders):
                if (now + 1) * turns[i] // rounds > now * turns[i] // rounds:
                    chunks[i].append(contender.seconds(actions, draws[i]))
                    firsts[i].append(contender.seconds(1, draws[i]))
    return [
        Timing(contender, actions, tuple(chunk), tuple(first))
        for contender, chunk, first in zip(contenders, chunks, firsts, strict=True)
    ]


def ratios(timings: Sequence[Timing]) -> list[float | None]:
    """How many times the Neural SDE's median each one's is; None where there is no Neural SDE."""
    ours = next((t.median_ms for t in timings if t.contender.method == "neural_sde"), None)
    return [None if ours is None else timing.median_ms / ours for timing in timings]


def as_rows(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """One object per contender, for JSON."""
    return [
        {
            "method": timing.contender.name,
            "median_ms": _short(timing.median_ms),
            "p99_ms": _short(timing.p99_ms),
            "calls_per_chunk": timing.contender.network_calls(timing.actions),
            "first_action_ms": _short(timing.first_action_ms),
            "parameters": timing.contender.parameters,
            "ratio": None if ratio is None else _short(ratio),
            "n": len(timing.chunks),
            "actions": timing.actions,
            "policy": timing.contender.method,
            "preset": timing.contender.preset,
            "chunk": timing.contender.chunk,
            "sampling": timing.contender.sampling.to_dict(),
            "machine": device_name(str(timing.contender.states.device)),
        }
        for timing, ratio in zip(timings, ratios(timings), strict=True)
    ]


def as_json(timings: Sequence[Timing]) -> str:
    """A list of objects, one line each."""
    return "[\n" + ",\n".join(json.dumps(row) for row in as_rows(timings)) + "\n]\n"


def as_markdown(timings: Sequence[Timing], *, device: str) -> str:
    """The table, the fastest first."""
    actions = timings[0].actions
    lines = [
        f"{actions} actions from one observation, batch 1, one thread, {device_name(device)}, torch "
        f"{torch.__version__}; milliseconds",
        "",
        f"| method | median | p99 | first action | calls | parameters | × {_ours(timings)} | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(as_rows(timings), key=lambda row: float(row["median_ms"])):
        times = [f"{row[key]:.2f}" for key in ("median_ms", "p99_ms", "first_action_ms")]
        costs = [str(row["calls_per_chunk"]), f"{row['parameters']:,}", _times(row["ratio"]), str(row["n"])]
        lines.append(f"| {' | '.join([row['method'], *times, *costs])} |")
    return "\n".join(lines)


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def _ours(timings: Sequence[Timing]) -> str:
    names = [timing.contender.name for timing in timings if timing.contender.method == "neural_sde"]
    return get_method("neural_sde").title if names else "–"


def _short(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}") if math.isfinite(value) else value


def device_name(device: str) -> str:
    """The processor, in words."""
    if device.startswith("cuda"):
        name: str = torch.cuda.get_device_name(device)
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine() or "CPU"
