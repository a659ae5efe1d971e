"""Images that formats store as JPEG or PNG, one per frame."""

import io
import math

import numpy as np

from nsde_policy.data.types import Numbers
from nsde_policy.errors import DemoError, import_optional, summarize_error
from nsde_policy.files import get_max_unpacked

SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def is_encoded(content: Numbers | bytes) -> bool:
    """Return whether bytes begin like a JPEG or a PNG."""
    return bytes(content[:8]).startswith(SIGNATURES)


def decode_image(content: Numbers | bytes, name: str) -> Numbers:
    """Decode a JPEG or PNG, which padding may follow, to (height, width, channels).

    Raises:
        DemoError: If it is damaged, or larger than arrays may be.
    """
    pillow = import_optional("PIL.Image", "plot")
    try:
        with pillow.open(io.BytesIO(bytes(content)), formats=("JPEG", "PNG")) as image:
            if math.prod(image.size) * 4 > get_max_unpacked():
                raise DemoError(f"{name} is an image of {image.size} pixels, more than arrays may have")
            pixels = np.asarray(image.convert("RGB") if image.mode in ("P", "CMYK", "YCbCr") else image)
    except DemoError:
        raise
    except Exception as error:  # of many kinds, for damaged files
        raise DemoError(
            f"{name} is not an undamaged JPEG or PNG ({summarize_error(error)}); restore it from the original"
        ) from error
    return pixels if pixels.ndim == 3 else pixels[..., None]
