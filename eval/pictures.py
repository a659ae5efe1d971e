"""Pictures of episodes: tiles with a caption, and sheets of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

from nsde_policy.errors import OutputError

_INK = (40, 44, 52)
_BAD = (186, 54, 0)
_PAPER = (255, 255, 255)


@dataclass(frozen=True)
class Tile:
    """One picture of a sheet."""

    picture: np.ndarray
    """(side, side, 3) uint8; all tiles of a sheet share one side."""
    caption: str
    good: bool
    """Whether all is well; where not, the tile gets a red frame and a red caption."""


def contact_sheet(tiles: Sequence[Tile], *, columns: int, title: str) -> np.ndarray:
    """Lay tiles out in rows under a title, (height, width, 3) uint8."""
    side = len(tiles[0].picture)
    gap, caption_height, title_height = side // 16, side // 8, side // 5
    rows = -(-len(tiles) // columns)
    width = columns * (side + gap) + gap
    height = title_height + rows * (side + caption_height + gap) + gap
    sheet = pygame.Surface((width, height))
    sheet.fill(_PAPER)
    pygame.font.init()
    _write(sheet, title, (gap, title_height // 3), round(title_height * 0.62), _INK, width - 2 * gap)
    for i, tile in enumerate(tiles):
        x = gap + (i % columns) * (side + gap)
        y = title_height + gap + (i // columns) * (side + caption_height + gap)
        sheet.blit(pygame.surfarray.make_surface(tile.picture.swapaxes(0, 1)), (x, y))
        if not tile.good:
            pygame.draw.rect(sheet, _BAD, (x, y, side, side), width=max(side // 64, 1))
        at = (x, y + side + caption_height // 5)
        _write(sheet, tile.caption, at, round(caption_height * 0.72), _INK if tile.good else _BAD, side)
    return np.ascontiguousarray(pygame.surfarray.array3d(sheet).swapaxes(0, 1))


def _write(
    sheet: pygame.Surface,
    text: str,
    at: tuple[int, int],
    height: int,
    colour: tuple[int, int, int],
    width: int,
) -> None:
    """Write one line, made smaller where it would be wider than `width`."""
    while height > 6 and pygame.font.Font(None, height).size(text)[0] > width:
        height -= 1
    sheet.blit(pygame.font.Font(None, height).render(text, True, colour), at)


def save_png(picture: np.ndarray, path: Path) -> None:
    """Write an image array as PNG, through a temporary file, so that no half picture is left."""
    check_png(path)
    partial = path.with_name(f".{path.stem}.partial.png")
    try:
        pygame.image.save(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), str(partial))
        partial.replace(path)
    except (OSError, pygame.error) as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error}") from error


def check_png(path: Path) -> None:
    """Refuse a path that no picture can be written to, before the work for it is done; makes its folder."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise OutputError(f"{path} is no name for a picture; expected one that ends in .png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path} cannot be written: permission denied")
