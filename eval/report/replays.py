"""Recorded episodes in few bytes: integers, differences between frames, deflate.

Browsers can decode this without a library; 200 episodes of 300 steps with five observed values take about
300 kB.
"""

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.episode import Trace
from nsde_policy.tasks import Scene

MAX_REPLAY_BYTES = 2**28
"""Most bytes of a file with recorded episodes."""


@dataclass(frozen=True, eq=False)
class Replays:
    """Frames of several episodes, concatenated: observations, then progress."""

    lengths: tuple[int, ...]
    """Frames of each episode: one before each action, and the last."""
    frames: npt.NDArray[np.int16]
    """All frames in units of 1 / scale, (sum of lengths, columns)."""

    @classmethod
    def from_traces(cls, traces: Sequence[Trace], scene: Scene) -> "Replays":
        """Round the frames of episodes to integers, as many per unit as the scene says."""
        values = [np.column_stack([each.obs, np.array(each.progress, float)]) for each in traces]
        rounded = np.rint(np.concatenate(values) * scene.scales)
        return cls(tuple(map(len, values)), np.clip(rounded, -(2**15), 2**15 - 1).astype(np.int16))

    def encode(self) -> str:
        """Encode for a page: column by column, differences between frames, raw deflate, base64."""
        changes = np.diff(self.frames, axis=0, prepend=np.zeros((1, self.frames.shape[1]), np.int16))
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        raw = deflate.compress(changes.T.astype("<i2").tobytes()) + deflate.flush()
        return base64.b64encode(raw).decode()

    def to_bytes(self) -> bytes:
        """Return the content of a cache file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, lengths=np.array(self.lengths), frames=self.frames)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Replays":
        """Read what `to_bytes` returned; raise `ComparisonError` for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return cls(tuple(arrays["lengths"].tolist()), arrays["frames"])
        except Exception as error:  # numpy and zipfile raise many kinds for damaged files
            raise ComparisonError(f"cannot read recorded episodes: {error}") from None
