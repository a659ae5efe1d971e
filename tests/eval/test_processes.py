"""Tests of worker processes: they end with their parent, and leave Ctrl-C to it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from tqdm import tqdm
from nsde_policy.eval.rollouts.executors import ProcessPool

if __name__ != "__main__":
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: two processes share the pipe
    time.sleep(0.3)  # as if imports took long

def work(number):
    tqdm.get_lock()  # as a progress bar does
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    try:
        with ProcessPool(2) as pool:
            os.write(1, b"%d\\n" % os.getpid())
            jobs = [pool.submit(work, number) for number in range(4)]
            jobs[0].result()
    except KeyboardInterrupt:
        sys.exit(130)
"""


def is_running(process: int) -> bool:
    """Return whether a process runs; one that has ended may wait to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "to_group", "after", "code"),
    [
        (signal.SIGKILL, False, 5, -signal.SIGKILL),
        (signal.SIGINT, True, 5, 130),
        (signal.SIGINT, True, 3, 130),  # while the processes import
    ],
)
def test_workers_end_with_their_parent(number, to_group, after, code, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, tmp_path / "program.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore it
    ) as parent:
        assert parent.stdout is not None
        processes = [int(parent.stdout.readline()) for _ in range(after)]
        (os.killpg if to_group else os.kill)(parent.pid, number)
        errors = parent.communicate(timeout=60)[1]  # workers share the streams: they have ended too
    assert parent.returncode == code
    assert "Traceback" not in errors
    assert "leaked" not in errors or number == signal.SIGKILL
    ends = time.monotonic() + 30
    while any(map(is_running, processes)):
        assert time.monotonic() < ends, "a worker outlived its parent"
        time.sleep(0.05)
