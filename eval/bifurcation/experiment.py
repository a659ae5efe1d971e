"""Run the experiment: train and score every method at every density and seed, in several processes."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from nsde_policy.errors import ConfigError
from nsde_policy.eval.bifurcation import methods
from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.methods import Budget, GeneratedPaths, VectorField
from nsde_policy.eval.bifurcation.scores import PathScores, score_paths
from nsde_policy.eval.rollout import one_thread

SAVED_PATHS = 30
"""Paths per method, density and first seed that are saved for figures."""
View = tuple[float, float, float, float]
"""Part of the plane: left, right, bottom, top."""
WHOLE_PLANE: View = (-0.4, 9.6, -3.1, 3.1)
FORK: View = (4.0, 5.5, -0.5, 0.5)


class ExperimentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Densities, seeds and sizes of an experiment."""

    densities: tuple[int, ...]
    seeds: tuple[int, ...]
    paths: int
    """Generated per method, density and seed."""
    train_steps: int
    """Optimiser steps per method."""

    def __post_init__(self) -> None:
        if not self.densities or not self.seeds:
            raise ConfigError("the experiment needs at least one density and one seed")
        if self.paths < 2 or self.train_steps < 1:
            raise ConfigError(f"need paths >= 2, train_steps >= 1, got {self.paths}, {self.train_steps}")


@dataclass(frozen=True)
class TrainingJob:
    """One training, and the paths sampled from it."""

    method: str
    density: int
    budget: Budget
    save: bool
    """Whether to return paths and fields for figures."""


class ScoredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of one method or variant, at one density and seed."""

    label: str
    """Name of the method, or of the terms of the Neural SDE that are on."""
    density: int
    seed: int
    scores: PathScores


@dataclass(frozen=True)
class JobResult:
    """Scores of one training job, and its data for figures."""

    runs: list[ScoredRun]
    paths: dict[tuple[str, int], Tensor]
    """(points, `SAVED_PATHS`, 2) by label and density."""
    fields: dict[tuple[View, int], VectorField]
    """The learned equation by view and density."""


def list_jobs(settings: ExperimentSettings) -> list[TrainingJob]:
    """List all jobs, slow ones first, so that all workers finish at about the same time."""
    jobs = [
        TrainingJob(
            method,
            density,
            Budget(train_steps=settings.train_steps, paths=settings.paths, seed=seed),
            save=seed == settings.seeds[0],
        )
        for density in settings.densities
        for method in methods.METHOD_NAMES
        for seed in settings.seeds
    ]
    return sorted(
        jobs, key=lambda job: (-job.density, job.method == methods.NEURAL_SDE, "whole" in job.method)
    )


def run_job(job: TrainingJob) -> JobResult:
    """Train, sample and score, on one thread: more would be slower here, and could round differently."""
    task, budget = Bifurcation(job.density), job.budget
    generated: dict[str, GeneratedPaths] = {}
    fields: dict[tuple[View, int], VectorField] = {}
    with one_thread():
        if job.method == methods.NEURAL_SDE:
            model = methods.train_neural_sde(task, budget)
            for label, (denoiser, diffusion) in methods.ABLATION.items():
                generated[label] = methods.sample_neural_sde(
                    model, task, budget, denoiser=denoiser, diffusion=diffusion
                )
            for view, columns, rows in ((WHOLE_PLANE, 93, 59), (FORK, 61, 41)):
                fields[view, job.density] = methods.evaluate_field(model, make_grid(view, columns, rows))
        else:
            generated[job.method] = methods.BASELINES[job.method](task, budget)
        runs = []
        for label, sampled in generated.items():
            scores = score_paths(
                sampled.paths, task, network_calls=sampled.network_calls, generator=budget.generator()
            )
            runs.append(ScoredRun(label, job.density, budget.seed, scores))
    if not job.save:
        return JobResult(runs, {}, {})
    paths = {
        (label, job.density): sampled.paths[:, :SAVED_PATHS].clone() for label, sampled in generated.items()
    }
    return JobResult(runs, paths, fields)


def make_grid(view: View, columns: int, rows: int) -> Tensor:
    """Return states spread evenly over a part of the plane, (rows, columns, 2)."""
    left, right, bottom, top = view
    y, x = torch.meshgrid(
        torch.linspace(bottom, top, rows), torch.linspace(left, right, columns), indexing="ij"
    )
    return torch.stack([x, y], dim=-1)


def run_experiment(settings: ExperimentSettings, *, workers: int) -> Iterator[JobResult]:
    """Yield results as jobs finish; their order may differ, their content depends on the settings alone."""
    jobs = list_jobs(settings)
    if workers <= 1:
        yield from map(run_job, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        for future in as_completed([pool.submit(run_job, job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, start no further job
