"""The scene of Push-T on web pages, which scene.js draws."""

from ..scene import Scene, read_script
from . import geometry


def make_scene() -> Scene:
    """Return the table, block and goal; poses are in px, from −256 to 768, angles in rad."""
    return Scene(
        read_script(__package__),
        {
            "side": geometry.SIDE,
            "outline": geometry.OUTLINE,
            "goal": geometry.GOAL_POSE,
            "radius": geometry.AGENT_RADIUS,
            "centre": geometry.CENTRE_OF_GRAVITY,
        },
        scales=(32, 32, 32, 32, 4096, 20_000),
    )
