"""The policy server under load, and pages in a browser."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import NsdePolicyError
from nsde_policy.inference.policy import Policy
from timing.common import Options, own_memory

CLIENTS = 8
BROWSER = ["--no-sandbox", "--headless=new", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def start_command(*args: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server command of the package; yield its process and address."""
    command = [sys.executable, "-m", "nsde_policy.cli.main", *map(str, args), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def make_states(policy: RemotePolicy | Policy, seed: int = 0) -> np.ndarray:
    """Return states in the range of the demonstrations."""
    rng, spec, memory = np.random.default_rng(seed), policy.spec, policy.spec.new_history()
    for _ in range(spec.history):
        memory.add_observation(rng.uniform(spec.low, spec.high)[: spec.obs_dim])
        memory.add_action(rng.uniform(spec.low, spec.high)[spec.obs_dim :])
    return memory.states()


def measure_serve(options: Options) -> list[dict[str, Any]]:
    """Send requests of several clients to the policy server without a pause."""
    with start_command("serve", "--deadline-s", "5") as (server, url):
        return [_soak(url, server.pid, 80 if options.smoke else options.requests)]


def _soak(url: str, pid: int, requests: int) -> dict[str, Any]:
    """Send requests of several clients without a pause; compare every answer with the local policy's."""
    local = Policy.from_pretrained()
    asked = [(make_states(local, seed), seed) for seed in range(16)]
    wanted = [local.plan_from(states, steps=local.spec.chunk, seed=seed) for states, seed in asked]
    latencies, wrong, errors = list[float](), list[int](), list[str]()

    def ask() -> None:
        with RemotePolicy.connect(url, deadline_s=5.0, timeout_s=10.0) as policy:
            for k in range(requests // CLIENTS):
                states, seed = asked[k % len(asked)]
                began = time.perf_counter()
                try:
                    plan = policy.plan_from(states, steps=policy.spec.chunk, seed=seed)
                    wrong.append(not np.array_equal(plan.actions, wanted[k % len(asked)].actions))
                except NsdePolicyError as error:
                    errors.append(str(error))
                latencies.append(1e3 * (time.perf_counter() - began))

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    memory, began = own_memory(pid, "VmRSS"), time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return {
        "requests": len(latencies),
        "clients": CLIENTS,
        "requests_per_s": len(latencies) / (time.perf_counter() - began),
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "errors": len(errors),
        "wrong_answers": sum(wrong),
        "rss_mb_start": memory,
        "rss_mb_end": own_memory(pid, "VmRSS"),
    }


@contextmanager
def open_browser() -> Iterator[Callable[[], Any]]:
    """Start headless Chromium; yield a function that opens a page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER)
        yield lambda: browser.new_page(viewport={"width": 1440, "height": 900})
        browser.close()


def measure_viewer(options: Options) -> list[dict[str, Any]]:
    """Measure the live page with no viewer, one in a browser, and nine more that only read."""
    from websockets.sync.client import connect

    seconds = 2.0 if options.smoke else options.seconds
    with start_command("play", options.run or "shipped") as (server, url), open_browser() as new_page:
        rows = [_watch_server(server.pid, url, 0, seconds, None)]
        page = new_page()
        page.goto(url)
        page.wait_for_timeout(2000)
        page.locator("#next_when_solved").check()
        rows.append(_watch_server(server.pid, url, 1, seconds, page))
        sockets = [
            connect(f"{url.replace('http', 'ws')}live", proxy=None, compression=None) for _ in range(9)
        ]
        for socket in sockets:
            threading.Thread(target=lambda socket=socket: [None for _ in socket], daemon=True).start()
        rows.append(_watch_server(server.pid, url, 10, seconds, page))
        for socket in sockets:
            socket.close()
    return rows


def _watch_server(pid: int, url: str, viewers: int, seconds: float, page: Any) -> dict[str, Any]:
    def look() -> tuple[float, float, dict[str, Any], int]:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        with urllib.request.urlopen(f"{url}healthz") as answer:
            health = json.load(answer)
        return (
            time.monotonic(),
            sum(map(int, ticks)) / 100,
            health,
            page.evaluate("viewer.drawn") if page else 0,
        )

    (t0, cpu0, before, drawn0), _ = look(), time.sleep(seconds)
    t1, cpu1, after, drawn1 = look()
    return {
        "viewers": viewers,
        "cpu": (cpu1 - cpu0) / (t1 - t0),
        "rate_hz": (after["periods"] - before["periods"]) / (t1 - t0),
        "late_ms": after["late_ms"],
        "late_p99_ms": after["late_p99_ms"],
        "fps": (drawn1 - drawn0) / (t1 - t0),
    }


def measure_report(options: Options) -> list[dict[str, Any]]:
    """Open a report of four short trainings in a browser; their episodes fail, so they are longest."""
    count, tries = (2, 1) if options.smoke else (200, 5)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in ("neural_sde", "regression", "flow", "mip")]
        file = Path(folder) / "report.html"
        command = [sys.executable, "-m", "nsde_policy.cli.main"]
        for run in runs:
            quick = ["--preset", "fast", "--train.steps", "200", "--device", "cpu", "--out", str(run)]
            subprocess.run([*command, "train", "--policy", run.name, *quick], check=True)
        flags = ["--episodes", str(count), "--out", str(file), "--cache", f"{folder}/kept"]
        subprocess.run([*command, "report", *map(str, runs), *flags], check=True)
        times = []
        for _ in range(tries):
            with open_browser() as new_page:
                page = new_page()
                page.goto(file.as_uri(), wait_until="load")
                times.append(
                    page.evaluate(
                        """async () => {
                            const loaded = performance.getEntriesByType("navigation")[0].loadEventStart;
                            await Promise.all(DATA.runs.map((_, i) => columnsOf(i)));
                            return { loaded_ms: loaded, unpacked_ms: performance.now() };
                        }"""
                    )
                )
        medians = {name: statistics.median(each[name] for each in times) for name in times[0]}
        return [{"runs": len(runs), "episodes": count, "megabytes": file.stat().st_size / 1e6, **medians}]
