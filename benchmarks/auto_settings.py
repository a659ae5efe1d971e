"""Play policies that were trained with the preset `auto`, and vary its choices one at a time.

    python benchmarks/auto_settings.py --demos DIR --out DIR            # auto, on the reported seeds
    python benchmarks/auto_settings.py --demos DIR --out DIR --vary     # its choices, on tuning seeds
    python benchmarks/auto_settings.py --table FILE                     # results, pooled over training seeds

DIR holds adroit_{door,hammer,relocate,pen}_expert.zarr (played by gymnasium-robotics 1.4 with mujoco 3.3) and
pusht.zarr, the public demonstrations; MountainCarContinuous and Pendulum are demonstrated by the scripts
below. Runs train side by side on a GPU if there is one.
"""

import argparse
import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from result_files import read_results

from nsde_policy.data import Episode
from nsde_policy.data.zarr_store.writer import DemoWriter

REPORTED, TUNING = 100_000, 200_000
"""First seeds of the episodes that are reported, and of those that settings are chosen by."""
TASKS = {
    "door": ("adroit_door_expert.zarr", "gymnasium_robotics:AdroitHandDoor-v1"),
    "hammer": ("adroit_hammer_expert.zarr", "gymnasium_robotics:AdroitHandHammer-v1"),
    "relocate": ("adroit_relocate_expert.zarr", "gymnasium_robotics:AdroitHandRelocate-v1"),
    "pen": ("adroit_pen_expert.zarr", "gymnasium_robotics:AdroitHandPen-v1"),
    "mountain car": ("mountain_car.zarr", "MountainCarContinuous-v0"),
    "pendulum": ("pendulum.zarr", "Pendulum-v1"),
    "pusht": ("pusht.zarr", "pusht"),
}
"""Demonstrations and task by name."""
VARIANTS = {
    "auto": [{}, {"diffusion": 0.0}, {"diffusion": 0.5}, {"diffusion": 1.0}, {"chunk": 1}, {"chunk": 8}],
    "other dropout": [{}, {"diffusion": 0.5}],
    "other blur": [{}],
    "other history": [{}],
}
"""What is varied in training, and in sampling and execution afterwards."""


def push_car(obs):
    """Push in the direction of motion."""
    return np.array([1.0 if obs[1] >= 0 else -1.0], np.float32)


def swing_up(obs):
    """Add energy until the pendulum is near the top, then balance it."""
    cosine, sine, speed = obs
    angle, energy = np.arctan2(sine, cosine), 0.5 * speed**2 + 10 * (cosine - 1)
    if abs(angle) < 0.5:
        return np.clip(np.array([-10 * angle - 2 * speed], np.float32), -2, 2)
    return np.array([-2.0 if energy * speed > 0 else 2.0], np.float32)


EXPERTS = {"mountain car": push_car, "pendulum": swing_up}


def demonstrate(path, task, expert, episodes=30):
    """Record a scripted demonstrator and return its mean return."""
    from nsde_policy.tasks import get_task
    from nsde_policy.tasks.gym import find_rate

    found = get_task(task)
    env = found.make_env()
    returns = []
    with DemoWriter(path, rate_hz=find_rate(found, env)) as writer:
        for seed in range(300_000, 300_000 + episodes):
            obs, _ = env.reset(seed=seed)
            seen, acted, total, done = [], [], 0.0, False
            while not done:
                action = expert(obs)
                seen.append(obs)
                acted.append(action)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
            writer.append(Episode(np.array(seen, np.float32), np.array(acted, np.float32)))
    return float(np.mean(returns))


def choose_config(task, store, variant):
    """Return the settings of auto, or with one of its choices changed."""
    from nsde_policy.data import load_demonstrations
    from nsde_policy.data.statistics import measure_statistics

    demos = load_demonstrations(store, angles=task.demos.angles or None)
    statistics = measure_statistics(replace(demos, rate_hz=demos.rate_hz or task.rate_hz))
    config = task.preset("auto", statistics=statistics)
    model, network = config.model, config.model.network
    if variant == "other dropout":
        model = replace(model, network=replace(network, dropout=0.0 if network.dropout else 0.1))
    if variant == "other blur":
        model = replace(model, noise=0.7 if model.noise < 0.5 else 0.3)
    if variant == "other history":
        model = replace(model, history=1 if model.history > 1 else 2)
    return replace(config, model=model, train=replace(config.train, log_every=500))


