"""Tests for control/report.py: report and log of a session."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.errors import NsdePolicyError
from tests.helpers.numpy_planner import FailingWalker, Sim
from tests.helpers.sessions import NO_LIMITS, make_session, run_session


@pytest.mark.parametrize("kind", [Path, str])
def test_report_and_log_agree(tmp_path, kind):
    sim = Sim()
    planner = FailingWalker(sim)
    session = make_session(sim, planner, log=kind(tmp_path / "log" / "session.jsonl"))
    run_session(session, sim, 9)
    planner.trouble = "raise"
    run_session(session, sim, 9)
    session.close()
    lines = [json.loads(line) for line in (tmp_path / "log" / "session.jsonl").read_text().splitlines()]
    report = json.loads(session.report().to_json())
    assert len(lines) == report["commands"] == 18
    assert sum("planner_error" in line["faults"] for line in lines) == report["faults"]["planner_error"] == 1
    assert "planner_error 1" in session.report().to_text()
    assert report["rate_hz"] == pytest.approx(10, rel=0.1)


def test_a_log_that_cannot_be_written_raises(tmp_path):
    with pytest.raises(NsdePolicyError, match="cannot be written"):
        make_session(Sim(), log=tmp_path)


def test_the_largest_jerk_is_reported_as_a_fraction_of_the_limit():
    sim = Sim()
    session = make_session(sim, jerk_limit=[3e3, 2e3], rate_hz=50)
    commands = run_session(session, sim, 200, rate=50)
    used = (np.abs(np.diff(commands, n=3, axis=0)) * 50**3 / [3e3, 2e3]).max()
    assert session.report().jerk_limit_used == pytest.approx(used)
    assert 0.5 < used <= 1 + 1e-6
    assert f"at most {used:.3f} of the limit" in session.report().to_text()


def test_jerk_is_measured_within_plans_and_between_them():
    sim = Sim()
    session = make_session(sim, limits=NO_LIMITS)
    run_session(session, sim, 80)
    report = session.report()
    assert report.jerk_at_joins > 0
    assert report.jerk_elsewhere > 0
