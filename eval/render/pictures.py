"""Pictures with captions, and their files."""

import io
import os

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

PixelPosition = tuple[float, float]
InkColour = tuple[int, int, int]

_INK = (40, 44, 52)
_BAD = (186, 54, 0)
_GOOD = (0, 134, 98)
_ACCENT = (0, 114, 178)
_TRACK = (226, 228, 232)
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


_SMOOTHING = 3
"""Captions are drawn this much larger and averaged down."""


def add_caption(
    picture: np.ndarray,
    *,
    seed: int,
    step: int,
    progress: float | None = None,
    threshold: float | None = None,
    success: bool | None = None,
) -> np.ndarray:
    """Add a strip with text and a progress bar below a picture; (height + `caption_height`, width, 3) uint8.

    The bar has a line at `threshold`, the progress of a success, and the colour of the outcome at the end.
    """
    width = picture.shape[1] * _SMOOTHING
    height = caption_height(picture.shape[1]) * _SMOOTHING
    strip = pygame.Surface((width, height))
    strip.fill(_PAGE)
    pygame.font.init()
    unit = width / 512
    font = pygame.font.Font(None, round(24 * unit))
    colour = {None: _ACCENT, True: _GOOD, False: _BAD}[success]

    def write(text: str, x: float, ink: InkColour) -> None:
        line = font.render(text, True, ink)
        strip.blit(line, (x * unit, (height - line.get_height()) / 2 + unit))

    write(f"seed {seed}", 12, _INK)
    write(f"step {step}", 138, _INK)
    if progress is not None:
        left, top, length, thick = 236 * unit, height / 2 - 6 * unit, 180 * unit, 12 * unit
        round_ends = {"border_radius": round(3 * unit)}
        pygame.draw.rect(strip, _TRACK, (left, top, length, thick), **round_ends)
        if progress > 0:
            pygame.draw.rect(strip, colour, (left, top, length * progress, thick), **round_ends)
        if threshold is not None:
            line = left + length * threshold
            pygame.draw.rect(strip, _INK, (line - unit, top - 5 * unit, 2 * unit, thick + 10 * unit))
        write(f"{progress:.3f}", 424, _INK if success is None else colour)
    if success is not None:
        _draw_mark(strip, success, (488 * unit, height / 2), 11 * unit)
    small = pygame.transform.smoothscale(strip, (width // _SMOOTHING, height // _SMOOTHING))
    return np.concatenate([picture, pygame.surfarray.array3d(small).swapaxes(0, 1)])


def caption_height(width: int) -> int:
    """Return the height of the strip that `add_caption` adds: 3/32 of the width, even for video encoders."""
    return 2 * round(width * 3 / 64)


def _draw_mark(surface: pygame.Surface, good: bool, centre: PixelPosition, radius: float) -> None:
    """Draw a disc with a tick or a cross, distinct without colours."""
    pygame.draw.circle(surface, _GOOD if good else _BAD, centre, radius)
    strokes = [[(-5, 0.5), (-1.5, 4), (5, -4)]] if good else [[(-4, -4), (4, 4)], [(-4, 4), (4, -4)]]
    for stroke in strokes:
        points = [(centre[0] + x * radius / 11, centre[1] + y * radius / 11) for x, y in stroke]
        pygame.draw.lines(surface, _PAGE, False, points, round(radius / 4))
