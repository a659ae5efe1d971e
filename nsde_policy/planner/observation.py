"""Convert and check what comes from a robot, once: observations, camera frames and vectors; needs numpy only.

An observation is an array, a tensor, a list of numbers, or a dict of named observations, which the policy's
encoder turns into one vector (`encoders/`). What these functions return is trusted everywhere else.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nsde_policy.core.spec import ENVIRONMENT_KEY, STATE_KEY, CameraSpec
from nsde_policy.data.frames import describe_frame
from nsde_policy.errors import PolicyInputError
from nsde_policy.planner.calibration import LOOKS, CameraRange
from nsde_policy.planner.spec import PolicySpec

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""Larger numbers are infinite in float32, the type of the states."""
LARGEST_ANGLE = 4 * math.pi
"""Angles beyond two turns are taken for degrees or for another column."""
FAR_OUTSIDE = 1.0
"""Largest plausible distance from the demonstrated range, as a multiple of that range."""
TINY_FRACTION = 0.02
"""If all values are outside the demonstrated range and below this fraction of it, the unit is wrong."""
MARGIN_FACTOR = 3.0
"""Brightness, contrast and detail may be lower and higher than in the demonstrations by this factor."""
NOISE_ALLOWANCE = 16.0
"""Detail that noise on every pixel may add, grey values; noise of 5 % of the range adds 14."""
PROBLEMS = {
    "brightness": ("black or too dark", "white or too bright"),
    "contrast": ("almost uniform", "of too much contrast"),
    "detail": ("blurred", "noise"),
}
"""What a frame is called if a value is too low or too high."""
FLOAT_ADVICE = (
    "; convert values from 0 to 1 by (255 * frame).round().astype(numpy.uint8), those from 0 to 255 by "
    "frame.astype(numpy.uint8)"
)
"""How to convert a frame of floats."""

Encode = Callable[[Mapping[str, object]], np.ndarray]
"""Encodes a dict of named observations as a vector, or as one row per row of a batch."""


def to_floats(given: Any, name: str = "observation") -> np.ndarray:
    """Convert an array, a tensor or a list to float64.

    Raises:
        PolicyInputError: If it does not hold real numbers; the message begins with `name`.
    """
    try:
        detach = getattr(given, "detach", None)  # a tensor, of a library that need not be installed
        if callable(detach):
            given = detach().cpu()
            given = given if given.is_complex() else given.double()  # numpy has no bfloat16
        if np.iscomplexobj(given):
            raise TypeError("complex numbers")
        return np.asarray(given, dtype=np.float64)
    except Exception:  # the conversion is code of the object, which may raise anything
        raise PolicyInputError(f"{name} must hold numbers, got {describe_value(given)}") from None


def describe_value(given: object) -> str:
    """Format a value and its type for an error message, on one line."""
    try:
        text = " ".join(repr(given).split())
    except Exception:  # `__repr__` too is code of the object
        text = "that cannot be printed"
    return f"{type(given).__name__} {text:.60}"


def check_vector(values: object, size: int, name: str) -> np.ndarray:
    """Copy a vector of finite numbers, (size,), or raise a `PolicyInputError` that starts with `name`."""
    array = np.array(to_floats(values, name))
    if array.shape != (size,):
        raise PolicyInputError(f"{name} must have shape ({size},), got {array.shape}")
    if not is_finite(array):
        raise PolicyInputError(f"{name} must be finite, got {array.tolist()}")
    return array


def is_finite(array: np.ndarray) -> bool:
    """Return whether all numbers are finite in float32."""
    return bool((np.abs(array) <= LARGEST_FLOAT32).all())


def find_non_finite(obs: np.ndarray) -> str | None:
    """Return what is wrong with observations that are not finite in float32, or None."""
    return None if is_finite(obs) else f"observation must be finite, got {obs.tolist()!s:.200}"


def check_finite_observation(obs: np.ndarray) -> np.ndarray:
    """Return observations, or raise `PolicyInputError` if they are not finite in float32."""
    if (reason := find_non_finite(obs)) is not None:
        raise PolicyInputError(reason)
    return obs


def encode_plain(observations: Mapping[str, object], spec: PolicySpec) -> np.ndarray:
    """Encode the low-dimensional part of named observations, (plain_dim,) or a batch (B, plain_dim)."""
    from nsde_policy.encoders import get_encoder  # a plug-in, found when a policy needs it

    numbers = {
        key: to_floats(observations[key]) for key in (STATE_KEY, ENVIRONMENT_KEY) if key in observations
    }
    return to_floats(get_encoder(spec.encoder).encode({**observations, **numbers}))


