"""Pictures with captions, and their files."""

import io
import os

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

_INK = (40, 44, 52)
_BAD = (186, 54, 0)
_GOOD = (0, 134, 98)
_PAGE = (255, 255, 255)


def fit_picture(picture: np.ndarray, size: int) -> np.ndarray:
    """Scale a picture of any shape into a square, (size, size, 3) uint8, with white margins."""
    height, width = picture.shape[:2]
    scale = size / max(height, width)
    fitted = max(round(width * scale), 1), max(round(height * scale), 1)
    square = pygame.Surface((size, size))
    square.fill(_PAGE)
    scaled = pygame.transform.smoothscale(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), fitted)
    square.blit(scaled, ((size - fitted[0]) // 2, (size - fitted[1]) // 2))
    return np.ascontiguousarray(pygame.surfarray.array3d(square).swapaxes(0, 1))


def encode_picture(picture: np.ndarray, suffix: str = "png") -> bytes:
    """Encode a picture, (height, width, 3) uint8, as the content of a file, png or jpg."""
    buffer = io.BytesIO()
    pygame.image.save(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), buffer, f"picture.{suffix}")
    return buffer.getvalue()


def add_caption(
    picture: np.ndarray, *, seed: int, step: int, progress: float | None = None, success: bool | None = None
) -> np.ndarray:
    """Add a strip with text below a picture; (height + `caption_height`, width, 3) uint8."""
    width = picture.shape[1]
    height = caption_height(width)
    strip = pygame.Surface((width, height))
    strip.fill(_PAGE)
    pygame.font.init()
    font = pygame.font.Font(None, height // 2)
    words = [(f"seed {seed}", _INK), (f"step {step}", _INK)]
    if progress is not None:
        words.append((f"progress {progress:.3f}", _INK))
    if success is not None:
        words.append(("success", _GOOD) if success else ("failure", _BAD))
    for column, (text, ink) in enumerate(words):
        line = font.render(text, True, ink)
        strip.blit(line, ((column + 0.1) * width / 4, (height - line.get_height()) / 2))
    return np.concatenate([picture, pygame.surfarray.array3d(strip).swapaxes(0, 1)])


def caption_height(width: int) -> int:
    """Return the height of the strip that `add_caption` adds: 3/32 of the width, even for video encoders."""
    return 2 * round(width * 3 / 64)
