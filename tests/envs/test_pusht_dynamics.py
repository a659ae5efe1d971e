"""Tests for envs/pusht/dynamics.py, against the human demonstrations, on pymunk 7 and 6."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsde_policy.envs.pusht.dynamics import PushTDynamics

OLD_PYMUNK = Path(os.environ.get("NSDE_POLICY_PYMUNK_6", Path(sys.prefix) / "pymunk-6"))


@pytest.mark.slow
@pytest.mark.parametrize("pymunk", ["installed", "6.11"])
def test_human_demonstrations_replay_as_recorded(human_demos, pymunk):
    env = dict(os.environ)
    if pymunk != "installed":
        if not OLD_PYMUNK.is_dir():
            pytest.skip(f"no pymunk {pymunk} in {OLD_PYMUNK}; `make test` puts it there")
        env["PYTHONPATH"] = os.pathsep.join([str(OLD_PYMUNK), env.get("PYTHONPATH", "")])
    code = (
        "import pymunk, sys; from nsde_policy.cli.main import main; print(pymunk.version); sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "data", "replay", str(human_demos), "--start", "seed", "--json"]
    run = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    version, _, report = run.stdout.partition("\n")
    if pymunk != "installed":
        assert version.startswith(pymunk)
    report = report[report.index("{") :]  # a debug build of Chipmunk prints that it is one
    episodes = json.JSONDecoder().raw_decode(report)[0]["episodes"]
    assert len(episodes) == 206
    assert max(e["position_error"] for e in episodes) < 0.01
    assert max(e["angle_error"] for e in episodes) < 1e-4


def test_agent_never_leaves_the_table():
    table = PushTDynamics()
    table.place([0.0, 512.0, 256.0, 256.0, 0.0])
    for target in [(512.0, 0.0), (0.0, 512.0)] * 20 + [(512.0, 0.0)] * 3 + [(0.0, 0.0), (512.0, 512.0)] * 20:
        table.advance(*target)
        assert 0.0 <= table.agent[0] <= 512.0
        assert 0.0 <= table.agent[1] <= 512.0
