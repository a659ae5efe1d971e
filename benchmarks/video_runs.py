"""Train video models on simulated collisions and score their predictions: see benchmarks/suite.py.

Each run trains in its own process, `--parallel-cameras` at a time; training times count only for runs that
were alone. Final averaged weights, nothing is selected. A run whose scores exist is not trained again.

`trials` of an experiment are ways to predict: network calls per frame, stage of training, and options of
sampling.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment import SMOKE, change_config, make_name
from video_results import collect_results

from nsde_policy.eval.machine import device_name
from nsde_policy.files import replace_file
from nsde_video.collisions import CollisionsConfig, make_collisions
from nsde_video.frame_scores import FIGURES, make_predictor, score_predictors
from nsde_video.next_frame import stack_state, to_unit
from nsde_video.settings import VideoConfig
from nsde_video.video_run import load_video_model, train_video
from nsde_video.videos import Videos

TRAINING_VIDEOS, TEST_VIDEOS = 0, 1_000_000
"""Seeds of the videos; settings were chosen on other ones."""
FRAMES = 12
"""Predicted frames."""
REDUCED_DELTA = 1e-3
"""δ of the paper's reduced loss."""
SMOKE_VIDEOS = 4


@dataclass(frozen=True)
class Trial:
    """One way to predict with a trained model."""

    calls: int = 1
    """Network calls per frame, one for each substep."""
    first_stage: bool = False
    """Use the weights before the second stage of training."""
    options: dict[str, float] = field(default_factory=dict)
    """Further options of sampling."""

    @property
    def label(self) -> str:
        """Name of the prediction in results."""
        options = "".join(f", {name} {value:g}" for name, value in self.options.items())
        stage = "first phase, " if self.first_stage else ""
        return f"{stage}{self.calls} calls{options}"


@dataclass(frozen=True)
class Job:
    """One training and its scores."""

    variant: str
    config: VideoConfig
    trials: tuple[Trial, ...]
    seed: int
    folder: Path
    device: str
    videos: int
    scored: int
    """Number of videos that are predicted and scored."""
    has_reduced_loss: bool
    """Whether to measure the reduced loss."""
    alone: bool

    @property
    def path(self) -> Path:
        """Run directory."""
        return self.folder / "runs" / f"{make_name(self.variant)}-{self.seed}"

    @property
    def scores(self) -> Path:
        """File of the scores and measurements of the run."""
        return self.folder / "scores" / f"{self.path.name}.npz"


def list_jobs(values: dict[str, Any], args: argparse.Namespace) -> list[Job]:
    """List the trainings of an experiment, first seeds first."""
    smoke, jobs = args.smoke, []
    for name, training in values["trainings"].items():
        config = VideoConfig.from_preset("default", training["method"])
        config = change_config(change_config(config, values.get("change", {})), training.get("change", {}))
        trials = [
            Trial(calls, trial.get("first_stage", False), trial.get("options", {}))
            for trial in values.get("trials", ())
            if any(fnmatch(name, pattern) for pattern in trial.get("trainings", ["*"]))
            for calls in trial.get("calls", [1])
        ]
        seeds = args.train_seeds or range(1 if smoke else training.get("seeds", 1))
        for seed in seeds if any(fnmatch(name, pattern) for pattern in args.rows) else ():
            jobs.append(
                Job(
                    name,
                    _shrink(config) if smoke else config,
                    tuple(trials),
                    seed,
                    args.out,
                    args.device,
                    SMOKE_VIDEOS if smoke else 16_384,
                    args.episodes or (SMOKE_VIDEOS if smoke else 512),
                    values.get("reduced_loss", False),
                    args.parallel_cameras == 1,
                )
            )
    return sorted(jobs, key=lambda job: job.seed)


def _shrink(config: VideoConfig) -> VideoConfig:
    tiny = {"steps": SMOKE["steps"], "batch_size": 4}
    unroll = replace(config.unroll, train=replace(config.unroll.train, **tiny))
    return replace(config, train=replace(config.train, **tiny), unroll=unroll, size=32)


