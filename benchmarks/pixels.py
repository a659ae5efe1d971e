"""Train Push-T policies on camera frames and score them: the numbers in docs/pixels.md.

    python benchmarks/pixels.py --demos pusht_cchi_v7_replay.zarr --out out/pixels

Trains variants × seeds on one GPU, `--parallel` at a time, each in a process of its own; final averaged
weights, nothing selected. Methods on keypoints take the encoder of `pixels` with the same seed, if it was
trained before in `--out`. A training that reaches `--limit-s` is saved; the same call again continues it.
Training times count only for runs that were alone (`--parallel 1`). All CPU cores play the episodes; for
"image diffusion", the GPU plans for all episodes at once. Writes `results.json` after every row and prints a
Markdown table.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from result_files import read_results

from nsde_policy.config import Sampling
from nsde_policy.data import LazyFrames
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.eval.camera import CameraCondition, CameraDisturbances
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.shared_planner import SharedPlannerPool
from nsde_policy.files import replace_file
from nsde_policy.inference.calibration import CALIBRATION_FILE
from nsde_policy.methods.diffusion.model import DiffusionSampling
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.checkpoints import TrainingProgress

TASK = get_task("pusht").with_observations("pixels")
PIXELS = TASK.preset("pixels")


def _encoder(base: RunConfig, *, steps: int = 0, **changes: Any) -> RunConfig:
    """Return settings with another encoder."""
    assert isinstance(base.encoder, KeypointConfig)
    train = replace(base.encoder.train, steps=steps or base.encoder.train.steps)
    return replace(base, encoder=replace(base.encoder, train=train, **changes))


VARIANTS: dict[str, RunConfig] = {
    "pixels": PIXELS,
    "no anchors": _encoder(PIXELS, anchors=0),
    "no anchors, double width": _encoder(PIXELS, anchors=0, width=32),
    "double width": _encoder(PIXELS, width=32),
    "4860 encoder steps": _encoder(PIXELS, steps=4860),
    "no known points": _encoder(PIXELS, known_points=0),
    "8 keypoints": _encoder(PIXELS, keypoints=8),
    "50k steps": PIXELS.replace_parts(train={"steps": 50_000}),
    "hard images": PIXELS,
    "pixels-fast": TASK.preset("pixels-fast"),
    "disturbed frames": _encoder(PIXELS, occlusion=0.15, brightness=0.15),
    "image diffusion": TASK.preset("pixels", "diffusion"),
    "regression": TASK.preset("pixels", "regression"),
    "regression, 16 actions": TASK.preset("pixels", "regression").replace_parts(model={"horizon": 16}),
    "flow": TASK.preset("pixels", "flow"),
    "flow, 9 actions": TASK.preset("pixels", "flow").replace_parts(model={"horizon": 9}),
}
SAMPLINGS: dict[str, dict[str, Sampling]] = {
    "image diffusion": {"DDPM-100": DiffusionSampling(), "DDIM-10": DiffusionSampling("ddim", 10)}
}
"""Ways to sample a variant, which is then planned on the GPU; others are played as trained, on all cores."""
HARD = CameraCondition(texture=0.4, brightness=0.1, distractor=0.05)
TRAINED_ON: dict[str, CameraCondition] = {"hard images": HARD}
"""Disturbances of the frames that a variant is trained on; none for the others."""
CONDITIONS: dict[str, CameraCondition] = {
    "none": CameraCondition(),
    "shift 1 px": CameraCondition(shift=1),
    "shift 2 px": CameraCondition(shift=2),
    "shift 4 px": CameraCondition(shift=4),
    "brightness ± 10 %": CameraCondition(brightness=0.1),
    "noise 0.05": CameraCondition(noise=0.05),
    "occlusion 10 %": CameraCondition(occlusion=0.1),
    "hard images": HARD,
}


class DisturbedFrames(LazyFrames):
    """Frames of a store with the disturbances of a camera, one draw per episode; read them in order."""

    def __init__(self, frames: LazyFrames, episode_ends: np.ndarray, condition: CameraCondition) -> None:
        self._frames, self._ends = frames, episode_ends
        self.shape, self.dtype = frames.shape, frames.dtype
        self._cameras = [CameraDisturbances(condition, seed) for seed in range(len(episode_ends))]

    def __getitem__(self, index: int | slice) -> np.ndarray:
        start, stop, _ = (index if isinstance(index, slice) else slice(index, index + 1)).indices(len(self))
        episodes = np.searchsorted(self._ends, np.arange(start, stop), side="right")
        found = self._frames[start:stop]
        changed = [self._cameras[i].change({"": frame})[""] for i, frame in zip(episodes, found, strict=True)]
        return np.stack(changed) if isinstance(index, slice) else changed[0]


def train_one(
    variant: str,
    seed: int,
    demos: Path,
    out: Path,
    device: str,
    *,
    steps: int,
    diffusion_steps: int,
    limit_s: float,
) -> tuple[Path, bool]:
    """Train one variant, unless it is finished already; return its run, and whether it is finished."""
    from nsde_policy.training.dataset import load_training_demos
    from nsde_policy.training.encoder import open_training_images
    from nsde_policy.training.run import train_run

    config = VARIANTS[variant]
    if variant in SAMPLINGS and (diffusion_steps or steps):
        config = set_steps(config, diffusion_steps or steps)
    elif steps:
        config = _encoder(config.replace_parts(train={"steps": steps}), steps=steps)
    path = out / f"{variant.replace(' ', '_').replace(',', '')}-{seed}"
    if (path / CALIBRATION_FILE).exists():
        return path, True
    copy_encoder(out / f"pixels-{seed}", path, config)

    def stop(progress: TrainingProgress) -> None:
        if progress.step < progress.steps and progress.seconds > limit_s:
            raise KeyboardInterrupt

    given = load_training_demos(config.demos, demos, task="pusht")
    images = open_training_images(config.demos, demos)
    if variant in TRAINED_ON:
        images = {
            name: DisturbedFrames(frames, given.episode_ends, TRAINED_ON[variant])
            for name, frames in images.items()
        }
    try:
        train_run(
            given,
            config,
            path,
            task="pusht",
            env_kwargs=dict(TASK.observations["pixels"].env_kwargs),
            seed=seed,
            device=device,
            resume=path.exists(),
            save_every_s=1e9,
            images=images,
            monitor=stop,
        )
    except KeyboardInterrupt:
        return path, False
    return path, True


def set_steps(config: RunConfig, steps: int) -> RunConfig:
    """Return settings with another number of steps and the same number of warm-up steps."""
    warm = config.train.warmup * config.train.steps
    return config.replace_parts(train={"steps": steps, "warmup": min(warm / steps, 1.0)})


def copy_encoder(source: Path, path: Path, config: RunConfig) -> None:
    """Copy a trained encoder of the same settings into a new run, which then does not train it again."""
    trained = source / CALIBRATION_FILE
    if path.exists() or path == source or not trained.exists():
        return
    if RunDirectory(source).read_record().config.encoder == config.encoder:
        shutil.copytree(
            source / ENCODER_FOLDER, path / ENCODER_FOLDER, ignore=shutil.ignore_patterns("request.json")
        )


def read_seconds(path: Path) -> tuple[float, float]:
    """Return the duration of both stages of a training, without loading and encoding."""
    encoder, policy = (add_seconds(RunDirectory(p)) for p in (path / ENCODER_FOLDER, path))
    return encoder, policy


def add_seconds(run: RunDirectory) -> float:
    """Add up the durations of all calls that trained a run."""
    seconds = [record["seconds"] for record in run.read_metrics()] + [0.0]
    return sum(one for one, next_one in itertools.pairwise(seconds) if next_one < one)


def play(
    path: Path, config: RolloutConfig, seeds: range, *, workers: int, device: str | None
) -> dict[str, Any]:
    """Play episodes, planned on a device or by the workers; return results in the order of the starts."""
    pool = (
        RolloutPool(path, config, workers=workers)
        if device is None
        else SharedPlannerPool(path, config, workers=workers, device=device)
    )
    results = list(pool.evaluate(seeds))
    return {
        "max_reward": [round(result.score, 6) for result in results],
        "success": [int(bool(result.success)) for result in results],
        "planning_ms": round(1e3 * sum(r.planning_s for r in results) / sum(r.plans for r in results), 2),
    }


def list_settings(
    variant: str, conditions: list[str], rule: str
) -> list[tuple[dict[str, str], RolloutConfig]]:
    """Return the ways in which a variant is played, with the names of variant and condition in the table."""
    samplings = SAMPLINGS.get(variant, {"": None})
    return [
        (
            {"variant": f"{variant}, {name}" if name else variant, "condition": condition},
            RolloutConfig(env_kwargs={"reset_rule": rule}, camera=CONDITIONS[condition], sampling=sampling),
        )
        for name, sampling in samplings.items()
        for condition in conditions
    ]


def format_table(report: dict[str, Any]) -> str:
    """Format a Markdown table of variant, condition, score and training time."""
    from nsde_policy.eval.statistics import mean, proportion

    first, last = report["starts"]
    lines = [
        f"{report['reset_rule']} starts {first} to {last}, trained on {report['trained_on']}",
        "",
        "| variant | camera | n | mean max reward | strict success | by seed | encoder + policy, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = report["rows"]
    for variant, condition in dict.fromkeys((row["variant"], row["condition"]) for row in rows):
        runs = [row for row in rows if (row["variant"], row["condition"]) == (variant, condition)]
        rewards = [reward for run in runs for reward in run["max_reward"]]
        won = [success for run in runs for success in run["success"]]
        shares = ", ".join(f"{sum(run['success']) / len(run['success']):.3f}" for run in runs)
        times = ", ".join("{:.1f} + {:.1f}".format(*run["seconds"]) for run in runs if run["seconds"])
        lines.append(
            f"| {variant} | {condition} | {len(won)} | {mean(rewards)} | {proportion(sum(won), len(won))} "
            f"| {shares} | {times or '–'} |"
        )
    return "\n".join(lines)


def format_difference(report: dict[str, Any], state_file: Path) -> str:
    """Compare strict success with the default policy from the state, start by start, over all seeds."""
    from nsde_policy.eval.statistics import mean

    if not state_file.is_file():
        return ""
    state = json.loads(state_file.read_text())
    runs = [
        row["success"] for row in report["rows"] if (row["variant"], row["condition"]) == ("pixels", "none")
    ]
    known = [each["success"] for each in state["outcomes"] if each["variant"] == "default"]
    if state["starts"] != report["starts"] or state["reset_rule"] != report["reset_rule"] or not runs:
        return ""
    pixels, default = np.mean(runs, axis=0), np.mean(known, axis=0)
    return (
        f"\nstrict success of pixels {pixels.mean():.3f}, of the state {default.mean():.3f}; "
        f"paired difference {mean((pixels - default).tolist())}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path)
    parser.add_argument("--table", type=Path, help="only print the table of this results.json")
    parser.add_argument("--out", type=Path, default=Path("out/pixels"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--variants", nargs="*", default=["pixels"], choices=[*VARIANTS])
    parser.add_argument("--conditions", nargs="*", default=["none"], choices=[*CONDITIONS])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1, help="runs trained at once")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--reset-rule", default="benchmark")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 1, 1))
    parser.add_argument("--steps", type=int, default=0, help="steps of both stages, for a try")
    parser.add_argument("--diffusion-steps", type=int, default=0, help="steps of image diffusion")
    parser.add_argument("--limit-s", type=float, default=1e9, help="seconds of training per call and run")
    args = parser.parse_args()
    if args.table:
        report = read_results(parser, args.table, "variant", "condition")
        print(format_table(report) + format_difference(report, args.table.with_name("pusht_runs.json")))
        return
    if args.demos is None:
        parser.error("--demos is needed to train")
    seeds = range(args.seed_start, args.seed_start + args.episodes)
    report: dict[str, Any] = {
        "starts": [seeds.start, seeds.stop - 1], "reset_rule": args.reset_rule, "trained_on": "", "rows": []
    }  # fmt: skip
    order = [
        name["variant"]
        for variant in args.variants
        for name, _ in list_settings(variant, args.conditions, args.reset_rule)
    ]
    with ProcessPoolExecutor(args.parallel, multiprocessing.get_context("spawn")) as trainers:
        jobs = {
            trainers.submit(
                train_one,
                variant,
                seed,
                args.demos,
                args.out,
                args.device,
                steps=args.steps,
                diffusion_steps=args.diffusion_steps,
                limit_s=args.limit_s,
            ): (variant, seed)
            for variant in args.variants
            for seed in args.seeds
        }
        for job in as_completed(jobs):
            (path, finished), (variant, seed) = job.result(), jobs[job]
            seconds = read_seconds(path)
            print(f"{variant} {seed}: encoder {seconds[0]:.1f} s, policy {seconds[1]:.1f} s", flush=True)
            if not finished:
                print(f"{RunDirectory(path).describe_unfinished()}, or with the same call", flush=True)
                continue
            for name, config in list_settings(variant, args.conditions, args.reset_rule):
                started = time.perf_counter()
                device = args.device if variant in SAMPLINGS else None
                row = play(path, config, seeds, workers=args.workers, device=device)
                spent = time.perf_counter() - started
                print(
                    f"{name['variant']} {seed}, {name['condition']}: "
                    f"{sum(row['max_reward']) / len(seeds):.3f} {sum(row['success']) / len(seeds):.3f} "
                    f"in {spent:.0f} s, plan {row['planning_ms']} ms",
                    flush=True,
                )
                timed = seconds if args.parallel == 1 else None
                steps = RunDirectory(path).read_record().config.train.steps
                report["rows"].append({**name, "seed": seed, "steps": steps, "seconds": timed, **row})
            report["trained_on"] = find_device(args.device)
            report["rows"].sort(key=lambda row: (order.index(row["variant"]), row["seed"]))
            replace_file(args.out / "results.json", (json.dumps(report) + "\n").encode())
    print(format_table(report))


def find_device(device: str) -> str:
    """Return the name of the device and the version of torch."""
    import torch

    from nsde_policy.eval.latency import device_name

    return f"{device_name(device)}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
