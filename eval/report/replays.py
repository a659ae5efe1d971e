"""Recorded episodes as few bytes: poses in whole numbers, what changed since the frame before, deflated.

A page undoes it with what every browser has; 200 episodes of Push-T take about 300 kB.
"""

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.rollout import Trace

SCALES = (32, 32, 32, 32, 4096, 20_000)
"""Steps per unit of agent x, y, block x, y (px, from −256 to 768), block angle (rad), coverage (0 to 1)."""
Frames = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Replays:
    """The frames of some episodes, end to end: agent x, y, block x, y, angle, coverage."""

    lengths: tuple[int, ...]
    """Frames of each episode: one before each action, and the last."""
    frames: Frames
    """All of them in units of 1 / SCALES, (sum of lengths, 6)."""

    def __post_init__(self) -> None:
        if self.frames.shape != (sum(self.lengths), len(SCALES)) or self.frames.dtype != np.int16:
            raise ComparisonError(
                f"frames of shape {self.frames.shape}, {self.frames.dtype} for episodes of {self.lengths}"
            )

    @classmethod
    def of(cls, episodes: Sequence[Frames]) -> "Replays":
        """From the frames of each, as `quantised` returns them."""
        return cls(tuple(map(len, episodes)), np.concatenate(episodes))

    def episode(self, number: int) -> npt.NDArray[np.float64]:
        """One episode in its own units, (frames, 6)."""
        end = sum(self.lengths[: number + 1])
        frames: npt.NDArray[np.float64] = self.frames[end - self.lengths[number] : end] / np.array(
            SCALES, float
        )
        return frames

    def packed(self) -> str:
        """For a page: column after column, each number less the one before, raw deflate, base64."""
        changes = np.diff(self.frames, axis=0, prepend=np.zeros((1, len(SCALES)), np.int16))
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        raw = deflate.compress(changes.T.astype("<i2").tobytes()) + deflate.flush()
        return base64.b64encode(raw).decode()

    def to_bytes(self) -> bytes:
        """A file's content."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, lengths=np.array(self.lengths), frames=self.frames)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Replays":
        """The inverse of `to_bytes`; raises `ComparisonError` for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as held:
                return cls(tuple(int(n) for n in held["lengths"]), held["frames"])
        except (KeyError, OSError, TypeError, ValueError, EOFError, BadZipFile, zlib.error) as error:
            if isinstance(error, ComparisonError):
                raise
            raise ComparisonError(f"no recorded episodes: {error}") from None


def quantised(trace: Trace) -> Frames:
    """One episode's frames in whole numbers, (steps + 1, 6)."""
    values = np.column_stack([np.array(trace.obs, float), np.array(trace.progress, float)])
    steps: Frames = np.clip(np.rint(values * SCALES), -(2**15), 2**15 - 1).astype(np.int16)
    return steps
