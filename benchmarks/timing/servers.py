"""The policy server under load."""

import json
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import NsdePolicyError
from nsde_policy.policy.policy import Policy
from timing.common import Options, own_memory

CLIENTS = 8


def make_states(policy: RemotePolicy | Policy, seed: int = 0) -> np.ndarray:
    """Return states in the range of the demonstrations."""
    rng, spec, memory = np.random.default_rng(seed), policy.spec, policy.spec.new_history()
    for _ in range(spec.history):
        memory.add_observation(rng.uniform(spec.low, spec.high)[: spec.obs_dim])
        memory.add_action(rng.uniform(spec.low, spec.high)[spec.obs_dim :])
    return memory.states()


def measure_serve(options: Options) -> list[dict[str, Any]]:
    """Send requests of several clients to the policy server without a pause."""
    command = [sys.executable, "-m", "nsde_policy", "serve", "--deadline-s", "5", "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            return [_soak(url, server.pid, 80 if options.smoke else options.requests)]
        finally:
            server.terminate()


def _soak(url: str, pid: int, requests: int) -> dict[str, Any]:
    """Send requests of several clients without a pause; compare every answer with the local policy's."""
    local = Policy.from_pretrained()
    asked = [(make_states(local, seed), seed) for seed in range(16)]
    wanted = [local.plan_rows([states], steps=local.spec.chunk, seeds=[seed])[0] for states, seed in asked]
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