def convert_observation(given: object, spec: PolicySpec, encode: Encode | None = None) -> np.ndarray:
    """Return one observation, (obs_dim,), which may not be finite, or raise `PolicyInputError`.

    Args:
        given: Observation in any form that this module accepts.
        spec: Sizes and ranges of the policy.
        encode: Encodes named observations; by default the encoder of `spec`, which knows no images.
    """
    array = _to_vector(given, spec, encode)
    if array.shape != (spec.obs_dim,):
        raise PolicyInputError(f"observation must have shape ({spec.obs_dim},), got {array.shape}")
    return array


def convert_plain_observation(given: Mapping[str, object], spec: PolicySpec) -> np.ndarray:
    """Return the low-dimensional part of named observations, (plain_dim,); frames are not encoded."""
    plain = encode_plain(given, spec)
    if plain.shape != (spec.plain_dim,):
        raise PolicyInputError(f"{STATE_KEY} must have shape ({spec.plain_dim},), got {plain.shape}")
    return plain


def parse_observation(given: object, spec: PolicySpec, encode: Encode | None = None) -> np.ndarray:
    """Return one finite observation, (obs_dim,), or raise `PolicyInputError`; see `convert_observation`."""
    return check_finite_observation(convert_observation(given, spec, encode))


def parse_single_observation(
    given: object, spec: PolicySpec, encode: Encode | None = None
) -> tuple[np.ndarray, bool]:
    """Return one finite observation, (obs_dim,), and whether it was a batch of one, as LeRobot sends it."""
    array = _to_vector(given, spec, encode)
    is_batch = array.shape == (1, spec.obs_dim)
    return parse_observation(array[0] if is_batch else array, spec), is_batch


def parse_observations(given: object, spec: PolicySpec, encode: Encode | None = None) -> np.ndarray:
    """Return one observation (obs_dim,) or a batch (B, obs_dim), finite, or raise `PolicyInputError`."""
    array = _to_vector(given, spec, encode)
    if array.ndim not in (1, 2) or array.shape[-1] != spec.obs_dim or not len(array):
        raise PolicyInputError(
            f"observations must have shape ({spec.obs_dim},) or (B, {spec.obs_dim}), got {array.shape}"
        )
    return check_finite_observation(array)


def _to_vector(given: Any, spec: PolicySpec, encode: Encode | None) -> np.ndarray:
    if not isinstance(given, Mapping):
        if spec.cameras and np.shape(given)[-1:] != (spec.obs_dim,):
            raise PolicyInputError(
                f"this policy needs a dict of observations: {STATE_KEY!r} ({spec.plain_dim},) and "
                + ", ".join(f"{camera.name!r} {camera.shape} uint8" for camera in spec.cameras)
                + f"; got {describe_value(given)}"
            )
        return to_floats(given)
    if encode is not None:
        return encode(given)
    if spec.cameras:
        raise PolicyInputError("images need the encoder of a policy: give them to its select_action")
    return encode_plain(given, spec)


def find_implausible(obs: np.ndarray, spec: PolicySpec) -> str | None:
    """Return why one observation (obs_dim,) is implausible compared with the demonstrations, or None.

    It detects degrees instead of radians, another unit of length, and columns in another order, as far as a
    single observation shows them.
    """
    tiny = compared = 0
    plain = obs[: spec.plain_dim].tolist()  # codes of images are always in the range of the frame
    for column, (value, low, high) in enumerate(zip(plain, spec.low, spec.high, strict=False)):
        if column in spec.circular:
            if abs(value) > LARGEST_ANGLE:
                return (
                    f"obs[{column}] must be an angle in radians, got {value:g}; "
                    "check for degrees or columns in another order"
                )
            continue
        slack = FAR_OUTSIDE * (high - low)
        if not low - slack <= value <= high + slack:
            return (
                f"obs[{column}] is {value:g}, but was in [{low:g}, {high:g}] in the demonstrations; "
                "check units and column order"
            )
        compared += 1
        tiny += not low <= value <= high and abs(value) < TINY_FRACTION * max(abs(low), abs(high))
    if compared >= 3 and tiny == compared:
        return (
            f"all values are far below the demonstrated range, got {obs.tolist()}; "
            "check units (metres instead of pixels?)"
        )
    return None


