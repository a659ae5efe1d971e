"""Train video models on simulated collisions and score them: the numbers in docs/video.md.

    python benchmarks/video.py rates settings --tuning --out out/tuning
    python benchmarks/video.py methods ablation scaling --out out/video
    python benchmarks/video.py ablation --preset fast --device cpu --steps 600 --out out/fast
    python benchmarks/video.py --table benchmarks/results/video.json

`rates` trains the Neural SDE, Flow Matching and PFI with three learning rates each for a short time, to
choose one. `settings` tries noise on the context and second phases of the last two. `methods` compares all
three after full training, at 1 to 20 network calls per frame and over 12 and 36 frames. `ablation` changes
one setting of the Neural SDE at a time, in a short first phase. `scaling` trains networks of six sizes and
fits a power law. Each experiment trains its runs in processes of their own, `--parallel` at a time; training
times count only for runs that were alone. Settings are chosen on `--tuning` videos, scores are reported on
the test videos. Final averaged weights, nothing is selected. A run whose scores are in `--out` is not
trained again. Writes `video.json`.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from result_files import read_results
from video_results import (
    BY_FRAME,
    DISTANCE,
    DRAWN_BY_FRAME,
    FIGURES,
    LONG,
    Runs,
    draw_figures,
    format_results,
)
from video_variants import EXPERIMENTS, Variant

from nsde_policy.assets import SHIPPED_FEATURES
from nsde_policy.files import replace_file
from nsde_policy.video.collisions import COLLISION_SEEDS

REDUCED_DELTA = 1e-3
"""δ of the paper's reduced loss."""


@dataclass(frozen=True)
class Job:
    """One training and its scores."""

    experiment: str
    variant: Variant
    seed: int
    folder: Path
    device: str
    videos: int
    scored: int
    """Number of test videos that are predicted and scored."""
    tuning: bool
    compiled: bool
    features: Path
    """Network of the physics distance."""

    @property
    def path(self) -> Path:
        name = self.variant.name.replace(" ", "_").replace(",", "")
        return self.folder / self.experiment / f"{name}-{self.seed}"

    @property
    def scores(self) -> Path:
        """File with everything about the run that is kept."""
        return self.path.with_name(f"{self.path.name}.npz")


def run_job(job: Job) -> str:
    """Train one model and score it; returns a line to print."""
    import torch

    from nsde_policy.eval.latency import device_name
    from nsde_policy.video.run import load_video_model, train_video
    from nsde_policy.video.sources import open_training_videos

    torch.set_float32_matmul_precision("high")
    started = time.perf_counter()
    config = job.variant.config
    videos = open_training_videos("collisions", config, count=job.videos, device=job.device)
    train_video(
        videos,
        config,
        job.path,
        seed=job.seed,
        device=job.device,
        resume=job.path.exists(),
        save_every_s=1e9,
        compile_network=job.compiled,
    )
    seconds = time.perf_counter() - started
    model = load_video_model(job.path, device=job.device)
    parts: dict[str, Any] = {}
    rows = _score_trials(job, parts)
    note = {
        "experiment": job.experiment,
        "variant": job.variant.name,
        "seed": job.seed,
        "seconds": seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device_name(job.device),
        "reduced_loss": _measure_reduced_loss(model, job) if job.experiment == "scaling" else None,
        "latency_ms": _time_calls(model, config.size, job.device) if job.experiment == "methods" else None,
        "trials": rows,
    }
    np.savez_compressed(job.scores, note=np.array(json.dumps(note)), **parts)
    return (
        f"{job.experiment}, {job.variant.name}, seed {job.seed}: trained in {seconds:.0f} s, scored in "
        + (f"{time.perf_counter() - started - seconds:.0f} s")
    )


