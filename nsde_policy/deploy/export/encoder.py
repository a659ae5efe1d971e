"""Export of the encoder of camera frames: a graph of one observation."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nsde_policy.data.frames import resize_frames
from nsde_policy.deploy.export.onnx_writer import build_file
from nsde_policy.deploy.export.parity import measure_difference
from nsde_policy.deploy.runtime.graph import EncoderGraph
from nsde_policy.deploy.runtime.metadata import FEATURES, GRAPH_FORMAT, MEASURED, EncoderRecord
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import NsdePolicyError
from nsde_policy.planner.interface import PolicySpec

FEATURE_TOLERANCE = 1e-4
"""Largest allowed difference of features, in units of the widest range of a feature in demonstrations, and of
measured shifts, in units of half a frame."""
BLOCKS = 6
"""The pictures of the comparison are this many blocks of random colours wide and high."""
LARGEST_SHIFT = 3
"""Largest shift that is undone in the comparison, pixels."""


def build_encoder_graph(
    encoder: EncoderModel, spec: PolicySpec, *, fingerprint: str, made_with: tuple[str, ...]
) -> bytes:
    """Trace the encoder of a policy and return the content of its file."""
    encoder.eval().requires_grad_(False)
    record = EncoderRecord(
        format=GRAPH_FORMAT,
        cameras=spec.cameras,
        plain_dim=spec.plain_dim,
        image_features=spec.image_features,
        size=encoder.size,
        measures_shift=encoder.measures_shift,
        fingerprint=fingerprint,
        graph_sha256="",
        made_with=made_with,
    )
    module = encoder.fold_for_export().cpu().eval().requires_grad_(False)
    example = next(_draw_observations(encoder, spec, cases=1))
    return build_file(module, tuple(map(torch.from_numpy, example)), record)


def measure_code_parity(encoder: EncoderModel, spec: PolicySpec, graph: EncoderGraph, cases: int) -> float:
    """Measure the largest difference between a graph and its encoder, in units of `FEATURE_TOLERANCE`'s.

    Raises:
        NsdePolicyError: If it exceeds `FEATURE_TOLERANCE`.
    """

    def encode(*inputs: Tensor) -> tuple[Tensor, ...]:
        rows = [tensor[None] for tensor in inputs]
        if encoder.measures_shift:
            return tuple(output[0] for output in encoder.encode_and_measure(*rows))
        return (encoder(*rows)[0],)

    low, high = (np.array(values[spec.plain_dim : spec.obs_dim]) for values in (spec.low, spec.high))
    scales = {FEATURES: np.max(high - low), MEASURED: np.array(encoder.size / 2)}
    worst = measure_difference(graph, encode, _draw_observations(encoder, spec, cases=cases), scales)
    if worst > FEATURE_TOLERANCE:
        raise NsdePolicyError(
            f"the exported encoder differs from the policy's by {worst:.2g} ranges of its features in "
            f"{cases} cases, at most {FEATURE_TOLERANCE:g} is allowed; nothing was written"
        )
    return worst


def _draw_observations(encoder: EncoderModel, spec: PolicySpec, *, cases: int) -> Iterator[list[np.ndarray]]:
    """Draw inputs of the graph: values (plain_dim,), shifts (cameras, 2) if it takes them, and frames."""
    rng, size = np.random.default_rng(0), spec.plain_dim
    low, high = np.array(spec.low[:size]), np.array(spec.high[:size])
    for _ in range(cases):
        inputs = [rng.uniform(low, high).astype(np.float32)]
        shift = rng.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (len(spec.cameras), 2)).astype(np.float32)
        if encoder.measures_shift:
            inputs.append(shift)
        for camera in spec.cameras:
            colours = rng.integers(0, 256, (BLOCKS, BLOCKS, 3), dtype=np.uint8)
            rows = np.arange(camera.height) * BLOCKS // camera.height
            columns = np.arange(camera.width) * BLOCKS // camera.width
            inputs += [*resize_frames(colours[None, rows[:, None], columns], encoder.size)]
        yield inputs
