"""ROS 2 bags, sampled at one rate as `dataset.toml` says.

At a tick, an observation or image is the newest message that is not later: what a policy would have seen.
An action is the first command at or after the tick, within one period: what was commanded after seeing that.
Without one, the command before is still in force. Ticks are at messages of the first observation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig, require
from nsde_policy.errors import DemoError

from ...source import MemoryArray, MemorySource, SourceArray
from ...types import MIN_STEPS, Ints, Numbers
from ..base import Reader
from ..dataset_toml import DATASET_FILE, get_dataset_format, load_dataset_toml, suggest_dataset_toml
from ..groups import natural_key
from ..registry import register_reader
from .bag import IMAGE_TYPES, Bag, Messages

METADATA_FILE, SUFFIXES = "metadata.yaml", {".mcap", ".db3"}
ACTION_WORDS = ("act", "cmd", "command", "target", "goal", "setpoint")  # in topics
NUMBER_TYPES = r"geometry_|(std|sensor|nav|trajectory)_msgs/msg/(Bool|Float|U?Int\d|Joint|Joy|Imu|Odom)"
MOST_MISSED = 5  # messages in a row, in periods or in median intervals of the topic, whichever is longer
MOST_WAIT_S = 60.0  # for a message of a slow topic
MAX_TICKS = 2**24  # in a bag; more are a wrong clock


@dataclass(frozen=True)
class Ros2Dataset(BaseConfig):
    """Keys of `dataset.toml` for ROS 2 bags."""

    format: Literal["ros2"]
    rate_hz: Positive
    """Frames per second to sample all topics at."""
    observations: tuple[str, ...]
    """Topics that make up an observation, side by side."""
    actions: tuple[str, ...]
    """Topics that make up an action."""
    images: tuple[str, ...] = ()
    """Topics of camera images."""
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields to read of some topics, such as "/joint_states" = ["position", "velocity"]."""
    on_change: tuple[str, ...] = ()
    """Topics that are published only when they change: the last message holds for any time."""
    stamps: Literal["header", "receive"] = "header"
    """Time of a message: the stamp of its header if there is one, or when it was recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        topics = {*self.topics}
        named = bool(self.observations and self.actions) and {*self.on_change} < topics
        require(self, named, "name an observation and an action, and a topic that is not on_change")
        names = {name_array(topic) for topic in self.topics}
        is_unique = len(names) == len(self.topics)
        require(self, is_unique, f"two topics have the same name: {', '.join(sorted(self.topics))}")

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that become arrays."""
        return (*self.observations, *self.actions, *self.images)


class ImageArray(SourceArray):
    """The images of a topic at the ticks, read and decoded on demand."""

    def __init__(self, topic: str, bags: Sequence[Bag], places: Sequence[tuple[int, int, int]]) -> None:
        self.name, self.dtype, self.shape = name_array(topic), np.dtype(np.uint8), (len(places),)
        self._topic, self._bags, self._places = topic, bags, places
        self.shape = len(places), *next(self._decode(0, 1))[1].shape

    def read(self, start: int, stop: int) -> Numbers:
        """Decode the images of some frames."""
        images = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for frames, image in self._decode(start, stop):
            images[np.subtract(frames, start)] = image
        return images

    def _decode(self, start: int, stop: int) -> Iterator[tuple[list[int], Numbers]]:
        """Return images and their frames, in one pass over each bag; an image that is held comes once."""
        for number, inside in groupby(range(start, stop), key=lambda frame: self._places[frame][0]):
            bag, frames_of = self._bags[number], dict[tuple[int, ...], list[int]]()
            for frame in inside:
                frames_of.setdefault(self._places[frame][1:], []).append(frame)
            for _, received, time, content in bag.read(
                [self._topic], min(frames_of)[0], max(frames_of)[0] + 1
            ):
                if frames := frames_of.pop((received, time), None):
                    image = bag.decode(self._topic, received, content)
                    if image.shape != (self.shape[1:] or image.shape):
                        problem = f"an image of shape {image.shape}, expected {self.shape[1:]} as before"
                        raise bag.refuse(self._topic, received, problem)
                    yield frames, image
            if frames_of:
                raise DemoError(f"{bag.path} changed while it was open; open it again")


