"""A window on the screen that shows frames at a steady rate."""

import os

import numpy as np

from nsde_policy.errors import EnvInputError

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame


class Window:
    """Window that shows frames in real time until the user closes it."""

    def __init__(self, size: tuple[int, int], fps: float, title: str) -> None:
        try:
            pygame.display.init()
            self._screen = pygame.display.set_mode(size)
        except pygame.error as error:
            raise EnvInputError(f"cannot open a window ({error}): use render_mode='rgb_array'") from None
        pygame.display.set_caption(title)
        self._clock = pygame.time.Clock()
        self._fps = fps
        self.closed = False
        """Whether the user has closed it or pressed Escape."""

    def show(self, picture: np.ndarray) -> None:
        """Show a frame, (height, width, 3) uint8, and wait for the next one to be due."""
        for event in pygame.event.get():
            escape = event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE
            self.closed |= event.type == pygame.QUIT or escape
        pygame.surfarray.blit_array(self._screen, picture.swapaxes(0, 1))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Remove the window from the screen."""
        pygame.display.quit()
