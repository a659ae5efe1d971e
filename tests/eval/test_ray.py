"""Tests of rollouts on a Ray cluster; those that start Ray are marked `ray` and run alone."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.eval.rollouts import pool as pools
from nsde_policy.eval.rollouts.pool import RolloutPool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.run_directory import RunDirectory
from tests.helpers.ray_fleet import KILL_AFTER, NOT_STARTED, find_session

ROOT = Path(__file__).parents[2]
SHORT = ["--env-kwargs", '{"max_episode_steps": 16}']
PATIENCE_S = 400.0
MOST_BYTES = 2 * 10**9


def read_without_times(path: Path) -> dict[str, object]:
    """Return the JSON of an evaluation without planning times, which differ in every run."""
    found = json.loads(path.read_text())
    del found["ms_per_action"]
    for episode in found["episodes"]:
        del episode["planning_s"]
    return found


def run_fleet(folder: Path, flags: list[str]) -> tuple[int, str]:
    """Evaluate on a cluster in a session of its own, and end every process that is left of it."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.ray_fleet", folder / "facts.json", *flags],
        cwd=ROOT,
        env={**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=PATIENCE_S)[0]
            ends = time.monotonic() + 60
            while find_session(process.pid) and time.monotonic() < ends:
                time.sleep(0.2)
        finally:
            left = find_session(process.pid)
            for each in left:
                os.kill(each, signal.SIGKILL)
    assert not left, f"outlived the cluster: {left}\n{output}"
    return process.returncode, output


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_node_changes_no_result(tmp_path):
    flags = ["--episodes", "200", *SHORT, "--json"]
    for _ in range(2):
        code, output = run_fleet(tmp_path, [*flags, str(tmp_path / "ray.json")])
        if code != NOT_STARTED:
            break
    assert code == 0, output
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["code"], facts["killed"]) == (0, KILL_AFTER)
    assert facts["gpus"] == "0"
    assert facts["errors"] == [
        "ValueError(\"invalid literal for int() with base 10: 'x'\")",
        "BrokenExecutor",
    ]
    assert facts["peak_bytes"] <= MOST_BYTES
    assert main(["eval", *flags, str(tmp_path / "here.json")]) == 0
    assert read_without_times(tmp_path / "ray.json") == read_without_times(tmp_path / "here.json")


def test_a_process_of_a_cluster_needs_no_run_directory(tmp_path, monkeypatch):
    for name in ("_pool", "_files", "_runner"):
        monkeypatch.setattr(pools, name, None)
    config = RolloutConfig(env_kwargs={"max_episode_steps": 16})
    elsewhere = RolloutPool(tmp_path / "only on the driver", config)
    pools._start_worker(elsewhere, RunDirectory(SHIPPED_POLICY).pack())
    (found,) = pools._run_in_worker([100_000], False)
    (expected,) = RolloutPool(None, config).run([100_000])
    assert found.to_dict("score") | {"planning_s": 0} == expected.to_dict("score") | {"planning_s": 0}
