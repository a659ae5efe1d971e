"""ROS 2 bags of a made-up arm, written by `rosbags`."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

TYPES = get_typestore(Stores.ROS2_HUMBLE)
START = 1_700_000_000 * 10**9
"""Time of the first messages, nanoseconds."""
SPEED = 0.1
"""Speed of the first joint: its position says when a state was."""
JOINTS = ["base", "shoulder", "elbow", "wrist_1", "wrist_2", "wrist_3"]
SETTINGS = """\
format = "ros2"
rate_hz = 10
observations = ["/joint_states"]
actions = ["/command"]
"""


class Message(NamedTuple):
    """A message to record."""

    topic: str
    received: int
    """Time of reception, nanoseconds after `START`."""
    content: Any
    """The message, or the name of its type to declare the topic only."""


def make(kind: str, /, **fields: Any) -> Any:
    """Make a message; a `stamp` in nanoseconds after `START` becomes its header."""
    if "stamp" in fields:
        seconds, rest = divmod(START + fields.pop("stamp"), 10**9)
        time = TYPES.types["builtin_interfaces/msg/Time"](sec=seconds, nanosec=rest)
        fields["header"] = TYPES.types["std_msgs/msg/Header"](stamp=time, frame_id="base_link")
    package, name = kind.split("/")
    return TYPES.types[f"{package}/msg/{name}"](**fields)


def make_joints(stamp: int, position: Iterable[float], names: list[str] | None = None) -> Any:
    """Make joint states."""
    empty = np.empty(0)
    return make(
        "sensor_msgs/JointState",
        stamp=stamp,
        name=JOINTS if names is None else names,
        position=np.array(list(position), np.float64),
        velocity=empty,
        effort=empty,
    )


def make_image(stamp: int, pixels: np.ndarray, *, encoding: str = "rgb8", padding: int = 0) -> Any:
    """Make an image whose rows end with unused bytes."""
    height, width = pixels.shape[:2]
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (0, padding)), constant_values=7)
    return make(
        "sensor_msgs/Image",
        stamp=stamp,
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=0,
        step=rows.shape[1],
        data=rows.ravel(),
    )


def write_bag(path: Path, messages: Iterable[Message], *, storage: str = "mcap", pack: bool = False) -> Path:
    """Write messages in the order in which they were received."""
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    if pack:
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        topics: dict[str, Any] = {}
        for topic, received, content in sorted(messages, key=lambda each: each.received):
            kind = content if isinstance(content, str) else content.__msgtype__
            if topic not in topics and kind in TYPES.fielddefs:
                topics[topic] = writer.add_connection(topic, kind, typestore=TYPES)
            elif topic not in topics:
                topics[topic] = writer.add_connection(topic, kind, msgdef="float64 x", rihs01="unknown")
            if not isinstance(content, str):
                writer.write(topics[topic], START + received, TYPES.serialize_cdr(content, kind))
    return path


def move(seconds: float) -> np.ndarray:
    """Return where the arm is at a time: the first joint moves at a constant speed, the others swing."""
    others = np.sin(seconds * np.arange(1, len(JOINTS)) + np.arange(1, len(JOINTS)))
    return np.array([SPEED * seconds, *others])


def send(
    rng: np.random.Generator,
    topic: str,
    rate_hz: float,
    seconds: tuple[float, float],
    make_content: Callable[[int], Any],
    *,
    jitter: float = 0.3,
    dropped: float = 0.1,
) -> list[Message]:
    """Send messages with jitter, a share of the interval; some are dropped, all arrive late."""
    times = np.arange(*seconds, 1 / rate_hz)
    times = times + rng.uniform(-jitter, jitter, len(times)) / rate_hz
    kept = rng.random(len(times)) >= dropped
    kept |= ~np.append(True, kept[:-1])  # never two in a row
    sent = []
    for stamp in np.round(times[kept] * 1e9).astype(int).tolist():
        sent.append(Message(topic, stamp + int(rng.uniform(1e6, 4e6)), make_content(stamp)))
    return sent


def draw_time(stamp: int) -> np.ndarray:
    """Draw an image whose first pixel is its time in tenths of a millisecond."""
    picture = np.full((6, 8, 3), 50, np.uint8)
    picture[0, 0] = stamp // 100_000 // 256 ** np.arange(3) % 256
    return picture


def press(stamp: int, picture: np.ndarray, kind: str = "PNG"):
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind)
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    return make("sensor_msgs/CompressedImage", stamp=stamp, format=kind.lower(), data=data)


def write_small(
    path: Path, messages: list[Message] | None = None, settings: str = SETTINGS, *, storage: str = "mcap"
) -> Path:
    """Write one bag of 2 s with exact times: joints at 50 Hz, a command 4 ms after each."""
    write_bag(path, make_small() if messages is None else messages, storage=storage)
    (path / "dataset.toml").write_text(settings)
    return path


def make_small(seconds: float = 2.0, start: float = 0.0) -> list[Message]:
    messages = []
    for time in np.arange(start, start + seconds, 0.02):
        stamp = round(time * 1e9)
        messages.append(Message("/joint_states", stamp + 1_000_000, make_joints(stamp, move(time))))
        stamp += 4_000_000
        messages.append(Message("/command", stamp, make_joints(stamp, move(stamp / 1e9))))
    return messages
