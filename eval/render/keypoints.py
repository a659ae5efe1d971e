"""What a policy with cameras sees: its keypoints, where it expects them to go, and how sure it is."""

import colorsys
from dataclasses import dataclass

import numpy as np
import pygame

from nsde_policy.encoders import get_encoder
from nsde_policy.planner.interface import PolicySpec
from nsde_policy.tasks.drawing import Forecast

PATH_WIDTH, DOT_RADIUS, END_RADIUS = 2, 4, 1
"""Pixels at the size of a video frame: the mean path, where a keypoint is, and where a future ends."""
END_OPACITY, SMOOTHING = 70, 2
"""Opacity of these ends, of 255, and how much larger everything is drawn before it is averaged down."""
SPREAD = 2.0
"""Standard deviations that the ellipse around a keypoint's last expected position reaches."""


@dataclass(frozen=True)
class KeypointFutures:
    """Keypoints of one camera in sampled futures; positions are x and y in its frame, from 0 to 1."""

    mean: np.ndarray
    """Mean over the futures, the present first, (steps + 1, keypoints, 2)."""
    ends: np.ndarray
    """Where each future ends, (futures, keypoints, 2)."""
    spread: np.ndarray
    """`SPREAD` standard deviations of these ends, (keypoints, 2)."""


def find_keypoint_futures(obs: np.ndarray, spec: PolicySpec, camera: int = 0) -> KeypointFutures | None:
    """Return the keypoints of a camera in sampled futures; None if the features are not positions.

    Args:
        obs: Observations of the futures, (steps + 1, futures, obs_dim).
        spec: Sizes of the policy.
        camera: Index of the camera.
    """
    if not get_encoder(spec.encoder).features_are_positions:
        return None
    count = spec.image_features // len(spec.cameras)
    first = spec.plain_dim + camera * count
    points = (obs[..., first : first + count] + 1) / 2
    points = points.reshape(*points.shape[:2], -1, 2)
    return KeypointFutures(points.mean(1), points[-1], SPREAD * points[-1].std(0))


def draw_keypoints(picture: np.ndarray, forecast: Forecast, spec: PolicySpec) -> np.ndarray:
    """Draw the keypoints of the first camera over its picture, (size, size, 3) uint8.

    A large dot is where a keypoint is now, a line leads over the mean of the sampled futures, small dots are
    their ends, and an ellipse shows two standard deviations of these.

    Args:
        picture: Frame of the camera as `fit_picture` enlarges it.
        forecast: Sampled futures with observations.
        spec: Sizes of the policy.
    """
    found = None if forecast.obs is None else find_keypoint_futures(forecast.obs, spec)
    if found is None:
        return picture
    camera, size = spec.cameras[0], SMOOTHING * picture.shape[0]
    frame = np.array([camera.width, camera.height]) * (size / max(camera.width, camera.height))
    margin = (size - frame) / 2  # that `fit_picture` leaves
    mean, ends, spread = margin + found.mean * frame, margin + found.ends * frame, found.spread * frame
    layer = pygame.Surface((size, size), pygame.SRCALPHA)
    hues = np.arange(mean.shape[1]) / mean.shape[1]
    colours = [[round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.9, 0.8)] for hue in hues]
    for keypoint, colour in enumerate(colours):
        for end in ends[:, keypoint].tolist():
            pygame.draw.circle(layer, (*colour, END_OPACITY), end, SMOOTHING * END_RADIUS)
    for keypoint, colour in enumerate(colours):
        path = [tuple(map(float, place)) for place in mean[:, keypoint]]
        if len(path) > 1:
            pygame.draw.lines(layer, colour, False, path, SMOOTHING * PATH_WIDTH)
        width, height = np.maximum(2 * spread[keypoint], 2 * SMOOTHING * PATH_WIDTH)
        box = pygame.Rect(0, 0, round(width), round(height))
        box.center = round(path[-1][0]), round(path[-1][1])
        pygame.draw.ellipse(layer, colour, box, SMOOTHING)
        pygame.draw.circle(layer, colour, path[0], SMOOTHING * DOT_RADIUS)
    surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
    surface.blit(pygame.transform.smoothscale(layer, surface.get_size()), (0, 0))
    return np.ascontiguousarray(pygame.surfarray.pixels3d(surface).swapaxes(0, 1))
