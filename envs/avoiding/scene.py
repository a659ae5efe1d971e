"""The scene of obstacle avoidance on web pages, which scene.js draws."""

from ..live import PAGE_SIDE
from ..scene import Scene, read_script
from . import geometry


def make_scene() -> Scene:
    """Return the page's script and what it draws, in pixels; recorded values are stored in 1/20000 m."""
    return Scene(
        read_script(__package__),
        {
            "side": PAGE_SIDE,
            "radius": geometry.ROD_RADIUS * geometry.PIXELS_PER_METRE,
            "scale": geometry.PIXELS_PER_METRE,
            "origin": geometry.PAGE.origin,
            "obstacles": geometry.OBSTACLES,
            "finish": geometry.FINISH_Y,
        },
        scales=(20_000, 20_000, 20_000, 20_000, 20_000),
    )
