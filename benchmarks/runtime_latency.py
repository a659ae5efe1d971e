"""Measure the latency of a chunk: the shipped policy as ONNX and on torch, and one Diffusion Policy chunk.

    python benchmarks/runtime_latency.py [--rounds 1000] [--calls 100000] [--json FILE]
    python benchmarks/runtime_latency.py --pixels RUN [--rounds 200] [--baseline-rounds 3] [--json FILE]

All contenders take turns in one process, batch 1, one CPU thread, 8 actions from one observation; in its turn
each is called twice. In the first call the caches hold the others' weights, as after a long control period;
in the second its own. Reported are medians and 99th percentiles; ratios are of medians of second calls. The
CPU time of second calls is what they would take on a machine without other load.
Afterwards the exported policy is called --calls times and the memory of the process is measured.

"onnx, graph" is the graph alone, its inputs in place. "onnx, plan_from" is the whole cost in a control loop:
checks, a generator made from a seed, noise, the graph, new arrays. "pt2, graph" is the archive of
torch.export, loaded again. "numpy" is the same equation in numpy.

With --pixels RUN, a policy with cameras, a chunk needs a new frame of each camera for each state of its
history: rows "frames and chunk" encode them and plan. `select_action` encodes a frame when it arrives if the
next plan needs it, so that the longest control period is "last frame and chunk". The frames show the run's
background, seen by a camera at its place, or shifted by two pixels, which costs a second look. The baseline
is the image recipe of Diffusion Policy, ResNet-18 and U-Net with random weights, DDPM-100.
"""

import argparse
import json
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.core.spec import StateSpec
from nsde_policy.deploy.export import export_policy, formats
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.encoders.keypoints.model import KeypointModel
from nsde_policy.eval.latency import device_name
from nsde_policy.inference.loading import build_encoder, build_model
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.base import Draws
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task

OBS = np.array([235.0, 124.0, 299.6, 145.2, 5.378])
ACTIONS = 8
BASELINE, PIXEL_BASELINE = "diffusion, DDPM-100", "image diffusion, DDPM-100, frames and chunk"
SHIFT = 2
TIMES = ("median_ms", "p99_ms", "first_call_median_ms", "cpu_median_ms")
Job = Callable[[], object]


def make_baseline() -> Job:
    """Return a DDPM-100 chunk of the Diffusion Policy, the 65M U-Net with random weights."""
    record = replace(
        RunDirectory(SHIPPED_POLICY).read_record(), config=get_task("pusht").preset("default", "diffusion")
    )
    policy = Policy(record, build_model(record).eval())
    memory = policy.spec.new_history()
    memory.add_observation(OBS)
    states = torch.from_numpy(memory.states())[None]
    draws = Draws([torch.Generator().manual_seed(0)])
    return lambda: policy.model.plan(states, steps=ACTIONS, draws=draws)


def make_contenders(folder: Path) -> tuple[dict[str, Job], RuntimePolicy, np.ndarray]:
    policy = Policy.from_pretrained()
    export_policy(policy, folder / "policy.onnx", steps=ACTIONS, cases=64)
    export_policy(policy, folder / "policy.pt2", format="pt2", steps=ACTIONS, cases=64)
    archive = formats.load_pt2((folder / "policy.pt2").read_bytes())
    runtime = RuntimePolicy.load(folder / "policy.onnx")
    memory = runtime.spec.new_history()
    memory.add_observation(OBS)
    states = memory.states()
    chunk, first = (Graph.load(folder / name) for name in ("policy.onnx", "policy.first.onnx"))
    for graph in (chunk, first):
        graph.inputs["states"][:] = states
        graph.draw(np.random.default_rng(0))
    inputs = [array.copy() for array in chunk.inputs.values()]
    jobs: dict[str, Job] = {
        "onnx, graph": chunk.run,
        "onnx, graph, first action": first.run,
        "onnx, plan_from": lambda: runtime.plan_from(states, steps=ACTIONS, seed=0),
        "onnx, plan_from, first action": lambda: runtime.first_action(states, seed=0),
        "pt2, graph": lambda: archive(inputs),
        "torch, plan_from": lambda: policy.plan_from(states, steps=ACTIONS, seed=0),
        "torch, plan_from, first action": lambda: policy.plan_from(states, steps=1, seed=0),
    }
    return jobs, runtime, states


def time_in_turns(
    jobs: dict[str, Job], rounds: int, slow_rounds: int, baseline: str
) -> dict[str, np.ndarray]:
    """Return seconds of both calls, and CPU seconds of the second, (turns, 3); the baseline has few turns."""
    taken: dict[str, list[list[float]]] = {name: [] for name in jobs}

    def turn(name: str, job: Job) -> None:
        moments = [(time.perf_counter(), time.process_time())]
        for _ in range(2):
            job()
            moments.append((time.perf_counter(), time.process_time()))
        (first, _), (second, cpu) = (np.subtract(after, before) for before, after in pairwise(moments))
        taken[name].append([first, second, cpu])

    for job in jobs.values():
        job()
    for now in range(rounds):
        for name, job in jobs.items():
            if name != baseline or (now + 1) * slow_rounds // rounds > now * slow_rounds // rounds:
                turn(name, job)
    return {name: np.array(seconds) for name, seconds in taken.items()}


def build_rows(taken: dict[str, np.ndarray], baseline: str) -> list[dict[str, Any]]:
    """Build one object per contender, in milliseconds."""
    slowest = float(np.median(taken[baseline][:, 1]))
    rows = []
    for name, seconds in taken.items():
        cold, warm, cpu = np.median(seconds, axis=0)
        p99 = np.percentile(seconds[:, 1], 99)
        times = {"median_ms": warm, "p99_ms": p99, "first_call_median_ms": cold, "cpu_median_ms": cpu}
        rounded = {key: round(1e3 * float(value), 4) for key, value in times.items()}
        ratio = round(slowest / float(warm), 1)
        rows.append({"what": name, **rounded, "turns": len(seconds), "baseline_over_this": ratio})
    return rows


