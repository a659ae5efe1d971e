"""ROS 2 bags, mcap or sqlite3, and the numbers and images of their messages.

Messages are decoded by the definitions that rosbags brings, never by those in a bag: rosbags compiles
definitions to Python code, and a bag may come from anywhere.
"""

import re
import sqlite3
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from nsde_policy.errors import (
    DemoError,
    MissingDependencyError,
    import_optional,
    summarize_error,
    wrap_read_errors,
)
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, open_regular

from ...source import MAX_COLUMNS
from ...types import Ints, Numbers
from ..groups import decode_image

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
ENCODINGS = {"rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "mono8": (0, 0, 0)}
"""Channels of an image that are red, green and blue."""
DEFAULT_FIELDS = {  # of other types, all numbers
    "sensor_msgs/msg/JointState": ("position",),
    "trajectory_msgs/msg/JointTrajectory": ("points[0].positions",),
}
REPAIR = "restore it from the original, or repair the recording with `mcap recover` or `ros2 bag reindex`"


SQLITE = b"SQLite format 3\0"
"""First bytes of a .db3 file."""


class Messages(NamedTuple):
    """The messages of a topic in one bag, in the order in which they were received, with times in ns."""

    received: Ints
    times: Ints  # stamps of headers, else times of reception; not decreasing
    contents: Sequence[bytes]  # encoded messages; those of images stay in the bag


class Bag:
    """A bag: a folder with metadata.yaml, or a single file; it is only open while messages are read."""

    def __init__(self, path: Path, *, use_stamps: bool = True) -> None:
        self.path, self._use_stamps = path, use_stamps
        if any(path.glob("*.zstd")):
            raise DemoError(f"{path} is compressed as a whole; decompress it with `ros2 bag convert`")
        with self._open() as reader:
            self._start, self.seconds = reader.start_time, reader.duration / 1e9
            self.topics: dict[str, Any] = reader.topics

    def index(self, topics: Collection[str], images: Collection[str]) -> dict[str, Messages]:
        """Index the messages of some topics in one pass, and keep all but the images in memory."""
        for topic in topics:
            if topic not in self.topics:
                raise DemoError(f"{self.path} has no topic {topic}; it has: {', '.join(self.topics)}")
            types = IMAGE_TYPES if topic in images else {*get_types().fielddefs} - {*IMAGE_TYPES}
            if self.topics[topic].msgtype not in types:
                standard = "a standard message such as std_msgs/msg/Float64MultiArray, or list images as such"
                expected = " or ".join(IMAGE_TYPES) if topic in images else standard
                raise DemoError(f"{self.path}: {topic} is {self.topics[topic].msgtype}, expected {expected}")
        rows: dict[str, list[tuple[int, int, bytes]]] = {topic: [] for topic in topics}
        left = get_max_unpacked()
        for topic, at, time, content in self.read(topics):
            stored = b"" if topic in images else content
            left -= len(stored)
            if left < 0:
                problem = f"{self.path} has more than {get_max_unpacked()} bytes of numbers"
                raise DemoError(f"{problem}; split the bag, or set {MAX_UNPACKED_VARIABLE}")
            rows[topic].append((at, time, stored))
        messages = {}
        for topic, each in rows.items():
            if not each or len(each) != self.topics[topic].msgcount:
                declared = f"{self.path} declares {self.topics[topic].msgcount} messages of {topic}"
                raise DemoError(f"{declared}, its files hold {len(each)}; {REPAIR}")
            received, times, contents = zip(*sorted(each, key=lambda row: row[0]), strict=True)
            if (back := np.diff(times, prepend=times[0]).min() / -1e9) > 0:
                advice = 'split the bag there, or set stamps = "receive" in dataset.toml'
                raise DemoError(f"{self.path}: the clock of {topic} goes back by {back:.3g} s; {advice}")
            messages[topic] = Messages(np.array(received), np.array(times), contents)
        return messages

    def read(
        self, topics: Collection[str], start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[str, int, int, bytes]]:
        """Read topic, time of reception, time and content of the messages received in a time span."""
        with self._open() as reader:
            connections = [connection for connection in reader.connections if connection.topic in topics]
            for connection, received, content in reader.messages(connections, start, stop):
                seconds = rest = 0
                if self._use_stamps and "header" in dict(get_types().fielddefs[connection.msgtype][1][:1]):
                    order = "<iI" if content[1] & 1 else ">iI"  # said by the 4 bytes before the message
                    seconds, rest = struct.unpack_from(order, content, 4)
                yield connection.topic, received, seconds * 10**9 + rest or received, content

    def decode(self, topic: str, received: int, content: bytes, fields: Sequence[str] = ()) -> Any:
        """Return the numbers of a message by their names, see `read_numbers`, or the pixels of an image."""
        kind = self.topics[topic].msgtype
        try:
            message = get_types().deserialize_cdr(content, kind)
            return read_pixels(message) if kind in IMAGE_TYPES else read_numbers(message, fields)
        except MissingDependencyError:
            raise
        except Exception as error:  # of many kinds: the code for a type is generated
            raise self.refuse(topic, received, summarize_error(error)) from error

    def refuse(self, topic: str, received: int, problem: str) -> DemoError:
        """Return an error about a message."""
        at = (received - self._start) / 1e9
        return DemoError(f"{self.path}: {topic} at {at:.2f} s: {problem}; correct or drop the bag")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the bag; everything that goes wrong while it is read becomes a `DemoError`."""
        library = import_optional("rosbags.rosbag2", "ros2")
        for file in self.path.iterdir() if self.path.is_dir() else [self.path]:
            if not file.is_dir():
                check_bag_file(file)
        with (
            wrap_read_errors(f"{self.path} cannot be read", REPAIR),
            library.Reader(self.path) as reader,
        ):
            yield reader


def check_bag_file(path: Path) -> None:
    """Raise `DemoError` for pipes, long metadata, and databases that compute values, which may never end.

    Views, virtual tables and generated columns compute. A table that only stores values is defined with a
    single pair of parentheses, around its columns.
    """
    with open_regular(path, 2**20 if path.suffix == ".yaml" else None, error=DemoError) as file:
        is_database = file.read(len(SQLITE)) == SQLITE
    if is_database:
        query = "SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"
        with (
            wrap_read_errors(f"{path} cannot be read", REPAIR),
            closing(sqlite3.connect(f"file:{quote(str(path))}?immutable=1", uri=True)) as database,
        ):
            definitions = dict(database.execute(query).fetchall())
        for name, definition in definitions.items():
            if not re.fullmatch(r"CREATE (TABLE|INDEX) [^()]*\([^()]*\)", definition):
                raise DemoError(f"{path} computes {name:.80} instead of storing it; {REPAIR}")


@cache
def get_types() -> Any:
    """Return the definitions of the standard messages."""
    types = import_optional("rosbags.typesys", "ros2")
    return types.get_typestore(types.Stores.LATEST)


def read_numbers(message: Any, fields: Sequence[str]) -> dict[str, float]:
    """Return the numbers of some fields, or the default ones, by their names; those of joints by joint."""
    values, numbers = dict(_find_numbers(message, "")), dict[str, float]()
    joints = getattr(message, "name", None) or getattr(message, "joint_names", None)
    fields = fields or DEFAULT_FIELDS.get(message.__msgtype__, ("",))
    for field in fields:
        starts = (f"{field}.", f"{field}[") if field else ("",)
        names = inside = [name for name in values if name == field or name.startswith(starts)]
        if isinstance(joints, list):
            names = [f"{joint}.{field}" if len(fields) > 1 else joint for joint in joints]
        if not 0 < len(inside) == len({*names}) <= MAX_COLUMNS:
            available = f"{message.__msgtype__} has {', '.join(values)[:300] or 'no numbers'}"
            raise DemoError(
                f"{len(inside)} numbers in {field!r}, expected {len(names) or 'some'}; {available}"
            )
        numbers.update(zip(names, (values[name] for name in inside), strict=True))
    return numbers


def _find_numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Return all numbers in a value with their names; text and descriptions are left out."""
    if isinstance(value, np.ndarray | list):
        for i, each in enumerate(value):
            yield from _find_numbers(each, f"{name}[{i}]")
    elif isinstance(value, int | float | np.number | np.bool_):
        yield name, float(value)
    else:
        for field in getattr(value, "__dataclass_fields__", ()):
            if field not in ("header", "layout", "__msgtype__"):
                yield from _find_numbers(getattr(value, field), f"{name}.{field}".strip("."))


def read_pixels(message: Any) -> Numbers:
    """Return an image as red, green and blue, (height, width, 3); grey images have three equal channels."""
    if message.__msgtype__ == IMAGE_TYPES[1]:
        pixels = decode_image(message.data, "the image")
        if pixels.dtype != np.uint8:
            raise DemoError(f"the image has {pixels.dtype} pixels, expected uint8")
        return pixels[..., [0, 1, 2] if pixels.shape[2] > 2 else [0, 0, 0]]
    if message.encoding not in ENCODINGS:
        raise DemoError(f"the image is encoded as {message.encoding!r:.40}, expected {', '.join(ENCODINGS)}")
    height, width, step = message.height, message.width, message.step
    channels = 1 if message.encoding == "mono8" else len(message.encoding) - 1
    if step < width * channels or message.data.size != step * height or not height * width:
        size = f"{height} rows of {step} bytes and {width} {message.encoding} pixels"
        raise DemoError(f"an image of {size} has {message.data.size} bytes")
    rows: Numbers = message.data.reshape(height, step)[:, : width * channels]
    return rows.reshape(height, width, channels)[..., list(ENCODINGS[message.encoding])]
