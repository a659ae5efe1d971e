"""Validation: the losses on episodes held out of training."""

import logging
from typing import Any

import torch

from nsde_policy.data import Demonstrations
from nsde_policy.inference.loading import build_model
from nsde_policy.run_directory import RunRecord
from nsde_policy.training.dataset import build_training_data
from nsde_policy.training.loop import Training

logger = logging.getLogger(__name__)

VALIDATION_PREFIX = "validation_"
"""Prefix of validation losses in the metrics."""
MAX_VALIDATION_ROWS, VALIDATION_BATCH = 4096, 1024
"""Most rows of held-out data whose loss is computed at each record, and rows per batch."""


class Validation:
    """Losses of the averaged weights on held-out data.

    They are computed by a copy of the model in evaluation mode, so that training, its random numbers and its
    captured step are not touched. The noise in the losses is the same at every call.
    """

    def __init__(
        self, demos: Demonstrations, record: RunRecord, training: Training[Any], device: str
    ) -> None:
        logger.info("%d of %d episodes are held out for validation", len(demos), record.demos.episodes)
        data = build_training_data(demos, record.config, task=record.task)
        self._training, self._seed, self._device = training, record.seed, device
        rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(record.seed))
        self._data = data[rows[:MAX_VALIDATION_ROWS]].to(device)
        self._model = build_model(record)
        self._model.allocate_for(training.averaged_weights())
        self._model.to(device).eval().requires_grad_(False)

    def losses(self) -> dict[str, float]:
        """Return the mean of each loss over the held-out data; empty for methods that are not trained."""
        if not self._model.stages():
            return {}
        self._model.load_state_dict(self._training.averaged_weights())
        generator = torch.Generator(self._device).manual_seed(self._seed)
        sums: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(self._data), device=self._device), VALIDATION_BATCH):
            for name, loss in self._model.loss(self._data[rows], generator).parts.items():
                sums[name] = sums.get(name, 0.0) + float(loss) * len(rows)
        return {VALIDATION_PREFIX + name: total / len(self._data) for name, total in sums.items()}
