"""Decode the recorded episodes of a report page."""

import base64
import zlib

import numpy as np

from nsde_policy.eval.compare.entries import Entry


def decode_frames(entry: Entry) -> list[np.ndarray]:
    """Return the rounded frames of each episode, (frames, columns), as the page decodes them."""
    lengths = np.array(entry.episodes.steps) + 1
    changes = zlib.decompress(base64.b64decode(entry.frames), -zlib.MAX_WBITS)
    columns = np.frombuffer(changes, "<i2").reshape(-1, lengths.sum())
    return np.split(columns.cumsum(axis=1).astype(np.int16).T, np.cumsum(lengths)[:-1])
