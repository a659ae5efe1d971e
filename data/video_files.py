"""Video files, opened with PyAV: no trust in their headers.

Damage that the decoder notices is an error. Changed bytes that still decode, as in a video without
compression and sometimes in H.264, cannot be detected.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsde_policy.errors import DemoError, NsdePolicyError, describe_problem, import_optional
from nsde_policy.files import open_regular

FORMATS = "avi,mov,matroska,gif,asf,flv,mpeg,mpegts,mpegvideo,m4v,ogg"
"""Formats that are read; others, such as playlists, can name further files and addresses."""
STRICT = "crccheck+bitstream+buffer+explode"
"""Checks of the decoder, each of which ends decoding."""
MAX_SIDE = 4096
"""Largest height and width of a stored frame."""
MAX_PIXELS = MAX_SIDE**2
"""Most pixels of a frame before it is resized."""


def read_length(path: Path) -> tuple[int, float]:
    """Return how many frames a video has and how many per second, as its header says."""
    with open_video(path) as (container, stream):
        rate_hz = float(stream.average_rate or 0)
        seconds = stream.duration * stream.time_base if stream.duration else (container.duration or 0) / 1e6
        return stream.frames or round(float(seconds) * rate_hz), rate_hz


@contextmanager
def open_video(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a video and its first stream of frames; raise `DemoError` for whatever its decoder raises."""
    av = import_optional("av", "video")
    with open_regular(path, error=DemoError) as file:
        if not file.read(1):
            raise DemoError(f"{path} is empty (0 bytes)")
        file.seek(0)
        try:
            with av.open(file, options={"format_whitelist": FORMATS}) as container:
                if not container.streams.video:
                    raise DemoError(f"{path} holds no video")
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    raise DemoError(f"{path} holds video of an unknown codec; convert it, such as to H.264")
                if not 0 < stream.width * stream.height <= MAX_PIXELS:
                    raise DemoError(
                        f"{path} has frames of {stream.width} × {stream.height} pixels, expected 1 to "
                        f"{MAX_PIXELS} pixels; it is damaged or must be made smaller first"
                    )
                stream.codec_context.options = {"err_detect": STRICT, "max_pixels": str(MAX_PIXELS)}
                stream.thread_type = "AUTO"
                yield container, stream
        except NsdePolicyError:
            raise
        except (av.error.FFmpegError, OSError, ValueError, RuntimeError) as error:
            raise DemoError(f"{path} is damaged or not a video: {describe_problem(error)}") from error
