"""Tests for control/worker.py: the planner thread of session, server and viewer."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nsde_policy.control.worker import PlannerThread

ROOT = Path(__file__).parents[2]


@pytest.fixture
def thread():
    thread = PlannerThread()
    yield thread
    assert thread.close(30)


def block(thread):
    """Block the thread with a job; return the event that unblocks it and the future of the job."""
    started, go = threading.Event(), threading.Event()

    def job():
        started.set()
        assert go.wait(30)
        return "unblocked"

    future = thread.submit(job)
    assert started.wait(30)
    return go, future


def test_jobs_run_in_order_in_one_other_thread(thread):
    ran = []
    futures = [thread.submit(lambda k=k: ran.append((k, threading.get_ident())) or k) for k in range(20)]
    assert [future.result(30) for future in futures] == list(range(20))
    assert [k for k, _ in ran] == list(range(20))
    assert len({ident for _, ident in ran} | {threading.get_ident()}) == 2


def test_only_waiting_jobs_can_be_cancelled(thread):
    go, running = block(thread)
    ran = []
    waiting = thread.submit(lambda: ran.append(1))
    assert waiting.cancel()
    assert not running.cancel()
    with pytest.raises(TimeoutError):
        running.result(0)
    go.set()
    assert thread.submit(lambda: "next").result(30) == "next"
    assert ran == []
    assert running.result() == "unblocked"


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_exception_of_a_job_is_in_its_future_and_the_next_job_runs(thread, error):
    def fail():
        raise error

    assert thread.submit(fail).exception(30) is error
    assert thread.submit(lambda: 1).result(30) == 1


def test_close_finishes_queued_jobs_and_rejects_new_ones():
    thread = PlannerThread()
    go, _ = block(thread)
    queued = thread.submit(lambda: "queued")
    assert not thread.close()
    with pytest.raises(RuntimeError, match="closed and takes no jobs"):
        thread.submit(lambda: None)
    go.set()
    assert thread.close(30)
    assert queued.result(0) == "queued"


AT_EXIT = """
import threading, time
from nsde_policy.control import worker
worker.EXIT_TIMEOUT_S = {timeout}
started = threading.Event()
def job():
    started.set()
    time.sleep({job})
    print("finished", flush=True)
thread = worker.PlannerThread()
thread.submit(job)
started.wait(30)
"""


@pytest.mark.parametrize(("timeout", "job", "printed"), [(60, 0.3, "finished\n"), (0.1, 600, "")])
def test_exit_waits_for_a_running_job_up_to_the_timeout(timeout, job, printed):
    code = AT_EXIT.format(timeout=timeout, job=job)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
