"""Measure the cost of the viewer: frame rate in a browser, CPU of the server, control loop under ten clients.

    python benchmarks/viewer_load.py --seconds 12 --out benchmarks/results/viewer_load.json

The server is a separate process. The first client is headless Chromium, which counts the frames it draws; the
others are websockets in another process, which read everything. Each number of clients is measured several
times in turn, so that other load on the machine affects all of them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

FLAGS = [
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
]
VIEWPORT = {"width": 1440, "height": 900}
SEED = 100_003


class Child:
    """A subprocess of this script that answers lines with JSON."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, __file__, *args]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def request(self, line: str = "") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def serve() -> None:
    """Run the server; print its port, then its CPU time and timing since the last line on stdin."""
    import asyncio
    import threading

    import torch

    from nsde_policy.assets import SHIPPED_POLICY
    from nsde_policy.viewer.http import ViewerSettings
    from nsde_policy.viewer.launch import load_runners
    from nsde_policy.viewer.play_app import PlayApp
    from nsde_policy.viewer.server import ViewerServer

    torch.set_num_threads(1)
    server = ViewerServer(
        PlayApp(load_runners([SHIPPED_POLICY]), seed=SEED), ViewerSettings(port=0), lambda *a, **k: None
    )

    def answer(facts: dict[str, Any]) -> None:
        print(json.dumps(facts), flush=True)

    thread = threading.Thread(target=lambda: asyncio.run(server.run(lambda port: answer({"port": port}))))
    thread.start()
    cpu, wall, periods = time.process_time(), time.perf_counter(), server.simulation.periods
    for _ in sys.stdin:
        spent, passed = time.process_time() - cpu, time.perf_counter() - wall
        done = server.simulation.periods - periods
        answer({"cpu": spent / passed, "rate_hz": done / passed, **server.simulation.timing()})
        server.simulation.reset_timing()
        cpu, wall, periods = time.process_time(), time.perf_counter(), server.simulation.periods
    server.stop()
    thread.join()


def read(port: int, viewers: int) -> None:
    """Run clients that only read; print the smallest frame rate for each line on stdin."""
    import asyncio

    from websockets.asyncio.client import connect

    frames = [0] * viewers

    async def viewer(k: int) -> None:
        async with connect(f"ws://127.0.0.1:{port}/live", proxy=None, compression=None) as client:
            await client.send('{"do":"set_control","name":"next_when_solved","value":1}')
            async for _ in client:
                frames[k] += 1

    async def run_all() -> None:
        tasks = [asyncio.create_task(viewer(k)) for k in range(viewers)]
        started = time.perf_counter()
        print(json.dumps({"viewers": viewers}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({"frames_hz": min(frames) / (time.perf_counter() - started)}), flush=True)
        for task in tasks:
            task.cancel()

    asyncio.run(run_all())


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    """Measure no client, one in a browser, and ten of which one is in a browser, in turn."""
    from playwright.sync_api import sync_playwright

    server = Child("--serve")
    port = server.request()["port"]
    found: dict[str, list[dict[str, float]]] = {"0": [], "1": [], "10": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for _ in range(rounds):
            time.sleep(1)
            server.request("mark")
            time.sleep(seconds)
            found["0"].append(server.request("mark"))
            page = browser.new_page(viewport=VIEWPORT)
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_timeout(2000)
            page.locator("#next_when_solved").check()
            server.request("mark")
            drawn = _count_frames(page, seconds)
            found["1"].append({**server.request("mark"), **drawn})
            readers = Child("--read", str(port), "--viewers", "9")
            readers.request()
            page.wait_for_timeout(1500)
            server.request("mark")
            drawn = _count_frames(page, seconds)
            found["10"].append({**server.request("mark"), **drawn, **readers.request("mark")})
            readers.end()
            page.close()
        browser.close()
    server.end()
    rows = {k: {name: median(r[name] for r in rows) for name in rows[0]} for k, rows in found.items()}
    slower = [one["rate_hz"] / ten["rate_hz"] - 1 for one, ten in zip(found["1"], found["10"], strict=True)]
    return {"seconds": seconds, "rounds": rounds, "viewers": rows, "ten_slow_the_loop_by": median(slower)}


def _count_frames(page: Any, seconds: float) -> dict[str, float]:
    """Count frames drawn per second: on average and in the worst single second."""
    counts, times = [page.evaluate("viewer.drawn")], [time.perf_counter()]
    while times[-1] - times[0] < seconds:
        page.wait_for_timeout(1000)
        counts.append(page.evaluate("viewer.drawn"))
        times.append(time.perf_counter())
    rates = [(b - a) / (t - s) for a, b, s, t in zip(counts, counts[1:], times, times[1:], strict=False)]
    return {"fps": (counts[-1] - counts[0]) / (times[-1] - times[0]), "worst_fps": min(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON of the result")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--viewers", type=int, default=9, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve()
    if args.read:
        return read(args.read, args.viewers)
    result = measure(args.seconds, args.rounds) | {"cores": os.cpu_count()}
    for viewers, row in result["viewers"].items():
        facts = ", ".join(f"{name} {value:.3g}" for name, value in row.items() if name != "periods")
        print(f"{viewers:>2} viewers: {facts}")
    print(f"ten viewers slow the control loop by {100 * result['ten_slow_the_loop_by']:.2f} %")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
