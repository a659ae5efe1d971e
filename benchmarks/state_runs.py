"""Train policies without cameras on one GPU, several small ones side by side; each step is a captured graph.

Steps of runs that share a GPU take turns, so a small run beside a large one waits for it at every step:
train small runs together, and large ones alone.
"""

import ctypes
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nsde_policy.eval.latency import device_name
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import build_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord, find_versions
from nsde_policy.training.dataset import build_training_data, measure_demonstrations, resolve_first_action
from nsde_policy.training.demos import load_training_demos
from nsde_policy.training.loop import Training

NOTE_FILE = "training.json"
"""File of a run with its `TrainingNote`; written last, so a run that has it is finished."""
TIMED = 100
"""Number of steps timed while no other run trains."""
SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class TrainingNote:
    """Time, size and device of a finished training."""

    seconds: float | None
    """From the sixth step to the saved weights, if no other run used the device meanwhile."""
    step_s: float
    """Duration of one step, measured over a hundred while no other run trained."""
    parameters: int
    device: str


class Run:
    """One training run; resumes from its last save if it was stopped, also at `stop_at` (monotonic clock)."""

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        seed: int,
        demos: Path,
        device: str,
        task: str = "pusht",
        stop_at: float = math.inf,
    ) -> None:
        self.files, self.config, self.seed = RunDirectory(path), config, seed
        self._demos, self._device, self._task, self._stop_at = demos, device, task, stop_at
        self._note = path / NOTE_FILE
        self._training: Training[Any] | None = None
        self._timed_s, self._step_s, self._parameters = 0.0, 0.0, 0

    @property
    def is_done(self) -> bool:
        if not self._note.exists():
            return False
        found = self.files.read_record().config
        inferred = {name: getattr(found.demos, name) for name in ("first_action", "first_action_from")}
        return found == self.config.replace_parts(demos=inferred)

    @property
    def note(self) -> TrainingNote:
        return TrainingNote(**json.loads(self._note.read_text()))

    def prepare(self) -> None:
        """Load the data, build the model and take the first steps, which capture the step on CUDA."""
        demos = load_training_demos(self.config.demos, self._demos)
        self.config = resolve_first_action(demos, self.config)
        data = build_training_data(demos, self.config, task=self._task)
        record = RunRecord(
            self.config,
            measure_demonstrations(demos, self.config, task=self._task),
            self._task,
            self.seed,
            DemoRecord(self._demos.name, demos.fingerprint, len(demos), len(demos.obs)),
            find_versions(),
        )
        self._note.unlink(missing_ok=True)
        model = build_model(record)
        model.prepare(data)
        self._parameters = sum(p.numel() for p in model.parameters())
        self._training = training = Training(model.to(self._device), data, self.config.train, seed=self.seed)
        if self.files.training.exists() and self.files.read_record().same_training(record):
            training.restore(self.files.read_training_state())
        self.files.save_record(record)
        training.advance(5)

    def time_steps(self) -> None:
        """Time some steps; no other run may train meanwhile."""
        training = self._training
        assert training is not None
        started, before = time.perf_counter(), training.step
        if before < self.config.train.steps:
            training.advance(TIMED)
        self._timed_s = time.perf_counter() - started
        self._step_s = self._timed_s / max(training.step - before, 1)

    def finish(self, *, alone: bool) -> None:
        """Train to the end, or save it at `stop_at`; if it is alone on the device, save it every minute."""
        training, started = self._training, time.perf_counter()
        assert training is not None
        stream, saved = torch.cuda.Stream() if self._device.startswith("cuda") else None, started
        with torch.cuda.stream(stream):
            while training.step < self.config.train.steps:
                training.advance(200)
                if training.step < self.config.train.steps and time.monotonic() > self._stop_at:
                    self.files.save_training(training.state())
                    self._training = None
                    print(f"{self.files.path.name}: stopped after {training.step} steps", flush=True)
                    return
                if alone and time.perf_counter() - saved > SAVE_EVERY_S:
                    self.files.save_training(training.state())
                    saved = time.perf_counter()
        self.files.save_weights(training.averaged_weights())
        seconds = self._timed_s + time.perf_counter() - started
        note = TrainingNote(
            seconds if alone else None, self._step_s, self._parameters, device_name(self._device)
        )
        replace_file(self._note, json.dumps(asdict(note)).encode())
        self.files.training.unlink(missing_ok=True)
        self._training = None
        beside = "" if alone else " beside others"
        print(f"{self.files.path.name}: {seconds:.1f} s{beside}", flush=True)


def sleep_while_waiting() -> None:
    """Let threads sleep while they wait for the GPU, so that the cores are free for rollouts."""
    driver, blocking_sync = ctypes.CDLL("libcuda.so.1"), 4
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxSetFlags_v2(0, blocking_sync):
        print("threads will spin while they wait for the GPU", flush=True)


def prepare_runs(runs: Sequence[Run]) -> list[Run]:
    """Prepare the runs that are not trained yet, time their steps one after the other, and return them."""
    todo = [run for run in runs if not run.is_done]
    for run in todo:
        run.prepare()
        run.time_steps()
    return todo


def finish_runs(runs: Sequence[Run], parallel: int) -> Iterator[Run]:
    """Train prepared runs to their end, `parallel` at a time; yield each that is done."""
    with ThreadPoolExecutor(parallel) as threads:
        alone = min(parallel, len(runs)) == 1
        finishing = {threads.submit(run.finish, alone=alone): run for run in runs}
        for future in as_completed(finishing):
            future.result()
            if finishing[future].is_done:
                yield finishing[future]
