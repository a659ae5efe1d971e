"""The whole experiment: every method at every density and seed, scored; jobs run side by side."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nsde_policy.errors import ConfigError
from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.methods import (
    ABLATION,
    NO_FLOOR,
    PAPER_LOSSES,
    Budget,
    Field,
    Generated,
    field,
    neural_sde_with,
    per_step,
    sample_neural_sde,
    train_neural_sde,
    whole_path,
)
from nsde_policy.eval.bifurcation.scores import Scores, score

NEURAL_SDE = "Neural SDE"
OTHERS: dict[str, Callable[[Bifurcation, Budget], Generated]] = {
    "Neural SDE, no variance floor": partial(neural_sde_with, NO_FLOOR),
    "Neural SDE, the paper's losses": partial(neural_sde_with, PAPER_LOSSES),
    "DDIM, next state": lambda task, budget: per_step("ddim", "state", task, budget),
    "DDIM, increment": lambda task, budget: per_step("ddim", "increment", task, budget),
    "Rectified Flow, next state": lambda task, budget: per_step("flow", "state", task, budget),
    "Rectified Flow, increment": lambda task, budget: per_step("flow", "increment", task, budget),
    "DDIM, whole path": whole_path,
}
METHODS = (NEURAL_SDE, *OTHERS)
DRAWN_METHODS = tuple(name for name in METHODS if not name.startswith("Neural SDE, "))
"""Those with a column in the figure."""
SHOWN = 30
"""Paths per method, density and first seed that are kept for pictures."""
View = tuple[float, float, float, float]
"""A part of the plane: left, right, bottom, top."""
WIDE: View = (-0.4, 9.6, -3.1, 3.1)
CLOSE: View = (4.0, 5.5, -0.5, 0.5)
"""Where the learned equation is kept for pictures: everything, and the fork."""


@dataclass(frozen=True)
class Settings:
    """What to run."""

    densities: tuple[int, ...]
    seeds: tuple[int, ...]
    paths: int
    """Generated per method, density and seed."""
    train_steps: int
    """Optimiser steps per method."""

    def __post_init__(self) -> None:
        if not self.densities or not self.seeds:
            raise ConfigError("the experiment needs a density and a seed")
        if self.paths < 2 or self.train_steps < 1:
            raise ConfigError(f"need paths >= 2, train_steps >= 1, got {self.paths}, {self.train_steps}")


@dataclass(frozen=True)
class Job:
    """One training, and what is sampled from it."""

    method: str
    density: int
    budget: Budget
    keep: bool
    """Whether to return paths and fields for pictures."""


@dataclass(frozen=True)
class Run:
    """One row of the results."""

    label: str
    """Name of the method, or of the parts of the Neural SDE that are on."""
    density: int
    seed: int
    scores: Scores


@dataclass(frozen=True)
class JobResult:
    """What a job sends back."""

    runs: list[Run]
    paths: dict[tuple[str, int], Tensor]
    """(points, `SHOWN`, 2) by label and density."""
    fields: dict[tuple[str, int], Field]
    """The learned equation by view ("wide", "close") and density."""


def jobs(settings: Settings) -> list[Job]:
    """All jobs, the slow ones first so that no worker is left alone with one at the end."""
    found = [
        Job(
            method,
            density,
            Budget(train_steps=settings.train_steps, paths=settings.paths, seed=seed),
            keep=seed == settings.seeds[0],
        )
        for density in settings.densities
        for method in METHODS
        for seed in settings.seeds
    ]
    return sorted(found, key=lambda job: (-job.density, job.method == NEURAL_SDE, "whole" in job.method))


def run_job(job: Job) -> JobResult:
    """Train, sample and score, on one thread: more would be slower here, and could round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run_job(job)
    finally:
        torch.set_num_threads(threads)


def _run_job(job: Job) -> JobResult:
    task, budget = Bifurcation(job.density), job.budget
    generated: dict[str, Generated] = {}
    fields: dict[tuple[str, int], Field] = {}
    if job.method == NEURAL_SDE:
        model = train_neural_sde(task, budget)
        for label, (denoiser, diffusion) in ABLATION.items():
            generated[label] = sample_neural_sde(model, task, budget, denoiser=denoiser, diffusion=diffusion)
        if job.keep:
            views = {"wide": grid(WIDE, 93, 59), "close": grid(CLOSE, 61, 41)}
            fields = {(view, job.density): field(model, x) for view, x in views.items()}
    else:
        generated[job.method] = OTHERS[job.method](task, budget)
    runs = [
        Run(
            label,
            job.density,
            budget.seed,
            score(made.paths, task, network_calls=made.network_calls, generator=budget.generator()),
        )
        for label, made in generated.items()
    ]
    shown = {(label, job.density): made.paths[:, :SHOWN].clone() for label, made in generated.items()}
    return JobResult(runs, shown if job.keep else {}, fields)


def grid(view: View, columns: int, rows: int) -> Tensor:
    """States spread evenly over a part of the plane, (rows, columns, 2)."""
    left, right, bottom, top = view
    y, x = torch.meshgrid(
        torch.linspace(bottom, top, rows), torch.linspace(left, right, columns), indexing="ij"
    )
    return torch.stack([x, y], dim=-1)


def run_all(settings: Settings, *, workers: int) -> Iterator[JobResult]:
    """Results as they come, in any order; what is in them depends on the settings alone."""
    work = jobs(settings)
    if workers <= 1:
        yield from map(run_job, work)
        return
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        for future in as_completed([pool.submit(run_job, job) for job in work]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, nothing new is begun
