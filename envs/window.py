"""A window on the screen that shows frames at a steady rate."""

import os
from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.errors import EnvError

if TYPE_CHECKING:
    import pygame

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


class Window:
    """Window that shows frames in real time until the user closes it; the first frame opens it."""

    def __init__(self, fps: float, title: str) -> None:
        self._fps, self._title = fps, title
        self._opened: tuple[pygame.Surface, pygame.time.Clock] | None = None
        self.closed = False
        """Whether the user has closed it or pressed Escape."""

    def show(self, picture: np.ndarray) -> None:
        """Show a frame, (height, width, 3) uint8, and wait for the next one to be due.

        Raises:
            EnvError: If no window can be opened.
        """
        import pygame

        screen, clock = self._opened = self._opened or self._open(picture)
        for event in pygame.event.get():
            escape = event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE
            self.closed |= event.type == pygame.QUIT or escape
        pygame.surfarray.blit_array(screen, picture.swapaxes(0, 1))
        pygame.display.flip()
        clock.tick(self._fps)

    def _open(self, picture: np.ndarray) -> "tuple[pygame.Surface, pygame.time.Clock]":
        import pygame

        height, width, _ = picture.shape
        try:
            pygame.display.init()
            screen = pygame.display.set_mode((width, height))
        except pygame.error as error:
            raise EnvError(f"cannot open a window ({error}): use render_mode='rgb_array'") from None
        pygame.display.set_caption(self._title)
        return screen, pygame.time.Clock()

    def close(self) -> None:
        """Remove the window from the screen."""
        if self._opened is not None:
            import pygame

            pygame.display.quit()
            self._opened = None