@register_reader
class Ros2Reader(Reader):
    """Reader of one bag, or of a folder of bags, with a `dataset.toml`."""

    name = "ros2"

    def probe(self, path: Path) -> bool:
        """Recognise bags, folders of bags, and a `dataset.toml` that says so."""
        return get_dataset_format(path) == "ros2" or bool(find_bags(path))

    def open(self, path: Path) -> MemorySource:
        """Read all bags once and sample their messages; images are read again when frames are asked for."""
        paths, folder = find_bags(path), path if path.is_dir() else path.parent
        if not paths:
            raise DemoError(f"{path} holds no bags: folders with {METADATA_FILE}, or .mcap or .db3 files")
        if not (folder / DATASET_FILE).exists():
            raise DemoError(suggest_settings(folder, Bag(paths[0])))
        settings = load_dataset_toml(folder, Ros2Dataset)
        bags = [Bag(each, use_stamps=settings.stamps == "header") for each in paths]
        # Each frame is a row: numbers by their names, or bag, time of reception and time of an image.
        rows: dict[str, list[Any]] = {topic: [] for topic in settings.topics}
        offsets, lengths = dict[str, float](), list[int]()
        for number, bag in enumerate(bags):
            lengths.append(add_frames(rows, offsets, bag, number, settings))
        arrays: dict[str, SourceArray] = {}
        for topic, topic_rows in rows.items():
            name = name_array(topic)
            if topic in settings.images:
                arrays[name] = ImageArray(topic, bags, topic_rows)
            else:
                values = np.array([[row[column] for column in topic_rows[0]] for row in topic_rows])
                arrays[name] = MemoryArray(name, values, [f"{name}.{column}" for column in topic_rows[0]])
        roles = {"state": settings.observations, "action": settings.actions}
        source = MemorySource(
            path,
            "ROS 2 bags",
            arrays,
            np.cumsum(lengths),
            rate_hz=settings.rate_hz,
            conventions={role: tuple(map(name_array, topics)) for role, topics in roles.items()},
            attributes={"bags": len(bags), "alignment": offsets},
        )
        listed = ", ".join(f"{topic} {1e3 * offset:.0f} ms" for topic, offset in offsets.items())
        source.notes = (f"sampled at {settings.rate_hz:g} Hz; largest misalignment: {listed}",)
        return source


def add_frames(
    rows: Mapping[str, list[Any]], offsets: dict[str, float], bag: Bag, number: int, settings: Ros2Dataset
) -> int:
    """Sample a bag: add a row per frame to each topic, update the offsets, return the number of frames."""
    messages = bag.index(settings.topics, settings.images)
    ticks = find_ticks(bag, messages, settings)
    for topic, topic_rows in rows.items():
        received, times, contents = messages[topic]
        newest = np.searchsorted(times, ticks, side="right") - 1
        if topic in settings.actions:
            after = np.minimum(np.searchsorted(times, ticks), len(times) - 1)
            newest = np.where(
                (times[after] >= ticks) & (times[after] < ticks + 1e9 / settings.rate_hz), after, newest
            )
        if topic not in settings.on_change:
            offsets[topic] = max(offsets.get(topic, 0.0), float(np.abs(ticks - times[newest]).max()) / 1e9)
        for i, held in groupby(newest.tolist()):
            row: Any = number, int(received[i]), int(times[i])
            if topic not in settings.images:
                row = bag.decode(topic, received[i], contents[i], settings.fields.get(topic, ()))
                if topic_rows and row.keys() != topic_rows[0].keys():
                    differ = ", ".join(sorted(row.keys() ^ topic_rows[0].keys()))
                    raise bag.refuse(topic, received[i], f"other columns than in the first message: {differ}")
            topic_rows += [row for _ in held]
    return len(ticks)


