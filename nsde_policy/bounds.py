"""Types of settings with bounds, which `BaseConfig` checks; it also requires bounded numbers to be finite."""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
