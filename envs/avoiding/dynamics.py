"""Motion of the rod: a critically damped second-order lag behind the commanded position.

The arm of the benchmark lags its command; perfect following would touch where the real arm does not. Between
two commands the motion has a closed form, so a control period is computed exactly.
"""

import math

PERIOD_S = 0.035
CONTROL_RATE_HZ = 1 / PERIOD_S
"""Control periods per second, 28.57."""
NATURAL_FREQUENCY = 40.0
"""ω of ẍ = ω² (command − x) − 2 ω ẋ, rad/s: at 0.25 m/s the rod ends a period 8 mm behind its command, and
cuts a right angle by 4.7 mm."""

_DECAY = math.exp(-NATURAL_FREQUENCY * PERIOD_S)
_RATE = NATURAL_FREQUENCY * PERIOD_S


def follow(position: float, velocity: float, command: float) -> tuple[float, float]:
    """Return position and velocity of one axis after a control period with a constant command."""
    error = position - command
    slope = velocity + NATURAL_FREQUENCY * error
    after = (error + slope * PERIOD_S) * _DECAY
    return command + after, (velocity - _RATE * slope) * _DECAY
