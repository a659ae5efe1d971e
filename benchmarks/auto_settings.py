"""Vary the settings of the Neural SDE on tasks that nobody tuned it for, to choose the rules of `auto`.

    python benchmarks/auto_settings.py --demos DIR --out DIR [--processes 16] [--steps 20000] [--limit 540]

DIR holds adroit_{door,hammer,relocate,pen}_expert.zarr; gymnasium-robotics 1.4 with mujoco 3.3 plays them.
MountainCarContinuous and Pendulum are demonstrated by the scripts below. Scores are on seeds 200000 and up.
"""

import argparse
import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsde_policy.data import Episode
from nsde_policy.data.zarr_store.writer import DemoWriter

SEED_START = 200_000
VARIANTS = {
    "base": {},
    "dropout 0": {"dropout": 0.0},
    "blur 0.3": {"noise": 0.3},
    "history 1": {"history": 1},
    "width 512": {"width": 512},
}
SAMPLINGS = {
    "base": [(0.0, 1.0, 8), (0.5, 1.0, 8), (1.0, 1.0, 8), (0.0, 1.0, 1), (0.0, 1.0, 3)],
}
"""Diffusion, alpha and chunk that a variant is played with."""


TASKS = {
    "door": ("adroit_door_expert.zarr", "gymnasium_robotics:AdroitHandDoor-v1"),
    "hammer": ("adroit_hammer_expert.zarr", "gymnasium_robotics:AdroitHandHammer-v1"),
    "relocate": ("adroit_relocate_expert.zarr", "gymnasium_robotics:AdroitHandRelocate-v1"),
    "pen": ("adroit_pen_expert.zarr", "gymnasium_robotics:AdroitHandPen-v1"),
    "mountain car": ("mountain_car.zarr", "MountainCarContinuous-v0"),
    "pendulum": ("pendulum.zarr", "Pendulum-v1"),
}


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


def demonstrate(path, env_id, expert, episodes=30):
    import gymnasium as gym

    env = gym.make(env_id)
    returns = []
    with DemoWriter(path) as writer:
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


def run_job(job):
    task, variant, demos, out, steps, episodes = job
    import torch

    from nsde_policy.eval.pool import RolloutPool
    from nsde_policy.eval.rollout import RolloutConfig
    from nsde_policy.tasks import get_task
    from nsde_policy.training.progress import train

    torch.set_num_threads(1)
    store, env = TASKS[task]
    changes = dict(VARIANTS[variant])
    config = get_task("none").preset("fast")
    model = config.model
    network = replace(
        model.network, **{key: changes.pop(key) for key in ("width", "dropout", "depth") if key in changes}
    )
    steps = steps * changes.pop("steps", 1)
    config = replace(
        config,
        model=replace(model, network=network, **changes),
        train=replace(config.train, steps=steps, log_every=500),
        demos=replace(config.demos, final_action_weight=1.0),
    )
    path = out / f"{task}-{variant}".replace(" ", "_")
    started = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train(demos / store, config, path, task="none", seed=0, device=device)
    trained = time.monotonic() - started
    rows = []
    for diffusion, alpha, chunk in SAMPLINGS.get(variant, [(0.0, 1.0, 8)]):
        sampling = replace(config.model.sampling, diffusion=diffusion, alpha=alpha)
        pool = RolloutPool(path, RolloutConfig(get_task(env), {}, chunk, sampling))
        results = list(pool.evaluate(range(SEED_START, SEED_START + episodes)))
        rows.append(
            {
                "task": task,
                "variant": variant,
                "diffusion": diffusion,
                "alpha": alpha,
                "chunk": chunk,
                "success": float(np.mean([bool(r.success) for r in results])),
                "return": float(np.mean([r.score for r in results])),
                "train_s": round(trained, 1),
                "steps": steps,
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--limit", type=float, default=540)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, expert in (("mountain car", push_car), ("pendulum", swing_up)):
        store, env = TASKS[name]
        if not (args.demos / store).exists():
            print(name, "demonstrator's return", demonstrate(args.demos / store, env, expert), flush=True)
    jobs = [
        (task, variant, args.demos, args.out / "runs", args.steps, args.episodes)
        for variant in VARIANTS
        for task in args.tasks
    ]
    started, rows = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        pending = pool.imap_unordered(run_job, jobs)
        for _ in jobs:
            try:
                rows += pending.next(timeout=max(args.limit - (time.monotonic() - started), 0.1))
            except multiprocessing.TimeoutError:
                print("time is up", flush=True)
                break
            except Exception as error:
                print("failed:", repr(error)[:300], flush=True)
                continue
            (args.out / "auto_settings.json").write_text(json.dumps(rows, indent=1))
        pool.terminate()
    for row in sorted(rows, key=lambda r: (r["task"], r["variant"], r["chunk"], r["diffusion"])):
        print(
            f"{row['task']:13}{row['variant']:11} diffusion {row['diffusion']:3} alpha {row['alpha']:3} "
            f"chunk {row['chunk']:2} "
            f"success {row['success']:.2f} return {row['return']:9.1f} ({row['train_s']:.0f} s)"
        )


if __name__ == "__main__":
    main()
