"""Tests for control/report.py: report and log of a session."""

import json
from pathlib import Path

import pytest

from nsde_policy.errors import NsdePolicyError
from tests.helpers.numpy_planner import FailingWalker, Sim
from tests.helpers.sessions import make_session, run_session


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_log_and_not_the_loop(caplog):
    sim = Sim()
    with make_session(sim, log="/dev/full") as session:
        run_session(session, sim, 400)
    assert session.report().commands == 400
    assert "/dev/full is incomplete: No space left on device" in caplog.text


def test_a_log_that_cannot_be_written_raises(tmp_path):
    with pytest.raises(NsdePolicyError, match="cannot be written"):
        make_session(Sim(), log=tmp_path)