def run_job(job):
    """Train one policy and play it in every way of its variant."""
    name, variant, seed, first, args = job
    import torch

    from nsde_policy.eval.pool import RolloutPool
    from nsde_policy.eval.rollout import RolloutConfig
    from nsde_policy.eval.statistics import mean, proportion
    from nsde_policy.tasks import get_task
    from nsde_policy.training.progress import train

    torch.set_num_threads(1)
    store, task = args.demos / TASKS[name][0], get_task(TASKS[name][1])
    config = choose_config(task, store, variant)
    path = args.out / "runs" / f"{name}-{variant}-{seed}".replace(" ", "_")
    started = time.monotonic()
    train(store, config, path, task=task.name, seed=seed, device="auto")
    row = {"task": name, "variant": variant, "train_seed": seed, "train_s": time.monotonic() - started}
    rows = []
    for changes in VARIANTS[variant] if args.vary else [{}]:
        sampling = replace(config.model.sampling, **{k: v for k, v in changes.items() if k != "chunk"})
        chunk = changes.get("chunk", config.chunk)
        pool = RolloutPool(path, RolloutConfig(task, {}, chunk, sampling))
        played = list(pool.evaluate(range(first, first + args.episodes)))
        known = [r.success for r in played if r.success is not None]
        rows.append(
            {
                **row,
                "steps": config.train.steps,
                "chunk": chunk,
                **sampling.to_dict(),
                "success": vars(proportion(sum(known), len(known))) if known else None,
                "score": vars(mean([r.score for r in played])),
                "scores": [r.score for r in played],
                "successes": known,
            }
        )
    return rows


def print_table(results):
    """Print scores and successes of `auto`, pooled over training seeds."""
    from nsde_policy.eval.statistics import mean, proportion

    rows = [row for row in results if row["variant"] == "auto"]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        won = [success for row in own for success in row["successes"]]
        success = f"success {proportion(sum(won), len(won))}, " if won else ""
        print(f"{task}: {success}score {mean([score for row in own for score in row['scores']])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demos", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--vary", action="store_true")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--train-seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    args = parser.parse_args()
    if args.table:
        print_table(read_results(parser, args.table, "task", "variant", "successes", "scores"))
        return
    if not (args.demos and args.out):
        parser.error("give --demos and --out, or --table")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, expert in EXPERTS.items():
        store = args.demos / TASKS[name][0]
        if name in args.tasks and not store.exists():
            print(
                f"{name}: demonstrator's return {demonstrate(store, TASKS[name][1], expert):.1f}", flush=True
            )
    variants = list(VARIANTS) if args.vary else ["auto"]
    jobs = [
        (task, variant, seed, TUNING if args.vary else REPORTED, args)
        for seed in range(args.train_seeds)
        for variant in variants
        for task in reversed(args.tasks)
    ]
    started, rows = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=4) as pool:
        pending = pool.imap_unordered(run_job, jobs)
        for _ in jobs:
            try:
                rows += pending.next(timeout=max(args.limit - (time.monotonic() - started), 0.1))
            except multiprocessing.TimeoutError:
                print("time is up", flush=True)
                break
            (args.out / "auto_settings.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in sorted(rows, key=lambda r: (r["task"], r["variant"], r["chunk"], r["diffusion"])):
        score, success = row["score"], row["success"]
        won = (
            f"success {success['value']:.2f} [{success['low']:.2f}, {success['high']:.2f}] "
            if success
            else ""
        )
        print(
            f"{row['task']:13}{row['variant']:14} seed {row['train_seed']} diffusion {row['diffusion']:3} "
            f"alpha {row['alpha']:3} chunk {row['chunk']:2} {won}score {score['value']:.3f} "
            f"[{score['low']:.3f}, {score['high']:.3f}] ({row['steps']} steps, {row['train_s']:.0f} s)"
        )


if __name__ == "__main__":
    main()
