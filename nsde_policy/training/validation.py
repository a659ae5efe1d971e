"""Validation: the losses on episodes held out of training."""

from typing import Any

import torch

from nsde_policy.training.batches import Data
from nsde_policy.training.loop import Training

VALIDATION_PREFIX = "validation_"
"""Prefix of validation losses in the metrics."""
MAX_VALIDATION_ROWS, MAX_FRAME_ROWS, VALIDATION_BATCH = 4096, 256, 1024
"""Most rows of held-out data whose loss is computed at each record, of rows with frames, and per batch."""


class Validation:
    """Losses of the averaged weights on held-out data.

    They are computed by a copy of the model in evaluation mode, so that training, its random numbers and its
    captured step are not touched. The noise in the losses is the same at every call.

    Args:
        data: Rows of held-out data, see `choose_rows`.
        model: Another instance of the model that is trained.
        training: Training whose averaged weights are used.
        seed: Seed of the noise.
        device: Where the losses are computed.
    """

    def __init__(self, data: Any, model: Any, training: Training[Any], *, seed: int, device: str) -> None:
        self._training, self._seed, self._device = training, seed, device
        self._data = data.to(device)
        self._model = model
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


def choose_rows(data: Data, most: int, *, seed: int) -> Data:
    """Return up to `most` random rows, the same ones for the same seed."""
    return data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]]
