"""Training many runs at once on one GPU, each step of each a captured graph on a stream of its own."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from nsde_policy.checkpoint import DemoRecord, RunDirectory, RunRecord, versions
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig
from nsde_policy.runs import build_model, fit_layout, load_for, training_data
from nsde_policy.trainer import Training

TIMED = 100
"""Steps that are timed while the run has the device to itself."""


class Run:
    """One run on its way from nothing to weights."""

    def __init__(
        self, path: Path, config: RunConfig, *, seed: int, demos: Path, device: str, urgent: bool = False
    ) -> None:
        self.files, self.config, self.seed = RunDirectory(path), config, seed
        self._demos, self._device, self._priority = demos, device, -1 if urgent else 0
        self._cost = path / "cost.json"
        self._training: Training[Any] | None = None

    @property
    def is_done(self) -> bool:
        return self._cost.exists() and self.files.model.exists() and self.files.record().config == self.config

    @property
    def cost(self) -> dict[str, Any]:
        """Parameters, and seconds of training: steps × the time of a step with the device to itself."""
        cost: dict[str, Any] = json.loads(self._cost.read_text())
        return cost

    def prepare(self) -> None:
        """Load, build, take the first steps, which capture the step on CUDA, time some: one run at a time."""
        demos = load_for(self.config.demos, self._demos)
        data = training_data(demos, self.config, task="pusht")
        record = RunRecord(
            self.config,
            fit_layout(demos, self.config, task="pusht"),
            "pusht",
            self.seed,
            DemoRecord(self._demos.name, demos.fingerprint, len(demos), len(demos.obs)),
            versions(),
        )
        self.files.save_record(record)
        model = build_model(record)
        model.prepare(data)
        parameters = sum(p.numel() for p in model.parameters())
        self._training = training = Training(model.to(self._device), data, self.config.train, seed=self.seed)
        training.advance(5)
        started, before = time.perf_counter(), training.step
        if training.step < self.config.train.steps:
            training.advance(TIMED)
        each = (time.perf_counter() - started) / max(training.step - before, 1)
        seconds = each * self.config.train.steps if model.stages() else 0.0
        replace_file(
            self._cost, json.dumps({"parameters": parameters, "train_s": round(seconds, 2)}).encode()
        )

    def finish(self) -> None:
        """Train to the end."""
        training = self._training
        assert training is not None
        on_cuda = self._device.startswith("cuda")
        stream = torch.cuda.Stream(priority=self._priority) if on_cuda else None
        with torch.cuda.stream(stream):
            while training.step < self.config.train.steps:
                training.advance(500)
        self.files.save_weights(training.averaged())
        self._training = None


def trained(runs: Sequence[Run], parallel: int) -> Iterator[Run]:
    """Train what is not trained yet, so many at once; yields runs as they are finished."""
    todo = [run for run in runs if not run.is_done]
    yield from (run for run in runs if run.is_done)
    for start in range(0, len(todo), parallel):
        group, began = todo[start : start + parallel], time.perf_counter()
        for run in group:
            run.prepare()
            print(f"{run.files.path.name}: {run.cost}", flush=True)
        with ThreadPoolExecutor(len(group)) as threads:
            finishing = {threads.submit(run.finish): run for run in group}
            for future in as_completed(finishing):
                future.result()
                run = finishing[future]
                seconds = time.perf_counter() - began
                print(f"{run.files.path.name}: trained after {seconds:.0f} s beside others", flush=True)
                yield run