def find_ticks(bag: Bag, messages: dict[str, Messages], settings: Ros2Dataset) -> Ints:
    """Return the times of the frames of a bag."""
    period = 1e9 / settings.rate_hz
    steady = {topic: messages[topic].times for topic in settings.topics if topic not in settings.on_change}
    ticks = place_ticks([*steady.values()], max(messages[each].times[0] for each in settings.topics), period)
    for topic, times in steady.items():
        steps = np.diff(times, append=times[-1])
        waits = steps[np.searchsorted(times, ticks, side="right") - 1] / 1e9
        usual = min(float(np.median(steps)) / 1e9, MOST_WAIT_S / MOST_MISSED)
        if (waits > MOST_MISSED * max(period / 1e9, usual)).any():
            problem = f"no message of {topic} for {waits.max():.2f} s at frame {np.argmax(waits)}"
            raise DemoError(f"{bag.path}: {problem}; drop the bag, or list the topic in on_change")
    if len(ticks) < MIN_STEPS:
        few = min(steady, key=lambda topic: len(steady[topic]))
        problem = f"fewer than {MIN_STEPS} frames; {few} has only {len(steady[few])} messages"
        advice = 'drop the bag, or if the clocks differ set stamps = "receive" in dataset.toml'
        raise DemoError(f"{bag.path}: {problem}; {advice}")
    return ticks


def place_ticks(topics: Sequence[Ints], first: int, period: float) -> Ints:
    """Return a tick per period: the message nearest to a regular grid, or the grid if one is missing."""
    times, last = topics[0], min(int(times[-1]) for times in topics)
    start = int(times[np.searchsorted(times, first, side="right") - 1])
    count = int((last - start) // period) + 1
    ticks = start + np.round(np.arange(count if 0 < count <= MAX_TICKS else 1) * period).astype(np.int64)
    middles = times[:-1] + np.diff(times) // 2
    ticks += int(np.median(times[np.searchsorted(middles, ticks)] - ticks))  # the first may be off itself
    shifts = times[np.searchsorted(middles, ticks)] - ticks
    ticks += shifts * (np.abs(shifts) <= period / 2)
    return ticks[(ticks >= first) & (ticks <= last)]


def name_array(topic: str) -> str:
    """Return the name of the array of a topic: without slashes, which separate folders elsewhere."""
    return topic.strip("/").replace("/", ".")


def find_bags(path: Path) -> list[Path]:
    """Return the bags at a path, folders or single files, even without metadata; demo_2 before demo_10."""
    if (path / METADATA_FILE).is_file():
        return [path]
    files = [each for each in (path, *path.glob("*")) if each.suffix in SUFFIXES and each.is_file()]
    parts = [each for each in path.glob("*/*") if each.name == METADATA_FILE or SUFFIXES & {*each.suffixes}]
    return sorted({*files, *(each.parent for each in parts)}, key=lambda each: natural_key(each.name))


def suggest_settings(folder: Path, bag: Bag) -> str:
    """Describe the `dataset.toml` that a folder lacks, with the topics of its first bag."""
    images = [topic for topic, each in bag.topics.items() if each.msgtype in IMAGE_TYPES]
    numbers = [topic for topic, each in bag.topics.items() if re.match(NUMBER_TYPES, each.msgtype)]
    actions = [topic for topic in numbers if any(word in topic.lower() for word in ACTION_WORDS)]
    observations = [topic for topic in numbers if topic not in actions]
    topics = [f"{name} ({each.msgtype}, {each.msgcount} messages)" for name, each in bag.topics.items()]
    held = f"{bag.path.name} holds, in {bag.seconds:.1f} s, {', '.join(topics) or 'no topics'}"
    roles = {"observations": observations, "actions": actions, "images": images}
    return suggest_dataset_toml(folder, held, format="ros2", rate_hz=20, **roles)
