"""Tests for eval/latency.py; without limits on the times themselves."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.config import Sampling
from nsde_policy.eval.latency import Contender, measure_latency
from nsde_policy.methods.base import BatchRng
from nsde_policy.methods.baselines.regression import Regression, RegressionConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory
from tests.helpers.selecting_runs import make_selecting_run


class Counting(Regression):
    """Regression that logs which model planned how many actions."""

    log: list[tuple[int, int]]
    number = 0

    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        assert torch.get_num_threads() == 1
        self.log.append((self.number, steps))
        return super().plan(states, steps=steps, rng=rng, sampling=sampling)


def counting(number: int, log: list[tuple[int, int]], *, horizon: int = 9, chunk: int = 8) -> Contender:
    record = RunDirectory(SHIPPED_POLICY).read_record()
    config = RegressionConfig(horizon=horizon)
    model = Counting(config, record.spec, generator=torch.Generator().manual_seed(0))
    model.number, model.log = number, log
    record = replace(record, config=replace(record.config, model=config, chunk=chunk))
    return Contender(f"number {number}", Policy(record, model))


def test_every_policy_plans_once_per_round():
    log: list[tuple[int, int]] = []
    contenders = [counting(number, log) for number in (1, 2, 3)]
    rows = measure_latency(contenders, rounds=4)
    turns = [number for number, steps in log if steps == 8]
    assert turns == [1, 1, 2, 2, 3, 3] + [1, 2, 3] * 4  # twice to warm up
    assert [row.n for row in rows] == [4, 4, 4]
    assert all(0 < row.median_ms <= row.p99_ms for row in rows)


def test_short_chunks_take_several_plans():
    log: list[tuple[int, int]] = []
    contenders = [counting(1, log, horizon=2, chunk=1), counting(2, log, chunk=3), counting(3, log)]
    assert [contender.plan_sizes(8) for contender in contenders] == [[1] * 8, [3, 3, 2], [8]]
    assert [contender.network_calls(8) for contender in contenders] == [8, 3, 1]
    log.clear()
    measure_latency(contenders[:1], rounds=3)
    assert len(log) == 8 * (2 + 3) + 1 + 3


def test_slow_policies_skip_rounds_evenly(monkeypatch: pytest.MonkeyPatch):
    log: list[tuple[int, int]] = []
    slow, quick = counting(1, log), counting(2, log)
    measure = Contender.measure

    def fake_measure(self: Contender, actions: int) -> float:
        measure(self, actions)
        return 2.0 if self is slow else 0.001

    monkeypatch.setattr(Contender, "measure", fake_measure)
    rows = measure_latency([slow, quick], rounds=12, budget_s=16.0)
    assert [row.n for row in rows] == [4, 12]
    turns = [number for number, steps in log if steps == 8][4:]
    assert turns == [2, 2, 1, 2] * 4
    assert (rows[0].median_ms, rows[0].p99_ms) == (2000, 2000)
    least = measure_latency([slow, quick], rounds=12, budget_s=1.0)
    assert [row.n for row in least] == [3, 12]


def test_policy_that_selects_plans_is_timed_where_it_compares_them(tmp_path: Path):
    run = make_selecting_run(tmp_path / "run")
    policies = [Policy.from_pretrained(run), Policy.from_pretrained(run).use_selection("none")]
    with_rule, without = measure_latency([Contender("", each) for each in policies], rounds=3)
    assert (with_rule.calls_per_chunk, without.calls_per_chunk) == (16 + 16, 8)
    assert policies[0].selector is not None
    added = sum(weights.numel() for weights in policies[0].selector.dynamics.parameters())
    assert with_rule.parameters - without.parameters == added > 0