def run_job(job: Job) -> str:
    """Train one model and score it; return a line to print."""
    torch.set_float32_matmul_precision("high")
    started = time.perf_counter()
    frames = make_collisions(
        job.videos, CollisionsConfig(size=job.config.size), seed=TRAINING_VIDEOS, device=job.device
    )
    train_video(
        Videos.from_tensor(frames, name="collisions"),
        job.config,
        job.path,
        seed=job.seed,
        device=job.device,
        resume=job.path.exists(),
    )
    seconds = time.perf_counter() - started
    model = load_video_model(job.path, device=job.device)
    note = {
        "variant": job.variant,
        "seed": job.seed,
        "seconds": seconds if job.alone else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device_name(job.device),
        "reduced_loss": _measure_reduced_loss(model, job) if job.has_reduced_loss else None,
    }
    job.scores.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(job.scores, note=np.array(json.dumps(note)), **_score_trials(job))
    return f"{job.variant}, seed {job.seed}: trained in {seconds:.0f} s"


def _score_trials(job: Job) -> dict[str, np.ndarray]:
    """Score all trials; return totals and counts per video by the label of the trial and the figure."""
    config = CollisionsConfig(size=job.config.size, frames=job.config.model.history + FRAMES)
    videos = make_collisions(job.scored, config, seed=TEST_VIDEOS, device=job.device)
    predictors = {}
    for trial in job.trials:
        model = load_video_model(job.path, device=job.device, first_stage=trial.first_stage)
        sampling = replace(model.config.sampling, substeps=trial.calls, **trial.options)
        predictors[trial.label] = make_predictor(model, seed=job.seed, sampling=sampling)
    scores = score_predictors(predictors, videos, steps=FRAMES, batch_size=256, device=job.device)
    return {
        f"{label}/{figure}": np.stack([row[figure].total, row[figure].count]).astype(np.float32)
        for label, row in scores.rows.items()
        for figure in FIGURES
    }


def _measure_reduced_loss(model: Any, job: Job) -> float:
    """Return the paper's reduced loss on states of the scored videos without noise."""
    context = job.config.model.history
    config = CollisionsConfig(size=job.config.size, frames=context + 1)
    made = make_collisions(4 * job.scored, config, seed=TEST_VIDEOS, device=job.device)
    sampling = replace(model.config.sampling, substeps=1, alpha=0.0, diffusion=0.0)
    total = 0.0
    for frames in torch.split(made, 256):
        unit = to_unit(frames)
        state, generator = stack_state(unit[:, :context]), torch.Generator(job.device)
        with torch.no_grad():
            predicted = model.predict(state, sampling=sampling, generator=generator)
        error = (predicted - unit[:, context]).double().square()
        total += float((error / REDUCED_DELTA + 1).log().mean()) * len(frames)
    return total / len(made)


def run_videos(values: dict[str, Any], args: argparse.Namespace) -> None:
    """Train and score what is missing; jobs that have not begun at the time limit are left out."""
    jobs = list_jobs(values, args)
    started, waiting = time.perf_counter(), [job for job in jobs if not job.scores.exists()]
    with ThreadPoolExecutor(args.parallel_cameras) as threads:
        running = {threads.submit(_run_in_process, job) for job in waiting[: args.parallel_cameras]}
        del waiting[: args.parallel_cameras]
        while running:
            done = next(as_completed(running))
            running.remove(done)
            print(done.result(), flush=True)
            write_results(values, args)
            if waiting and time.perf_counter() - started < args.limit_s:
                running.add(threads.submit(_run_in_process, waiting.pop(0)))
    for job in waiting:
        print(f"left out: {job.variant}, seed {job.seed}", flush=True)
    write_results(values, args)


def _run_in_process(job: Job) -> str:
    """Run a job in its own process, which frees the memory of the device."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(run_job, job).result()


def write_results(values: dict[str, Any], args: argparse.Namespace) -> None:
    """Write results.json from the scores that exist."""
    results = collect_results(args.out / "scores", reference=values.get("reference", ""))
    replace_file(args.out / "results.json", json.dumps(results, indent=1).encode())
