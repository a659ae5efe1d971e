"""Planning latency: all methods in one process, in turns, one observation at a time, one thread.

Every method plans once per round, so that other load on the machine affects all of them alike.
"""

import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from nsde_policy.assets import EMBEDDED_DEMOS, SHIPPED_POLICY
from nsde_policy.config import Sampling
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.eval.compare.result import ACTIONS
from nsde_policy.eval.compare.suite import find_preset
from nsde_policy.eval.rollout import make_adapter
from nsde_policy.eval.tables import EMPTY_CELL, format_markdown
from nsde_policy.inference.loading import build_model, build_policy_spec, load_encoder, load_model
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.methods.base import Draws, PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunDirectory, RunRecord
from nsde_policy.tasks import get_task_of_run
from nsde_policy.training.dataset import build_training_data
from nsde_policy.training.demos import load_training_demos

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


class LatencyRow(msgspec.Struct, frozen=True):
    """Latency of one contender, milliseconds, as `nsde-policy benchmark latency --json` writes it."""

    method: str
    """Name of the contender."""
    calls_per_chunk: int
    """Sequential network calls for `actions`."""
    parameters: int
    actions: int
    policy: str
    """Name of the method played."""
    preset: str
    chunk: int
    sampling: dict[str, Any]
    machine: str
    median_ms: float
    p99_ms: float
    first_action_ms: float
    ratio: float | None
    """Median in units of the first Neural SDE's; None if there is none."""
    n: int
    """Number of timed plans."""


class Contender:
    """A model to time, which plans from the start of an episode.

    Args:
        name: Name in the results.
        record: Record of its run.
        model: The model.
        sampling: How it samples.
        device: Torch device to time it on.
        encoder: Encodes the camera frames that are new in each plan; None for a policy without cameras.
    """

    def __init__(
        self,
        name: str,
        record: RunRecord,
        model: PolicyModel[Any],
        sampling: Sampling,
        device: str = "cpu",
        encoder: EncoderModel | None = None,
    ) -> None:
        self.name, self.record, self.sampling = name, record, sampling
        self.model, self.states = model.eval().to(device), _start_states(record).to(device)
        self._encoder = None if encoder is None else encoder.eval().to(device)

    def plan_sizes(self, actions: int) -> list[int]:
        """Return the number of actions of each plan that together give `actions`."""
        longest = min(self.record.config.chunk, self.model.config.longest_chunk or actions, actions)
        whole, rest = divmod(actions, longest)
        return [longest] * whole + [rest] * (rest > 0)

    def network_calls(self, actions: int) -> int:
        """Count the sequential network calls for `actions`."""
        return sum(self.model.network_calls(size, self.sampling) for size in self.plan_sizes(actions))

    def measure(self, actions: int, draws: Draws) -> float:
        """Plan `actions` and return the seconds it took, the copy to the CPU included."""
        started = time.perf_counter()
        for size in self.plan_sizes(actions):
            self._encode(min(self.record.config.model.history, size))
            self.model.plan(self.states, steps=size, draws=draws, sampling=self.sampling).cpu()
        return time.perf_counter() - started

    def _encode(self, count: int) -> None:
        """Encode so many frames of each camera, which are black: the time does not depend on them."""
        if self._encoder is None:
            return
        size, device = self._encoder.size, self.states.device
        frame = torch.zeros(count, size, size, 3, dtype=torch.uint8, device=device)
        values = torch.zeros(count, self.record.layout.plain_dim, device=device)
        self._encoder(values, *[frame] * len(self.record.cameras)).cpu()


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
        run = RunDirectory(path)
        record, model = load_model(run)
        yield from _build_variants(str(path), record, model, device, load_encoder(run, record))


def _build_variants(
    name: str,
    record: RunRecord,
    model: PolicyModel[Any],
    device: str,
    encoder: EncoderModel | None = None,
) -> Iterator[Contender]:
    own = model.config.sampling
    for detail, changes in VARIANTS.get(record.config.method, {"": {}}).items():
        sampling = type(own).from_dict({**own.to_dict(), **changes})
        yield Contender(f"{name}, {detail}" if detail else name, record, model, sampling, device, encoder)


def _start_states(record: RunRecord) -> Tensor:
    """Return the states of a policy at the start of an episode, (1, history, d), or zeros."""
    if record.cameras:
        return torch.zeros(1, record.config.model.history, record.layout.dim)
    try:
        env = make_adapter(get_task_of_run(record), record, {})
        obs, _ = env.reset(START_SEED)
        env.close()
    except NsdePolicyError:  # the time hardly depends on the state
        obs = np.zeros(record.layout.obs_dim)
    history = build_policy_spec(record).new_history()
    history.add_observation(obs)
    return torch.from_numpy(history.states())[None]


@torch.no_grad()
def measure_latency(
    contenders: Sequence[Contender], *, rounds: int = 30, actions: int = ACTIONS, budget_s: float = 20.0
) -> list[LatencyRow]:
    """Time all contenders in turns, after a warm-up.

    A contender that would take more than `budget_s` skips some rounds, evenly, but takes part in at least
    `MIN_ROUNDS`.
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
    with use_threads(1):
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
    configs = [each.record.config for each in contenders]
    ours = [median for median, config in zip(medians, configs, strict=True) if config.method == REFERENCE]
    return [
        LatencyRow(
            method=each.name,
            calls_per_chunk=each.network_calls(actions),
            parameters=sum(parameter.numel() for parameter in each.model.parameters()),
            actions=actions,
            policy=config.method,
            preset=find_preset(each.record),
            chunk=config.chunk,
            sampling=each.sampling.to_dict(),
            machine=device_name(str(each.states.device)),
            median_ms=_round_significant(1e3 * median),
            p99_ms=_round_significant(1e3 * float(np.percentile(chunk, 99))),
            first_action_ms=_round_significant(1e3 * float(np.median(first))),
            ratio=_round_significant(median / ours[0]) if ours else None,
            n=len(chunk),
        )
        for each, config, chunk, first, median in zip(
            contenders, configs, chunks, firsts, medians, strict=True
        )
    ]


def encode_latencies(rows: Sequence[LatencyRow]) -> str:
    """Return a JSON list with one line per contender."""
    return "[\n" + ",\n".join(json.dumps(msgspec.to_builtins(row)) for row in rows) + "\n]\n"


def format_latencies(rows: Sequence[LatencyRow]) -> str:
    """Format a Markdown table, the fastest first."""
    first = rows[0]
    reference = EMPTY_CELL if first.ratio is None else get_method(REFERENCE).title
    head = ["method", "median", "p99", "first action", "calls", "parameters", f"× {reference}", "rounds"]
    lines = []
    for row in sorted(rows, key=lambda row: row.median_ms):
        times = [f"{value:.2f}" for value in (row.median_ms, row.p99_ms, row.first_action_ms)]
        ratio = row.ratio
        factor = EMPTY_CELL if ratio is None else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
        costs = [str(row.calls_per_chunk), f"{row.parameters:,}", factor, str(row.n)]
        lines.append([row.method, *times, *costs])
    return (
        f"{first.actions} actions from one observation, batch 1, one thread, {first.machine}, "
        f"torch {torch.__version__}; milliseconds\n\n{format_markdown(head, lines)}"
    )


def _round_significant(value: float) -> float:
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
