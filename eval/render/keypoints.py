"""Draw what a policy with cameras sees: its keypoints, where it expects them to go, and how sure it is."""

import colorsys

import numpy as np
import pygame

from nsde_policy.inference.spec import PolicySpec
from nsde_policy.tasks.base import Forecast

PATH_WIDTH, DOT_RADIUS = 2, 4
"""Pixels at the size of a video frame."""
SPREAD = 2.0
"""Standard deviations that the ellipse around a keypoint's last expected position reaches."""


def draw_keypoints(picture: np.ndarray, forecast: Forecast, spec: PolicySpec) -> np.ndarray:
    """Draw the keypoints of the first camera over its picture, (size, size, 3) uint8.

    A dot is where a keypoint is now, a line leads over the mean of the sampled futures, and an ellipse shows
    two standard deviations of them at the end.

    Args:
        picture: Frame of the camera as `fit_picture` enlarges it.
        forecast: Sampled futures with observations.
        spec: Sizes of the policy; the codes of each camera are x and y of its keypoints, from -1 to 1.
    """
    if forecast.obs is None:
        return picture
    count = spec.codes // len(spec.cameras)
    points = forecast.obs[..., spec.plain_dim : spec.plain_dim + count]
    points = points.reshape(*points.shape[:2], -1, 2)  # (steps + 1, futures, keypoints, 2)
    camera, size = spec.cameras[0], picture.shape[0]
    frame = np.array([camera.width, camera.height]) * (size / max(camera.width, camera.height))
    pixels = (size - frame) / 2 + (points + 1) * frame / 2  # `fit_picture` leaves margins
    centre, spread = pixels.mean(1), SPREAD * pixels[-1].std(0)
    surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
    for keypoint in range(centre.shape[1]):
        hue = keypoint / centre.shape[1]
        colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.9, 0.8))
        path = [tuple(map(float, place)) for place in centre[:, keypoint]]
        if len(path) > 1:
            pygame.draw.lines(surface, colour, False, path, PATH_WIDTH)
        width, height = np.maximum(2 * spread[keypoint], 2 * PATH_WIDTH)
        box = pygame.Rect(0, 0, round(width), round(height))
        box.center = round(path[-1][0]), round(path[-1][1])
        pygame.draw.ellipse(surface, colour, box, 1)
        pygame.draw.circle(surface, colour, path[0], DOT_RADIUS)
    return np.ascontiguousarray(pygame.surfarray.pixels3d(surface).swapaxes(0, 1))
