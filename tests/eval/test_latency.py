"""Tests for eval/latency.py and `nsde-policy benchmark latency`; without limits on the times themselves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.compare.suite import find_preset
from nsde_policy.eval.latency import Contender, build_fresh_contenders, format_latencies, measure_latency
from nsde_policy.inference.loading import build_model, load_model
from nsde_policy.methods.base import Draws
from nsde_policy.methods.regression import Regression, RegressionConfig
from nsde_policy.run_directory import RunDirectory


class Counting(Regression):
    """Regression that logs which model planned how many actions."""

    log: list[tuple[int, int]]
    number = 0

    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        assert torch.get_num_threads() == 1
        self.log.append((self.number, steps))
        return super().plan(states, steps=steps, draws=draws, sampling=sampling)


def counting(number: int, log: list[tuple[int, int]], *, horizon: int = 9, chunk: int = 8) -> Contender:
    record = RunDirectory(SHIPPED_POLICY).read_record()
    config = RegressionConfig(horizon=horizon)
    model = Counting(config, record.layout, generator=torch.Generator().manual_seed(0))
    model.number, model.log = number, log
    record = replace(record, config=replace(record.config, model=config, chunk=chunk))
    return Contender(f"number {number}", record, model, Sampling())


def test_every_method_plans_once_per_round():
    log: list[tuple[int, int]] = []
    contenders = [counting(number, log) for number in (1, 2, 3)]
    rows = measure_latency(contenders, rounds=4)
    turns = [number for number, steps in log if steps == 8]
    assert turns == [1, 2, 3] * 5  # once to warm up
    assert [row.n for row in rows] == [4, 4, 4]
    assert (log.count((1, 1)), log.count((1, 8))) == (6, 5)


def test_short_chunks_take_several_plans():
    log: list[tuple[int, int]] = []
    contenders = [counting(1, log, horizon=2, chunk=1), counting(2, log, chunk=3), counting(3, log)]
    assert [contender.plan_sizes(8) for contender in contenders] == [[1] * 8, [3, 3, 2], [8]]
    assert [contender.network_calls(8) for contender in contenders] == [8, 3, 1]
    measure_latency(contenders[:1], rounds=3)
    assert len(log) == 8 * 4 + 2 + 3


def test_slow_methods_skip_rounds_evenly(monkeypatch: pytest.MonkeyPatch):
    log: list[tuple[int, int]] = []
    slow, quick = counting(1, log), counting(2, log)
    measure = Contender.measure

    def fake_measure(self: Contender, actions: int, draws: Draws) -> float:
        measure(self, actions, draws)
        return 2.0 if self is slow else 0.001

    monkeypatch.setattr(Contender, "measure", fake_measure)
    rows = measure_latency([slow, quick], rounds=12, budget_s=16.0)
    assert [row.n for row in rows] == [4, 12]
    turns = [number for number, steps in log if steps == 8][2:]
    assert turns == [2, 2, 1, 2] * 4
    assert rows[0].median_ms == 2000
    assert "| number 1 | 2000.00 | 2000.00 | 2000.00 | 1 |" in format_latencies(rows)
    least = measure_latency([slow, quick], rounds=12, budget_s=1.0)
    assert [row.n for row in least] == [3, 12]


def test_percentiles_and_ratios(monkeypatch: pytest.MonkeyPatch):
    record, ours = load_model(RunDirectory(SHIPPED_POLICY))
    contenders = [Contender("ours", record, ours, ours.config.sampling), counting(1, [])]
    clock = iter(range(1, 10_000))
    monkeypatch.setattr(Contender, "measure", lambda self, *_: next(clock) if self.name == "ours" else 500.0)
    rows = measure_latency(contenders, rounds=5, budget_s=1e6)
    assert (rows[0].median_ms, rows[0].n) == (8000, 5)  # of 4, 6, 8, 10, 12 s
    assert rows[0].p99_ms == 1000 * (12 - 0.04 * 2)
    assert [row.ratio for row in rows] == [1, 62.5]
    assert measure_latency(contenders[1:], rounds=3)[0].ratio is None


def test_fresh_models_have_the_default_preset_and_a_real_start():
    shipped, regression = build_fresh_contenders(["neural_sde", "regression"])
    record = RunDirectory(SHIPPED_POLICY).read_record()
    sizes = [sum(p.numel() for p in model.parameters()) for model in (shipped.model, build_model(record))]
    assert sizes[0] == sizes[1]
    assert find_preset(shipped.record) == "default"
    assert (shipped.network_calls(8), regression.network_calls(8)) == (8, 1)
    assert shipped.states.shape == (1, 2, 7)
    assert torch.equal(shipped.states[0, 0], shipped.states[0, 1])
    assert torch.equal(shipped.states[0, 0, :2], shipped.states[0, 0, 5:])


def test_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "latency.json"
    args = ["--methods", "regression", "neural_sde", "--runs", str(SHIPPED_POLICY), "--rounds", "3"]
    assert main(["benchmark", "latency", *args, "--json", str(file)]) == 0
    said = capsys.readouterr().out
    rows = json.loads(file.read_text())
    assert [row["method"] for row in rows] == ["regression", "neural_sde", str(SHIPPED_POLICY)]
    for row in rows:
        assert 0 < row["median_ms"] <= row["p99_ms"]
        assert row["n"] == 3
        assert f"| {row['method']} | {row['median_ms']:.2f} |" in said
    assert [row["calls_per_chunk"] for row in rows] == [1, 8, 8]
    assert rows[1]["ratio"] == 1


def test_json_can_go_to_standard_output(capsys: pytest.CaptureFixture[str]):
    args = ["benchmark", "latency", "--methods", "regression", "--rounds", "3", "--chunk", "4", "--json", "-"]
    assert main(args) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["method"], row["actions"], row["ratio"]) == ("regression", 4, None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "telepathy"], "unknown method 'telepathy'"),
        (["--methods", "regression", "regression"], "named twice"),
        (["--methods", "regression", "--rounds", "2"], "need rounds >= 3"),
        (["--methods", "regression", "--chunk", "0"], "need --chunk >= 1"),
        (["--methods", "regression", "--budget", "0"], "need --budget > 0"),
        (["--methods", "regression", "--json", "/proc/x.json"], "cannot be written"),
        (["--runs", "/nowhere"], "not a run directory"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_bad_input_exits_with_code_2(args: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["benchmark", "latency", *args]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "full helptext" in said or said.count("\n") == 1  # a box of tyro, or one line


def test_nothing_to_time_is_an_error():
    with pytest.raises(ConfigError, match="nothing to time"):
        measure_latency([])
