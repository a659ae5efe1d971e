"""Export of the encoder of camera frames: a graph of one observation."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from nsde_policy.data.frames import resize_frames
from nsde_policy.encoders.encoder_model import EncoderModel
from nsde_policy.interface.planner import PolicySpec

from ..runtime.metadata import FEATURES, MEASURED, VISIBLE, EncoderRecord
from .onnx_writer import TracedFunction

FEATURE_TOLERANCE = 1e-4
"""Largest allowed difference of features, in units of the widest range of a feature in demonstrations, and of
measured shifts, in units of half a frame."""
BLOCKS = 6
"""The pictures of the comparison are this many blocks of random colours wide and high."""
LARGEST_SHIFT = 3
"""Largest shift that is undone in the comparison, pixels."""


class OneRow(nn.Module):
    """An encoder of one row without a batch dimension."""

    def __init__(self, encoder: EncoderModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Encode values, the shift to undo if the encoder measures it, and frames.

        Return the features, then the shift that is left and the visible fraction, if the encoder has them.
        """
        values, *others = [tensor[None] for tensor in inputs]
        shift = others.pop(0) if self.encoder.measures_shift else None
        features, measured, summary = self.encoder.encode_and_measure(values, shift, *others)
        outputs = (features[0], measured[0]) if self.encoder.measures_shift else (features[0],)
        visibility = self.encoder.visibility
        return outputs if visibility is None else (*outputs, visibility(summary))


def trace_encoder(encoder: EncoderModel, spec: PolicySpec) -> TracedFunction:
    """Prepare the encoder of a policy for tracing."""
    one_row = OneRow(encoder.cpu().eval().requires_grad_(False))

    def draw_inputs(cases: int) -> Iterator[list[np.ndarray]]:
        """Draw values (plain_dim,), shifts (cameras, 2) if the encoder takes them, and frames."""
        rng, size = np.random.default_rng(0), spec.plain_dim
        for _ in range(cases):
            inputs = [rng.uniform(spec.low[:size], spec.high[:size]).astype(np.float32)]
            shift = rng.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (len(spec.cameras), 2))
            if encoder.measures_shift:
                inputs.append(shift.astype(np.float32))
            for camera in spec.cameras:
                colours = rng.integers(0, 256, (BLOCKS, BLOCKS, 3), dtype=np.uint8)
                rows = np.arange(camera.height) * BLOCKS // camera.height
                columns = np.arange(camera.width) * BLOCKS // camera.width
                inputs += [*resize_frames(colours[None, rows[:, None], columns], encoder.size)]
            yield inputs

    low, high = (np.array(values[spec.plain_dim : spec.obs_dim]) for values in (spec.low, spec.high))
    return TracedFunction(
        record=EncoderRecord(
            cameras=spec.cameras,
            plain_dim=spec.plain_dim,
            image_features=spec.image_features,
            size=encoder.size,
            measures_shift=encoder.measures_shift,
            reports_visible=encoder.visibility is not None,
        ),
        module=one_row,
        reference=one_row,
        draw_inputs=draw_inputs,
        scales={FEATURES: np.max(high - low), MEASURED: np.array(encoder.size / 2), VISIBLE: np.ones(1)},
        tolerance=FEATURE_TOLERANCE,
    )
