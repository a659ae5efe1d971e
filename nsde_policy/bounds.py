"""Types of settings with bounds, which `check_bounds` checks; bounded numbers must be finite too."""

from typing import Annotated, Literal

from msgspec import Meta

MAX_INTEGER, MAX_COUNT, MAX_SIZE, MAX_LENGTH, MAX_NUMBER = 2**63 - 1, 10**9, 2**16, 4096, 1e30
"""Upper bounds, far above useful settings: more would take for ever, fill the memory, or overflow."""
MIN_RATE, MAX_RATE = 1e-3, 1e6
"""Bounds of frames per second, far outside what a robot does: others are mistakes, and would overflow."""

Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
"""Indices and other integers that may be large."""
SeedNumber = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
"""Steps and other repetitions."""
Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
"""Units, layers and samples, with which the memory grows."""
Length = Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
"""States and actions of windows and plans."""
Number = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Positive = Annotated[float, Meta(gt=0, le=MAX_NUMBER)]
NonNegative = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
PixelShift = Annotated[int, Meta(ge=0, le=64)]
Occluder = Literal["square", "moving", "yellow", "disc", "bar", "stripes"]
"""What hides a part of a camera's picture."""
