"""Export of the encoder of camera frames: a graph of one observation, compared with the policy's encoder."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nsde_policy.data.frames import resize_frames
from nsde_policy.deploy.export import formats
from nsde_policy.deploy.runtime.graph import EncoderGraph
from nsde_policy.deploy.runtime.metadata import CODES, GRAPH_FORMAT, MEASURED, EncoderRecord
from nsde_policy.deploy.runtime.onnx_file import graph_sha256
from nsde_policy.encoders.base_model import EncoderModel
from nsde_policy.errors import NsdePolicyError
from nsde_policy.planner.spec import PolicySpec

CODE_TOLERANCE = 1e-4
"""Largest allowed difference of codes, in units of the widest range of a code in the demonstrations; that of
a measured shift, in units of half a frame."""
BLOCKS = 6
"""The pictures of the comparison are this many blocks of random colours wide and high."""
LARGEST_SHIFT = 3
"""Largest shift that is undone in the comparison, pixels."""


def build_encoder_graph(
    encoder: EncoderModel, spec: PolicySpec, *, opset: int, fingerprint: str, made_with: tuple[str, ...]
) -> tuple[bytes, EncoderRecord]:
    """Trace the encoder of a policy and return the content of its file, and its record."""
    encoder.eval().requires_grad_(False)
    record = EncoderRecord(
        format=GRAPH_FORMAT,
        cameras=spec.cameras,
        plain_dim=spec.plain_dim,
        codes=spec.codes,
        size=encoder.size,
        measures_shift=encoder.measures_shift,
        fingerprint=fingerprint,
        graph_sha256="",
        made_with=made_with,
    )
    module = encoder.fold_for_export().cpu().eval().requires_grad_(False)
    values, shift, *frames = next(_draw_observations(encoder, spec, cases=1, seed=0))
    bare = formats.build_onnx(
        module,
        (values, *([shift] if encoder.measures_shift else []), *frames),
        inputs=list(record.input_shapes),
        outputs=list(record.outputs),
        opset=opset,
    )
    record = replace(record, graph_sha256=graph_sha256(bare))
    return formats.add_record(bare, record.to_json()), record


@torch.no_grad()
def measure_code_parity(
    encoder: EncoderModel, spec: PolicySpec, content: bytes, *, cases: int, seed: int
) -> float:
    """Measure the largest difference between a graph and its encoder, in units of `CODE_TOLERANCE`'s.

    Raises:
        NsdePolicyError: If it exceeds `CODE_TOLERANCE`.
    """
    graph = EncoderGraph(content)
    low, high = (np.array(values[spec.plain_dim : spec.obs_dim]) for values in (spec.low, spec.high))
    scales = {CODES: float(np.max(high - low)), MEASURED: encoder.size / 2}
    worst = 0.0
    for inputs in _draw_observations(encoder, spec, cases=cases, seed=seed):
        values, shift, *frames = (tensor[None] for tensor in inputs)
        if encoder.measures_shift:
            expected: tuple[Tensor, ...] = encoder.encode_and_measure(values, shift, *frames)
        else:
            expected = (encoder(values, *frames),)
            del inputs[1]
        for buffer, tensor in zip(graph.inputs.values(), inputs, strict=True):
            buffer[...] = tensor.numpy()
        graph.run()
        for (name, found), tensor in zip(graph.outputs.items(), expected, strict=True):
            difference = float(np.max(np.abs(found - tensor[0].numpy()))) / scales[name]
            worst = max(worst, difference if np.isfinite(difference) else np.inf)
    if worst > CODE_TOLERANCE:
        raise NsdePolicyError(
            f"the exported encoder differs from the policy's by {worst:.2g} ranges of its codes in {cases} "
            f"cases, at most {CODE_TOLERANCE:g} is allowed; nothing was written"
        )
    return worst


def _draw_observations(
    encoder: EncoderModel, spec: PolicySpec, *, cases: int, seed: int
) -> Iterator[list[Tensor]]:
    """Draw values (plain_dim,), shifts (cameras, 2) and frames, resized as those of a camera would be."""
    rng, size = np.random.default_rng(seed), spec.plain_dim
    low, high = np.array(spec.low[:size]), np.array(spec.high[:size])
    for _ in range(cases):
        values = rng.uniform(low, high).astype(np.float32)
        shift = rng.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (len(spec.cameras), 2)).astype(np.float32)
        frames = []
        for camera in spec.cameras:
            colours = rng.integers(0, 256, (BLOCKS, BLOCKS, 3), dtype=np.uint8)
            rows = np.arange(camera.height) * BLOCKS // camera.height
            columns = np.arange(camera.width) * BLOCKS // camera.width
            frames += [*resize_frames(colours[None, rows[:, None], columns], encoder.size)]
        yield [torch.from_numpy(array) for array in (values, shift, *frames)]
