"""Check what a planner, a robot or a callback gives, and copy it as finite numbers; needs numpy only."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nsde_policy.errors import PlanError, PolicyInputError

from .planner import Plan, PolicySpec

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""Larger numbers are infinite in float32, the type of the states."""


def to_floats(values: Any, name: str) -> np.ndarray:
    """Convert an array, a tensor or a list to float64, or raise `PolicyInputError` starting with `name`."""
    try:
        detach = getattr(values, "detach", None)  # a tensor, of a library that need not be installed
        if callable(detach):
            values = detach().cpu()
            values = values if values.is_complex() else values.double()  # numpy has no bfloat16
        if np.iscomplexobj(values):
            raise TypeError("complex numbers")
        return np.asarray(values, dtype=np.float64)
    except Exception:  # the conversion is code of the object, which may raise anything
        raise PolicyInputError(f"{name} must hold numbers, got {describe_value(values)}") from None


def describe_value(value: object) -> str:
    """Format a value and its type for an error message, on one line."""
    return f"{type(value).__name__} {' '.join(repr(value).split()):.60}"


def check_array(values: object, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Copy finite numbers of a shape as float64, or raise a `PolicyInputError` that starts with `name`."""
    array = np.array(to_floats(values, name))
    if array.shape != shape:
        raise PolicyInputError(f"{name} must have shape {shape}, got {array.shape}")
    if not is_finite(array):
        raise PolicyInputError(f"{name} must be finite, got {array.tolist()!s:.200}")
    return array


def is_finite(array: np.ndarray) -> bool:
    """Return whether all numbers are finite in float32."""
    return bool((np.abs(array) <= LARGEST_FLOAT32).all())


def check_plan(plan: object, spec: PolicySpec, *, steps: int | None = None) -> Plan:
    """Copy a plan, of any number of `steps` if that is None; a planner may change its own arrays later.

    Raise `PlanError` if it is not a `Plan`, has a wrong shape, or holds anything but finite float32 numbers.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"the planner returned {type(plan).__name__}, expected Plan")
    try:
        arrays = [None if array is None else np.array(to_floats(array, "plan")) for array in plan]
    except PolicyInputError as error:
        raise PlanError(str(error)) from None
    actions, _, _, candidates = arrays
    if actions is None or actions.ndim != 2 or not len(actions):
        shape = None if actions is None else actions.shape
        raise PlanError(f"planned actions have shape {shape}, expected (steps, {spec.act_dim})")
    count = steps or len(actions)
    shapes = {
        "actions": (count, spec.act_dim),
        "states": (count + 1, spec.dim),
        "std": (count, spec.act_dim),
        "candidates": (0 if candidates is None else len(candidates), count + 1, spec.dim),
    }
    for (name, shape), values in zip(shapes.items(), arrays, strict=True):
        if values is not None and values.shape != shape:
            raise PlanError(f"planned {name} have shape {values.shape}, expected {shape}")
        if values is not None and not is_finite(values):
            raise PlanError(
                f"planned {name} are not finite in float32; check that the states are in the units of the "
                "demonstrations, and that training did not diverge"
            )
    return Plan(actions, *arrays[1:])


def hold_action(last: np.ndarray, delta_columns: Sequence[int]) -> np.ndarray:
    """Return the action that stays where the last one (act_dim,) led; changes per period are zero."""
    held = last.copy()
    held[list(delta_columns)] = 0.0
    return held


def round_binary(actions: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Round the columns of actions (..., act_dim) that take two values to the nearer one.

    Round what is sent, not what a policy is told about its last action: a policy that slowly changes its mind
    would begin again in every period.
    """
    rounded = actions.copy() if spec.binary else actions
    for column, low, high in spec.binary:
        rounded[..., column] = np.where(2 * actions[..., column] > low + high, high, low)
    return rounded
