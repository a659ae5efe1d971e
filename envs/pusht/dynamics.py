"""Physics of Push-T: a round agent, driven by a PD controller, pushes a T across a walled table.

Numbers and quirks are the benchmark's, so that recorded demonstrations replay exactly: damping 0 (the
block stops as soon as it is not pushed), no friction on the shapes, an inertia of the stem computed from
the bar's vertices, and walls thinner than a strong push.
"""

import math
from collections.abc import Sequence

import pymunk

from . import geometry

CONTROL_HZ = 10
PHYSICS_HZ = 100
STEPS_PER_PERIOD = PHYSICS_HZ // CONTROL_HZ
POSITION_GAIN = 100.0
"""Acceleration per pixel of distance to the target, 1/s²."""
VELOCITY_GAIN = 20.0
"""Deceleration per unit of speed, 1/s: critical damping."""

_WALL_RADIUS = 2
# Positions at which the bodies are added, before a state is set. They matter: the collision tree, and
# with it the order in which contacts are solved, depends on where its leaves were inserted.
_AGENT_ADDED, _BLOCK_ADDED = (256, 400), (256, 300)


class PushTDynamics:
    """One table; build a new one for each episode, because the solver caches old contacts."""

    def __init__(self) -> None:
        self._space = pymunk.Space()
        self._space.gravity = 0, 0
        self._space.damping = 0.0
        for a, b in geometry.WALLS:
            self._space.add(pymunk.Segment(self._space.static_body, a, b, _WALL_RADIUS))
        self._agent = _add_agent(self._space)
        self._block = _add_block(self._space)
        self.agent_velocity = 0.0, 0.0
        """Velocity of the agent, pixels per second."""

    @property
    def agent(self) -> geometry.Point:
        """Centre of the agent, pixels."""
        x, y = self._agent.position
        return x, y

    @property
    def block_pose(self) -> geometry.Pose:
        """Pose of the block's origin: x, y in pixels, angle in [0, 2π]."""
        x, y, angle = self.block_unwrapped
        return x, y, angle % (2 * math.pi)

    @property
    def block_unwrapped(self) -> geometry.Pose:
        """Pose of the block's origin with all turns since the start in its angle."""
        x, y = self._block.position
        return x, y, self._block.angle

    def place(self, state: Sequence[float], position_first: bool = False) -> None:
        """Put agent and block at rest at (agent x, y, block x, y, angle).

        A body turns about its centre of gravity, so the angle must be set before the position of the
        origin, or the position moves. The benchmark's resets do it the other way round (`position_first`),
        and its published test seeds refer to the resulting states.
        """
        agent_x, agent_y, x, y, angle = state
        self._agent.velocity = self.agent_velocity = 0.0, 0.0
        self._agent.position = agent_x, agent_y
        if position_first:
            self._block.position = x, y
            self._block.angle = angle
        else:
            self._block.angle = angle
            self._block.position = x, y

    def move_block(self, pose: geometry.Pose) -> None:
        """Put the block elsewhere, at rest, without changing the agent's motion."""
        x, y, angle = pose
        self._block.velocity, self._block.angular_velocity = (0.0, 0.0), 0.0
        self._block.angle = angle
        self._block.position = x, y
        self._space.reindex_shapes_for_body(self._block)

    def settle(self) -> None:
        """Run one physics step at rest to find contacts, as the benchmark does after its resets."""
        self._space.step(1 / PHYSICS_HZ)

    def advance(self, target_x: float, target_y: float, steps: int = STEPS_PER_PERIOD) -> None:
        """Run one control period, or some physics steps, with the agent driven towards the target."""
        dt = 1 / PHYSICS_HZ
        agent, step = self._agent, self._space.step
        # Nothing pushes the agent (a kinematic body), so its motion need not be read back.
        (x, y), (vx, vy) = agent.position, self.agent_velocity
        for _ in range(steps):
            vx += (POSITION_GAIN * (target_x - x) - VELOCITY_GAIN * vx) * dt
            vy += (POSITION_GAIN * (target_y - y) - VELOCITY_GAIN * vy) * dt
            agent.velocity = vx, vy
            step(dt)
            x += vx * dt
            y += vy * dt
        self.agent_velocity = vx, vy


def _add_agent(space: pymunk.Space) -> pymunk.Body:
    body = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
    circle = pymunk.Circle(body, geometry.AGENT_RADIUS)
    body.position = _AGENT_ADDED
    space.add(body, circle)
    return body


def _add_block(space: pymunk.Space) -> pymunk.Body:
    mass = 1.0
    inertia = pymunk.moment_for_poly(mass, geometry.corners(geometry.BAR))
    body = pymunk.Body(mass, 2 * inertia)  # the bar's, twice: see the module's docstring
    shapes = [pymunk.Poly(body, geometry.corners(part)) for part in geometry.PARTS]
    body.center_of_gravity = geometry.CENTRE_OF_GRAVITY
    body.position = _BLOCK_ADDED
    space.add(body, *shapes)
    return body