def make_pixel_baseline(policy: Policy, observed: list[dict[str, np.ndarray]]) -> Job:
    """Return a DDPM-100 chunk of the image Diffusion Policy with random weights, and its frames."""
    preset = get_task("pusht").presets("diffusion")["pixels"]
    config = RunConfig.from_preset(preset, policy.record.config.demos)
    spec = policy.spec
    encoder = build_encoder(config, spec.cameras, plain_dim=spec.plain_dim, seed=0).eval()
    obs_dim = spec.plain_dim + encoder.code_dim
    size = obs_dim + spec.act_dim
    layout = StateSpec(
        obs_dim, spec.act_dim, (), (-1.0,) * size, (1.0,) * size, (1.0,) * size, codes=encoder.code_dim
    )
    record = replace(policy.record, config=config, layout=layout)
    return make_chunk(Policy(record, build_model(record).eval(), encoder=encoder), observed)


def make_chunk(policy: Policy | RuntimePolicy, observed: list[dict[str, np.ndarray]]) -> Job:
    """Return a job that encodes the frames of a history and plans a chunk."""

    def plan() -> object:
        history = policy.spec.new_history()
        for each in observed[: policy.spec.history]:
            history.add_observation(policy.encode(each))
        return policy.plan_from(history.states(), steps=ACTIONS, seed=0)

    return plan


def observe(policy: Policy, shift: int) -> list[dict[str, np.ndarray]]:
    """Return two observations: the background of each camera, shifted by some pixels."""
    assert isinstance(policy.encoder, KeypointModel)
    spec = policy.spec
    middle = 0.5 * (np.array(spec.low) + np.array(spec.high))[: spec.plain_dim]
    frames = {}
    for camera, network in zip(spec.cameras, policy.encoder.autoencoders(), strict=True):
        rows, columns = (np.arange(side) * policy.encoder.size // side for side in camera.shape[:2])
        frames[camera.name] = np.roll(network.background.numpy()[rows[:, None], columns], shift, axis=1)
    return [{"observation.state": middle, **frames}] * 2


def make_pixel_contenders(path: Path, folder: Path) -> dict[str, Job]:
    policy = Policy.from_pretrained(path)
    export_policy(policy, folder / "policy.onnx", steps=ACTIONS, cases=64)
    runtime = RuntimePolicy.load(folder / "policy.onnx")
    here, shifted = observe(policy, 0), observe(policy, SHIFT)
    history = policy.spec.new_history()
    for each in here:
        history.add_observation(runtime.encode(each))
    states = history.states()
    return {
        "onnx, frames and chunk": make_chunk(runtime, here),
        "onnx, frames and chunk, camera shifted": make_chunk(runtime, shifted),
        "onnx, last frame and chunk": lambda: (
            runtime.encode(here[0]),
            runtime.plan_from(states, steps=ACTIONS, seed=0),
        ),
        "onnx, one observation": lambda: runtime.encode(here[0]),
        "onnx, one observation, camera shifted": lambda: runtime.encode(shifted[0]),
        "onnx, plan_from": lambda: runtime.plan_from(states, steps=ACTIONS, seed=0),
        "torch, frames and chunk": make_chunk(policy, here),
        "torch, one observation": lambda: policy.encode(here[0]),
        "torch, plan_from": lambda: policy.plan_from(states, steps=ACTIONS, seed=0),
        PIXEL_BASELINE: make_pixel_baseline(policy, here),
    }


def measure_memory(runtime: RuntimePolicy, states: np.ndarray, calls: int) -> dict[str, float]:
    """Measure Python's bytes and the process's kilobytes, after a part of the calls and after all."""

    def resident_kb() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1024

    found: dict[str, float] = {"calls": calls}
    for call in range(calls + 1):
        runtime.plan_from(states, steps=ACTIONS, seed=call)
        if call == calls // 10:
            found["resident_kb_after_a_tenth"] = resident_kb()
    found["resident_kb_after_all"] = resident_kb()
    tracemalloc.start()
    for call in range(2 * max(calls // 20, 1)):
        if call == max(calls // 20, 1):
            found["python_bytes_half_way"] = tracemalloc.get_traced_memory()[0]
        runtime.plan_from(states, steps=ACTIONS, seed=call)
    found["python_bytes_after_all"] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--baseline-rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--pixels", type=Path, default=None, help="run of a policy with cameras")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"machine": device_name("cpu")}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        if args.pixels is not None:
            jobs, baseline = make_pixel_contenders(args.pixels, Path(folder)), PIXEL_BASELINE
        else:
            jobs, runtime, states = make_contenders(Path(folder))
            jobs[BASELINE], baseline = make_baseline(), BASELINE
        taken = time_in_turns(jobs, args.rounds, args.baseline_rounds, baseline)
        result["rows"] = rows = build_rows(taken, baseline)
        if args.pixels is None:
            result["memory"] = measure_memory(runtime, states, args.calls)
    print(f"{ACTIONS} actions from one observation, one thread, {result['machine']}; milliseconds\n")
    print("| what | median | p99 | first call | CPU | turns | DDPM-100 takes × |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        times = [f"{row[key]:.3f}" for key in TIMES]
        counts = [str(row["turns"]), f"{row['baseline_over_this']:.0f}"]
        print(f"| {' | '.join([row['what'], *times, *counts])} |")
    if "memory" in result:
        print(f"\nmemory: {result['memory']}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
