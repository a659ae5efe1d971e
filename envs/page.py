"""Positions on a live page: a table of 512 × 512 pixels, y down, whatever units an environment uses."""

from dataclasses import dataclass

import numpy as np

PAGE_SIDE = 512.0


@dataclass(frozen=True)
class PageMap:
    """Maps positions of an environment to pixels of the page and back.

    Args:
        scale: Pixels per unit along x and y; negative if y points up.
        origin: Position of the environment that is at pixel (0, 0).
    """

    scale: tuple[float, float] = (1.0, 1.0)
    origin: tuple[float, float] = (0.0, 0.0)

    def to_page(self, points: np.ndarray) -> np.ndarray:
        """Return positions (..., 2) in pixels."""
        return self.to_page_vectors(np.asarray(points) - self.origin)

    def from_page(self, points: np.ndarray) -> np.ndarray:
        """Return pixels (..., 2) as positions of the environment."""
        return self.from_page_vectors(points) + self.origin

    def to_page_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Return differences of positions (..., 2) in pixels."""
        scaled: np.ndarray = np.asarray(vectors) * self.scale
        return scaled

    def from_page_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Return differences of pixels (..., 2) in units of the environment."""
        scaled: np.ndarray = np.asarray(vectors) / self.scale
        return scaled