def check_plausible(obs: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Return `obs`, or raise `PolicyInputError` with the reason if it is implausible."""
    if (reason := find_implausible(obs, spec)) is not None:
        raise PolicyInputError(f"implausible observation: {reason}")
    return obs


def parse_frames(
    observations: Mapping[str, object], cameras: tuple[CameraSpec, ...], *, is_batch: bool = False
) -> list[np.ndarray]:
    """Return the frames of all cameras, each (n, height, width, 3) uint8; n is 1 for a single observation.

    Raises:
        PolicyInputError: If a frame is missing, or has another shape or type than the demonstrations.
    """
    frames = [parse_frame(observations, camera, is_batch=is_batch) for camera in cameras]
    for camera, frame in zip(cameras, frames, strict=True):
        if len(frame) != len(frames[0]):
            raise PolicyInputError(
                f"{camera.name} has {len(frame)} rows, {cameras[0].name} has {len(frames[0])}"
            )
    return frames


def parse_frame(
    observations: Mapping[str, object], camera: CameraSpec, *, is_batch: bool = False
) -> np.ndarray:
    """Return the frame of one camera, (n, height, width, 3) uint8, contiguous and writable.

    Args:
        observations: Observations by name.
        camera: Camera whose frame is wanted.
        is_batch: Whether frames have another axis in front, (n, height, width, 3).

    Raises:
        PolicyInputError: If it is missing, or has another shape or type than the demonstrations; the message
            starts with the name of the camera.
    """
    given = observations.get(camera.name)
    if given is None:
        found = ", ".join(repr(key) for key in observations if key != camera.name) or "nothing"
        raise PolicyInputError(f"{camera.name} is missing, found {found:.120}")
    try:
        detach = getattr(given, "detach", None)  # a tensor, of a library that need not be installed
        frame = np.asarray(detach().cpu() if callable(detach) else given)
    except Exception:  # the conversion is code of the object, which may raise anything
        wanted = f"{camera.name} must be an array {camera.shape} uint8"
        raise PolicyInputError(f"{wanted}, got {describe_value(given)}") from None
    if frame.dtype != np.uint8:
        problem = f"{camera.name} must hold uint8 from 0 to 255, got {frame.dtype!s:.40}"
        raise PolicyInputError(problem + (FLOAT_ADVICE if frame.dtype.kind == "f" else ""))
    if frame.shape[-3:] != camera.shape or frame.ndim != (4 if is_batch else 3) or not len(frame):
        shape = "(n, {}, {}, {})".format(*camera.shape) if is_batch else camera.shape
        hint = "; move the colours to the last axis" if frame.shape[-3:-2] == (3,) else ""
        if frame.shape[-3:] == camera.shape:
            hint = f"; give {STATE_KEY} and frames both with an axis of rows in front, or both without"
        raise PolicyInputError(f"{camera.name} must have shape {shape}, got {frame.shape}{hint}")
    return np.require(frame if is_batch else frame[None], requirements=["C", "W"])


def find_implausible_frame(frame: np.ndarray, seen: CameraRange) -> str | None:
    """Return why a frame (height, width, 3) is implausible compared with the demonstrations, or None.

    It detects covered lenses, dead cameras, over-exposure and broken decoding, not another scene. The text
    starts with the name of the camera.
    """
    low, high = np.array(seen.low), np.array(seen.high)
    least = low / MARGIN_FACTOR
    most = high * MARGIN_FACTOR + np.array([0.0, 0.0, NOISE_ALLOWANCE])
    most[0] = 255 - (255 - high[0]) / MARGIN_FACTOR
    look = describe_frame(frame)
    for column, (name, value) in enumerate(zip(LOOKS, look.tolist(), strict=True)):
        if least[column] <= value <= most[column]:
            continue
        problem = PROBLEMS[name][int(value > most[column])]
        return (
            f"{seen.camera} is {problem}: its {name} is {value:.3g}, in the demonstrations "
            f"{low[column]:.3g} to {high[column]:.3g}; check lens, exposure and cable of the camera"
        )
    return None


def check_plausible_frames(frames: list[np.ndarray], seen: tuple[CameraRange, ...]) -> None:
    """Raise `PolicyInputError` if a frame is implausible; frames of each camera are (n, height, width, 3)."""
    for rows, known in zip(frames, seen, strict=False):  # nothing was seen without a calibration
        for frame in rows:
            if (problem := find_implausible_frame(frame, known)) is not None:
                raise PolicyInputError(problem)
