"""Planning latency: all methods in one process, in turns, one observation at a time, one thread.

Every method plans once per round, so that other load on the machine affects all of them alike.
"""

import json
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
from nsde_policy.eval.compare.suite import find_preset
from nsde_policy.eval.rollout import one_thread
from nsde_policy.inference.loading import build_model, build_policy_spec, load_model
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.tasks import get_task_of_run
from nsde_policy.training.dataset import build_training_data, load_training_demos

START_SEED = 100_000
"""Seed of the start that is planned from."""
MIN_ROUNDS = 3
REFERENCE = "neural_sde"
"""Method whose median is the unit of the ratios."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "diffusion": {
        "DDPM-100": {"scheduler": "ddpm", "steps": 100},
        "DDIM-10": {"scheduler": "ddim", "steps": 10},
    }
}
"""Sampling settings that are timed separately, by method and by what is added to its name."""


@dataclass(frozen=True)
class Contender:
    """A model to time, and the states that it plans from."""

    name: str
    method: str
    preset: str
    model: PolicyModel[Any] = field(repr=False)
    sampling: Sampling
    chunk: int
    """Actions executed before planning again (T_a), and so planned at a time."""
    states: Tensor = field(repr=False)
    """States, shape (1, history, d)."""

    @classmethod
    def build(
        cls,
        name: str,
        record: RunRecord,
        model: PolicyModel[Any],
        sampling: Sampling,
        *,
        device: str = "cpu",
    ) -> "Contender":
        """Build a contender that plans from the start of an episode."""
        config, states = record.config, _start_states(record).to(device)
        model = model.eval().to(device)
        return cls(name, config.method, find_preset(record), model, sampling, config.chunk, states)

    def plan_sizes(self, actions: int) -> list[int]:
        """Return the number of actions of each plan that together give `actions`."""
        longest = min(self.chunk, self.model.config.longest_chunk or actions, actions)
        whole, rest = divmod(actions, longest)
        return [longest] * whole + [rest] * (rest > 0)

    def network_calls(self, actions: int) -> int:
        """Count the sequential network calls for `actions`."""
        return sum(self.model.network_calls(size, self.sampling) for size in self.plan_sizes(actions))

    def measure(self, actions: int, draws: Draws) -> float:
        """Plan `actions` and return the seconds it took, the copy to the CPU included."""
        started = time.perf_counter()
        for size in self.plan_sizes(actions):
            self.model.plan(self.states, steps=size, draws=draws, sampling=self.sampling).cpu()
        return time.perf_counter() - started

    def describe(self, actions: int) -> dict[str, Any]:
        """Return name, settings and cost of planning `actions`, for JSON."""
        return {
            "method": self.name,
            "calls_per_chunk": self.network_calls(actions),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "actions": actions,
            "policy": self.method,
            "preset": self.preset,
            "chunk": self.chunk,
            "sampling": self.sampling.to_dict(),
            "machine": device_name(str(self.states.device)),
        }


def build_fresh_contenders(methods: Sequence[str], *, device: str = "cpu") -> Iterator[Contender]:
    """Build models of the default preset with random weights, on which the time does not depend.

    The task and the demonstrations, which some methods store, are those of the package.
    """
    shipped = RunDirectory(SHIPPED_POLICY).read_record()
    task = get_task_of_run(shipped)
    for method in methods:
        record = replace(shipped, config=task.preset("default", method))
        model = build_model(record)
        demos = load_training_demos(record.config.demos, EMBEDDED_DEMOS)
        model.prepare(build_training_data(demos, record.config, task=task.name))
        yield from _build_variants(method, record, model, device)


def load_contenders(runs: Sequence[Path], *, device: str = "cpu") -> Iterator[Contender]:
    """Load trained runs, named by their directories."""
    for path in runs:
        record, model = load_model(RunDirectory(path))
        yield from _build_variants(str(path), record, model, device)


def _build_variants(
    name: str, record: RunRecord, model: PolicyModel[Any], device: str
) -> Iterator[Contender]:
    own = model.config.sampling
    for detail, changes in VARIANTS.get(record.config.method, {"": {}}).items():
        sampling = type(own).from_dict({**own.to_dict(), **changes})
        yield Contender.build(f"{name}, {detail}" if detail else name, record, model, sampling, device=device)


def _start_states(record: RunRecord) -> Tensor:
    """Return the states of a policy at the start of an episode, (1, history, d)."""
    task, obs = get_task_of_run(record), np.zeros(record.layout.obs_dim)
    if task.env_id is not None:
        env = task.make_env()
        obs, _ = env.reset(seed=START_SEED)
        env.close()
    history = build_policy_spec(record).new_history()
    history.add_observation(obs)
    return torch.from_numpy(history.states())[None]


@torch.no_grad()
def measure_latency(
    contenders: Sequence[Contender], *, rounds: int = 30, actions: int = ACTIONS, budget_s: float = 20.0
) -> list[dict[str, Any]]:
    """Time all contenders in turns, after a warm-up.

    A contender that would take more than `budget_s` skips some rounds, evenly, but takes part in at least
    `MIN_ROUNDS`.

    Returns:
        One JSON object per contender: times in milliseconds, and the ratio of its median to the median of the
        first Neural SDE, None if there is none.
    """
    if rounds < MIN_ROUNDS or actions < 1 or budget_s <= 0:
        raise ConfigError(
            f"need rounds >= {MIN_ROUNDS}, actions >= 1 and a budget above 0 s, "
            f"got {rounds}, {actions} and {budget_s:g} s"
        )
    if not contenders:
        raise ConfigError("nothing to time: name methods, or give runs")
    chunks: list[list[float]] = [[] for _ in contenders]
    firsts: list[list[float]] = [[] for _ in contenders]
    draws = [Draws([torch.Generator().manual_seed(0)], each.states.device) for each in contenders]
    with one_thread():
        turns = []
        for contender, random in zip(contenders, draws, strict=True):
            contender.measure(1, random)
            once = contender.measure(1, random) + contender.measure(actions, random)
            turns.append(min(rounds, max(MIN_ROUNDS, int(budget_s / once))))
        for now in range(rounds):
            for i, contender in enumerate(contenders):
                if (now + 1) * turns[i] // rounds > now * turns[i] // rounds:
                    chunks[i].append(contender.measure(actions, draws[i]))
                    firsts[i].append(contender.measure(1, draws[i]))
    medians = [float(np.median(chunk)) for chunk in chunks]
    reference = next(
        (m for m, each in zip(medians, contenders, strict=True) if each.method == REFERENCE), None
    )
    return [
        {
            **each.describe(actions),
            "median_ms": _round_significant(1e3 * median),
            "p99_ms": _round_significant(1e3 * float(np.percentile(chunk, 99))),
            "first_action_ms": _round_significant(1e3 * float(np.median(first))),
            "ratio": None if reference is None else _round_significant(median / reference),
            "n": len(chunk),
        }
        for each, chunk, first, median in zip(contenders, chunks, firsts, medians, strict=True)
    ]


def as_json(rows: Sequence[dict[str, Any]]) -> str:
    """Return a JSON list with one line per contender."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table, the fastest first."""
    reference = "–" if rows[0]["ratio"] is None else get_method(REFERENCE).title
    lines = [
        f"{rows[0]['actions']} actions from one observation, batch 1, one thread, {rows[0]['machine']}, "
        f"torch {torch.__version__}; milliseconds",
        "",
        f"| method | median | p99 | first action | calls | parameters | × {reference} | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: float(row["median_ms"])):
        times = [f"{row[key]:.2f}" for key in ("median_ms", "p99_ms", "first_action_ms")]
        ratio = row["ratio"]
        factor = "–" if ratio is None else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
        costs = [str(row["calls_per_chunk"]), f"{row['parameters']:,}", factor, str(row["n"])]
        lines.append(f"| {' | '.join([row['method'], *times, *costs])} |")
    return "\n".join(lines)


def _round_significant(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")


def device_name(device: str) -> str:
    """Return the name of the processor behind a torch device."""
    if device.startswith("cuda"):
        name: str = torch.cuda.get_device_name(device)
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine() or "CPU"
