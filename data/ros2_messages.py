"""Numbers and images of ROS 2 messages.

Messages are decoded by the definitions that rosbags brings, never by those in a bag: rosbags compiles
definitions to Python code, and a bag may come from anywhere.
"""

import io
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import DemoError, import_optional, summarize_error

COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
IMAGE_TYPES = ("sensor_msgs/msg/Image", COMPRESSED_IMAGE)
SWITCH = "std_msgs/msg/Bool"
MARKER_TYPES = (SWITCH, "std_msgs/msg/String", "std_msgs/msg/Empty")
"""Messages that divide a bag into episodes."""
ENCODINGS = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
}
"""Number of channels of an image, and which of them are red, green and blue."""
DEFAULT_FIELDS = {
    "sensor_msgs/msg/JointState": ("position",),
    "trajectory_msgs/msg/JointTrajectory": ("points.0.positions",),
}
"""Fields that are read by default; of other types all that are numbers."""
DESCRIPTIONS = ("header", "layout", "__msgtype__")
"""Fields that describe a message."""


@cache
def get_types() -> Any:
    """Return the definitions of the standard messages."""
    types = import_optional("rosbags.typesys", "ros2")
    return types.get_typestore(types.Stores.LATEST)


def is_known(msgtype: str) -> bool:
    """Return whether messages of a type can be decoded."""
    return msgtype in get_types().fielddefs


def has_header(msgtype: str) -> bool:
    """Return whether messages of a type start with a header, which has a time stamp."""
    fields = get_types().fielddefs[msgtype][1] if is_known(msgtype) else []
    return bool(fields) and fields[0][0] == "header"


def decode_message(content: bytes, msgtype: str) -> Any:
    """Decode a message; raise `DemoError` if its bytes do not fit its type."""
    try:
        return get_types().deserialize_cdr(content, msgtype)
    except Exception as error:  # of many kinds: the code for a type is generated
        raise DemoError(f"a damaged {msgtype}: {summarize_error(error)}") from error


def read_numbers(message: Any, fields: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a message by their names.

    Args:
        message: Decoded message.
        fields: Fields to read, dots between levels, such as pose.position; none for the default. Arrays of
            messages that name joints have one column for each joint, called by its name.
    """
    fields = fields or DEFAULT_FIELDS.get(message.__msgtype__, ("",))
    joints = getattr(message, "name", None) or getattr(message, "joint_names", None) or ()
    numbers: dict[str, float] = {}
    for path in fields:
        value = _follow(message, path)
        if not isinstance(joints, list):
            numbers.update(_find_numbers(value, path))
        elif len(value) != len(joints) or len(set(joints)) != len(joints):
            raise DemoError(f"{path} has {len(value)} numbers for {len(joints)} joints: {', '.join(joints)}")
        else:
            end = f".{path}" if len(fields) > 1 else ""
            numbers.update({f"{joint}{end}": float(each) for joint, each in zip(joints, value, strict=True)})
    if not numbers:
        raise DemoError(f"a {message.__msgtype__} without numbers")
    return numbers


def _follow(message: Any, path: str) -> Any:
    """Return the value at a path."""
    value = message
    for part in path.split(".") if path else ():
        try:
            value = value[int(part)] if part.isdecimal() else getattr(value, part)
        except (AttributeError, LookupError, TypeError):
            known = ", ".join(_find_fields(message))
            raise DemoError(f"no {path} in a {message.__msgtype__} with the fields {known}") from None
    return value


def _find_fields(message: Any) -> list[str]:
    return [name for name in getattr(message, "__dataclass_fields__", ()) if name not in DESCRIPTIONS]


def _find_numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Return all numbers in a value with their names; text is left out."""
    if isinstance(value, np.ndarray | list):
        for i, each in enumerate(value):
            yield from _find_numbers(each, f"{name}[{i}]")
    elif isinstance(value, int | float | np.number | np.bool_):
        yield name, float(value)
    else:
        for field in _find_fields(value):
            yield from _find_numbers(getattr(value, field), f"{name}.{field}".strip("."))


def read_pixels(message: Any) -> npt.NDArray[np.uint8]:
    """Return an image as red, green and blue, (height, width, 3); grey images have three equal channels."""
    if message.__msgtype__ == COMPRESSED_IMAGE:
        pil = import_optional("PIL.Image", "ros2")
        try:
            picture = pil.open(io.BytesIO(message.data.tobytes()), formats=("JPEG", "PNG")).convert("RGB")
        except Exception as error:  # of many kinds; PIL refuses huge pictures too
            raise DemoError(
                f"a {message.format!r:.40} image that is no JPEG or PNG: {error!s:.100}"
            ) from None
        return np.asarray(picture)
    if message.encoding not in ENCODINGS:
        raise DemoError(f"an image is encoded as {message.encoding!r:.40}, expected {', '.join(ENCODINGS)}")
    channels, order = ENCODINGS[message.encoding]
    height, width, step = message.height, message.width, message.step
    if step < width * channels or message.data.size != step * height or not height * width:
        raise DemoError(
            f"an image of {height} rows of {step} bytes and {width} {message.encoding} pixels has "
            f"{message.data.size} bytes"
        )
    rows = message.data.reshape(height, step)[:, : width * channels]
    pixels: npt.NDArray[np.uint8] = rows.reshape(height, width, channels)[..., list(order)]
    return pixels