def _score_trials(job: Job, parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Score all trials; sums per video go into `parts`, means per frame are returned."""
    from nsde_policy.eval.video.evaluate import VideosToScore, evaluate_video, make_predictor
    from nsde_policy.eval.video.features import FeatureConfig, load_features
    from nsde_policy.video.collisions import CollisionsConfig, make_collisions
    from nsde_policy.video.run import load_video_model

    context, rows = job.variant.config.model.context, []
    seed = COLLISION_SEEDS["tuning" if job.tuning else "test"]
    for steps in sorted({trial.steps for trial in job.variant.trials}):
        frames = CollisionsConfig(size=job.variant.config.size, frames=context + steps)
        videos = VideosToScore.from_collisions(
            make_collisions(job.scored, frames, seed=seed, device=job.device)
        )
        predictors = {}
        for trial in (each for each in job.variant.trials if each.steps == steps):
            model = load_video_model(job.path, device=job.device, first_phase=trial.first_phase)
            predictors[trial.label] = make_predictor(model, seed=job.seed, calls=trial.calls, **trial.options)
        networks = {DISTANCE: load_features(FeatureConfig(job.features), device=job.device)}
        scores = evaluate_video(
            predictors, videos, steps=steps, batch_size=256, device=job.device, networks=networks
        )
        for label, row in scores.rows.items():
            if label not in predictors:
                label = f"{label}, {steps} frames"
            frames_of = {name: row.sums[name].compute().round(4).tolist() for name in FIGURES}
            distance = row.distances[DISTANCE].value
            rows.append({"label": label, "per_frame": frames_of, "distance": distance})
            for name in FIGURES:
                pooled = row.sums[name].pool(1)
                parts[f"{label}/{name}"] = np.stack([pooled.total, pooled.count]).astype(np.float32)
            for name in DRAWN_BY_FRAME if steps == LONG else ():
                whole = row.sums[name]
                parts[f"{label}/{name}/{BY_FRAME}"] = np.stack([whole.total, whole.count]).astype(np.float32)
    return rows


def _measure_reduced_loss(model: Any, job: Job) -> float:
    """Return the paper's reduced loss on states of the held-out videos without noise."""
    import torch

    from nsde_policy.video.base import stack_state
    from nsde_policy.video.collisions import CollisionsConfig, make_collisions
    from nsde_policy.video.spaces import to_unit

    seed = COLLISION_SEEDS["tuning" if job.tuning else "test"]
    context = job.variant.config.model.context
    config = CollisionsConfig(size=job.variant.config.size, frames=context + 1)
    made = make_collisions(2048, config, seed=seed, device=job.device)
    total = 0.0
    for frames in torch.split(made.frames, 256):
        unit = to_unit(frames)
        state, empty = stack_state(unit[:, :context]), unit.new_zeros(len(unit), 0)
        with torch.no_grad():
            predicted = model.predict(
                state, empty, calls=1, generator=torch.Generator(job.device), alpha=0.0, diffusion_scale=0.0
            )
        error = (predicted - unit[:, context]).double().square()
        total += float((error / REDUCED_DELTA + 1).log().mean()) * len(frames)
    return total / len(made.frames)


def _time_calls(model: Any, size: int, device: str) -> dict[str, float]:
    """Return milliseconds per network call at batch 1, on the device and on one CPU thread (medians)."""
    import torch

    from nsde_policy.inference.torch_threads import use_threads

    found = {}
    for name in dict.fromkeys((device, "cpu")):
        model = model.to(name)
        frames = torch.zeros(1, model.config.context, size, size, 3, dtype=torch.uint8, device=name)
        empty, generator = torch.zeros(1, 1, 0, device=name), torch.Generator(name)
        times = []
        with use_threads(1):
            for _ in range(25):
                if name.startswith("cuda"):
                    torch.cuda.synchronize()
                started = time.perf_counter()
                model.generate(frames, empty, steps=1, calls=2, generator=generator)
                if name.startswith("cuda"):
                    torch.cuda.synchronize()
                times.append((time.perf_counter() - started) / 2)
        found[name] = 1e3 * float(np.median(times[5:]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", help=", ".join(EXPERIMENTS))
    parser.add_argument("--out", type=Path, default=Path("out/video"))
    parser.add_argument("--table", type=Path, help="only print the tables of this video.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--preset", choices=("default", "fast"), default="default", help="settings to start from"
    )
    parser.add_argument("--variants", nargs="*", help="only these variants")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these seeds")
    parser.add_argument("--parallel", type=int, default=1, help="runs trained at once")
    parser.add_argument("--videos", type=int, default=16_384, help="training videos")
    parser.add_argument("--scored", type=int, default=512, help="videos to score")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="training steps of the first phase; the second gets fewer likewise",
    )
    parser.add_argument("--tuning", action="store_true", help="score on videos for choosing settings")
    parser.add_argument("--compile", action="store_true", help="compile networks: faster for several runs")
    parser.add_argument(
        "--features",
        type=Path,
        default=Path(SHIPPED_FEATURES),
        help="network of the physics distance; default: that of the package",
    )
    parser.add_argument("--figures", type=Path, help="folder for figures of everything in --out")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no run after this many seconds")
    args = parser.parse_args()
    if args.table:
        print(format_results(read_results(parser, args.table, "trial", "per_frame")))
        return
    if unknown := set(args.experiments) - {*EXPERIMENTS}:
        parser.error(f"unknown experiments {sorted(unknown)}, choose from {', '.join(EXPERIMENTS)}")
    names = [variant.name for name in args.experiments for variant in EXPERIMENTS[name](args.preset)]
    if unknown := set(args.variants or ()) - {*names}:
        parser.error(f"unknown variants {sorted(unknown)}, choose from {names}")
    jobs = [
        Job(
            experiment,
            _shorten(variant, args.steps),
            seed,
            args.out,
            args.device,
            args.videos,
            args.scored,
            args.tuning,
            args.compile,
            args.features,
        )
        for experiment in args.experiments
        for variant in EXPERIMENTS[experiment](args.preset)
        if not args.variants or variant.name in args.variants
        for seed in (args.seeds if args.seeds is not None else range(variant.seeds))
    ]
    jobs.sort(key=lambda job: job.seed)
    run_jobs([job for job in jobs if not job.scores.exists()], args.parallel, args.limit_s)
    results = Runs(args.out).to_dict()
    replace_file(args.out / "video.json", json.dumps(results, indent=1).encode())
    print(format_results(results))
    if args.figures:
        draw_figures(Runs(args.out), args.figures)


def _shorten(variant: Variant, steps: int) -> Variant:
    """Return a variant with fewer steps of the first phase, and of the second in proportion."""
    if not steps:
        return variant
    config, unroll = variant.config, variant.config.unroll
    second = max(1, round(unroll.train.steps * steps / config.train.steps))
    short = replace(unroll, train=replace(unroll.train, steps=second))
    return replace(variant, config=replace(config, train=replace(config.train, steps=steps), unroll=short))


def run_jobs(jobs: Sequence[Job], parallel: int, limit_s: float) -> None:
    """Run jobs in processes; those that have not begun at the limit are left out."""
    started, waiting = time.perf_counter(), list(jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=context, max_tasks_per_child=1) as processes:
        running = {processes.submit(run_job, waiting.pop(0)) for _ in range(min(parallel, len(waiting)))}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            print(done.result(), flush=True)
            if waiting and time.perf_counter() - started < limit_s:
                running.add(processes.submit(run_job, waiting.pop(0)))
    for job in waiting:
        print(f"left out: {job.variant.name}, seed {job.seed}", flush=True)


if __name__ == "__main__":
    main()
