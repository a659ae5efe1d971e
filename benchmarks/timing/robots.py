"""Robots that ask a policy server for plans at a fixed rate, over websockets."""

import asyncio
import json
import math
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

from nsde_policy.control.clock import freeze_objects
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Array,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    decode,
    encode,
)
from nsde_policy.eval.machine import device_name
from nsde_policy.policy.policy import Policy
from timing.common import Options

HOLDS = 0.999
"""Share of plans that must be in time."""


def measure_robots(options: Options) -> list[dict[str, Any]]:
    """Serve --robots; without that number, search the most robots that the server holds."""
    serve = [sys.executable, "-m", "nsde_policy", "serve", *([str(options.run)] if options.run else [])]
    flags = ["--port", "0", "--json", "--max-clients", "4096", "--device", options.device]
    with subprocess.Popen(
        [*serve, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            with freeze_objects():
                asyncio.run(_ask_all(options, url, 2, 1.0))  # the first plans are slow
                if options.smoke or options.robots:
                    return [_measure(options, url, options.robots or 2)]
                return _search(options, url)
        finally:
            server.terminate()


def _search(options: Options, url: str) -> list[dict[str, Any]]:
    """Double the robots while all plans are in time, then halve the interval to an eighth of the number."""
    rows, holds, fails = [], 0, 0
    while not fails or fails - holds > max(1, holds // 8):
        rows.append(_measure(options, url, (holds + fails) // 2 if fails else max(1, 2 * holds)))
        holds, fails = (
            (rows[-1]["robots"], fails) if rows[-1]["in_time"] >= HOLDS else (holds, rows[-1]["robots"])
        )
    print(
        f"{holds} robots at {options.rate:g} Hz have {HOLDS:.1%} of their plans within {options.deadline:g} s"
    )
    return rows


def _measure(options: Options, url: str, robots: int) -> dict[str, Any]:
    before = _read_health(url)
    latencies = asyncio.run(_ask_all(options, url, robots, 0.5 if options.smoke else options.seconds))
    after = _read_health(url)
    p50, p99 = np.percentile(latencies, [50, 99], method="higher").tolist()
    batches, planned = (after[name] - before[name] for name in ("batches", "planned"))
    return {
        "device": device_name(options.device),
        "robots": robots,
        "plans": len(latencies),
        "in_time": float((np.array(latencies) <= options.deadline).mean()),
        "p50_ms": 1e3 * p50,
        "p99_ms": 1e3 * p99 if math.isfinite(p99) else None,
        "rows_per_batch": planned / max(batches, 1),
    }


def _read_health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url.replace("ws:", "http:") + "/healthz", timeout=10) as response:
        found: dict[str, Any] = json.load(response)
    return found


def make_states(policy: Policy, seed: int) -> np.ndarray:
    """Return states in the range of the demonstrations."""
    rng, spec, memory = np.random.default_rng(seed), policy.spec, policy.spec.new_history()
    for _ in range(spec.history):
        memory.add_observation(rng.uniform(spec.low, spec.high)[: spec.obs_dim])
        memory.add_action(rng.uniform(spec.low, spec.high)[spec.obs_dim :])
    return memory.states()


def make_requests(options: Options) -> list[PlanRequest]:
    """Return requests, one in five from the goal, where plans are compared: as in demonstrations."""
    policy = Policy.from_pretrained(options.run)
    states = [make_states(policy, seed) for seed in range(64)]
    if policy.selector is not None and policy.rule.kind == "goal":
        for near in states[::5]:
            near[:, list(policy.rule.columns)] = policy.selector.goal.numpy()
    return [
        PlanRequest(Array.pack(each), policy.spec.chunk, 0, policy.candidates, options.deadline)
        for each in states
    ]


async def _ask_all(options: Options, url: str, robots: int, seconds: float) -> list[float]:
    """Return the time of every plan, infinite for those that the server refuses."""
    plans = [encode(each) for each in make_requests(options)]
    latencies, clock, ready = list[float](), asyncio.get_running_loop().time, asyncio.Barrier(robots)

    async def ask(robot: int) -> None:
        async with connect(url, compression=None, proxy=None, open_timeout=60) as line:
            await line.send(encode(Hello(PROTOCOL, "benchmark")))
            await line.recv()
            await ready.wait()
            begins = clock() + robot / robots / options.rate  # evenly spread over the period
            for period in range(round(seconds * options.rate)):
                await asyncio.sleep(begins + period / options.rate - clock())
                sent = clock()
                await line.send(plans[(robot + period) % len(plans)])
                reply = decode(await line.recv(), PlanReply | Refusal)
                latencies.append(clock() - sent if isinstance(reply, PlanReply) else np.inf)

    async with asyncio.TaskGroup() as group:
        for robot in range(robots):
            group.create_task(ask(robot))
    return latencies
