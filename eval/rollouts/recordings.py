"""Recorded episodes in few bytes, for the player of a report page."""

import base64
import zlib
from collections.abc import Sequence

import numpy as np

from nsde_policy.envs.scene import Scene

from .episode import Trace


def encode_frames(traces: Sequence[Trace], scene: Scene) -> str:
    """Encode the observations and the progress of all episodes, concatenated, for the player of a report.

    They are integers, as many per unit as the scene says: column by column, differences between frames,
    deflated, in base64. Browsers decode this without a library. 200 episodes of 300 steps with five values
    take about 300 kB.
    """
    values = [np.column_stack([trace.obs, np.array(trace.progress, float)]) for trace in traces]
    rounded = np.rint(np.concatenate(values) * scene.scales)
    frames = np.clip(rounded, -(2**15), 2**15 - 1).astype(np.int16)
    changes = np.diff(frames, axis=0, prepend=np.zeros((1, frames.shape[1]), np.int16))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    raw = deflate.compress(changes.T.astype("<i2").tobytes()) + deflate.flush()
    return base64.b64encode(raw).decode()
