"""Tests for the command `nsde-policy serve`."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import RemoteError
from nsde_policy.policy.policy import Policy

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TOKEN = "correct-horse-battery"


def start(*args: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *args], cwd=ROOT, **pipes)


def test_command_serves_the_plans_of_the_local_policy_until_an_interrupt(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    process = start("-m", "nsde_policy", "serve", "--port", "0", "--json", "--token-file", str(token))
    try:
        facts = json.loads(process.stdout.readline())
        local = Policy.from_pretrained()
        memory = local.spec.new_history()
        memory.add_observation([235.0, 124.0, 299.6, 145.2, 5.378])
        memory.add_action([200.0, 100.0])
        memory.add_observation([230.0, 120.0, 299.6, 145.2, 5.378])
        remote = RemotePolicy.connect(facts["url"], token=TOKEN, deadline_s=5, timeout_s=20)
        assert remote.spec == replace(local.spec, longest_chunk=local.spec.chunk + 2)
        assert remote.calibration == local.calibration
        assert remote.calibration.rate_hz == 10
        assert facts["spec"] == json.loads(local.spec.to_json())
        for seed in (0, 2**63 - 1):
            for states in (memory.states(), memory.states().astype(np.float64)):
                (here,) = local.plan_rows([states], steps=8, seeds=[seed])
                there = remote.plan_from(states, steps=8, seed=seed)
                assert all(np.array_equal(*parts) for parts in zip(there, here, strict=True))
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = said.splitlines()
    assert lines[0].startswith("serving neural_sde on 127.0.0.1:")
    assert "4 planned" in lines[-1]
    assert TOKEN not in said


SLOW = """
import sys, time
from nsde_policy.cli.main import main
from nsde_policy.deploy.server.policy_server import PolicyServer
from nsde_policy.policy.policy import Policy
plan_rows = Policy.plan_rows
def sleep_first(self, states, *, steps, seeds, candidates):
    time.sleep(seeds[0])
    return plan_rows(self, states, steps=steps, seeds=seeds, candidates=candidates)
Policy.plan_rows = sleep_first
PolicyServer.patience_s = 1.0
sys.exit(main(["serve", "--port", "0", "--json", *sys.argv[1:]]))
"""


def test_sigterm_does_not_wait_for_a_plan_that_hangs():
    process = start("-c", SLOW)
    try:
        url = json.loads(process.stdout.readline())["url"]
        remote = RemotePolicy.connect(url, deadline_s=1.0, timeout_s=20)
        memory = remote.spec.new_history()
        memory.add_observation([235.0, 124.0, 299.6, 145.2, 5.378])
        with pytest.raises(RemoteError, match="no answer within"):
            remote.plan_from(memory.states(), steps=8, seed=1000)
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "the policy still plans after 1 s" in said


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        (("--host", "0.0.0.0"), {}, "which needs a token"),
        (("--host", "0.0.0.0"), {"NSDE_POLICY_TOKEN": "1234"}, "at least 16"),
        (("--token-file", "/nowhere/token"), {}, "/nowhere/token cannot be read: No such file"),
    ],
)
def test_command_reports_errors_in_one_line(
    args: tuple[str, ...], env: dict[str, str], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NSDE_POLICY_TOKEN", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", *args]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
