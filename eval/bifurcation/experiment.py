"""Run the experiment: train and score every method at every density and seed, in several processes."""

import itertools
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from nsde_policy.errors import ConfigError
from nsde_policy.eval.bifurcation import methods
from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.methods import Budget, VectorField
from nsde_policy.eval.bifurcation.scores import PathScores, score_paths
from nsde_policy.eval.processes import WorkerPool
from nsde_policy.inference.torch_threads import use_threads

SAVED_PATHS = 30
"""Paths per method and density that are saved for figures, of the first seed."""
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


def list_jobs(settings: ExperimentSettings) -> list[tuple[str, int, Budget]]:
    """List method, density and budget of all trainings; slow ones first, so that all workers end together."""
    jobs = [
        (method, density, Budget(settings.train_steps, settings.paths, seed))
        for density in settings.densities
        for method in methods.METHOD_NAMES
        for seed in settings.seeds
    ]
    return sorted(jobs, key=lambda job: (-job[1], job[0] == methods.NEURAL_SDE, "whole" in job[0]))


def run_job(method: str, density: int, budget: Budget) -> JobResult:
    """Train, sample and score, on one thread: more would be slower here, and could round differently."""
    task = Bifurcation(density)
    fields: dict[tuple[View, int], VectorField] = {}
    with use_threads(1):
        if method == methods.NEURAL_SDE:
            model = methods.train_neural_sde(task, budget)
            generated = {
                label: methods.sample_neural_sde(model, task, budget, denoiser=denoiser, diffusion=diffusion)
                for label, (denoiser, diffusion) in methods.ABLATION.items()
            }
            for view, columns, rows in ((WHOLE_PLANE, 93, 59), (FORK, 61, 41)):
                x, y = torch.linspace(*view[:2], columns), torch.linspace(*view[2:], rows)
                grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
                fields[view, density] = methods.evaluate_field(model, grid)
        else:
            generated = {method: methods.BASELINES[method](task, budget)}
        runs, paths = [], {}
        for label, (sampled, calls) in generated.items():
            scores = score_paths(sampled, task, network_calls=calls, generator=budget.generator())
            runs.append(ScoredRun(label, density, budget.seed, scores))
            paths[label, density] = sampled[:, :SAVED_PATHS].clone()
    return JobResult(runs, paths, fields)


def run_experiment(settings: ExperimentSettings, *, workers: int) -> Iterator[JobResult]:
    """Yield results as jobs finish; their order may differ, their content depends on the settings alone."""
    jobs = list_jobs(settings)
    if workers <= 1:
        yield from itertools.starmap(run_job, jobs)
        return
    with WorkerPool(workers) as pool:
        for future in as_completed([pool.submit(run_job, *job) for job in jobs]):
            yield future.result()
