"""ROS 2 bags, sampled at one rate as `dataset.toml` says."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.dataset_toml import DATASET_FILE, get_dataset_format, load_dataset_toml
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.ros2_bag import Bag
from nsde_policy.data.ros2_messages import (
    IMAGE_TYPES,
    MARKER_TYPES,
    decode_message,
    is_known,
    read_numbers,
    read_pixels,
)
from nsde_policy.data.ros2_sampling import Ros2Dataset, Sampler
from nsde_policy.data.source import MemorySource, SourceArray
from nsde_policy.data.types import Ints, Numbers
from nsde_policy.errors import DemoError
from nsde_policy.files import read_file

STORAGE_SUFFIXES = (".mcap", ".db3")
METADATA_FILE, MAX_METADATA_BYTES = "metadata.yaml", 64 * 2**20
SPLIT = re.compile(r"(\d+)").split
ACTION_WORDS = ("act", "cmd", "command", "target", "goal", "setpoint")
"""Parts of the names of topics that are suggested as actions."""
SLOW_HZ = 2.0
"""Topics below this rate are probably published only when they change."""


class BagArray(SourceArray):
    """The messages of a topic at the ticks, read and decoded on demand."""

    def __init__(self, topic: str, bags: Sequence[Bag], places: Ints, fields: Sequence[str]) -> None:
        self.name, self._topic, self._bags, self._places = name_array(topic), topic, bags, places
        self._type, self._fields = bags[0].topics[topic].type, fields
        first = next(self._decode(0, 1))
        if isinstance(first, dict):
            self._keys, self.dtype = first.keys(), np.dtype(np.float64)
            self.columns = tuple(f"{self.name}.{key}" for key in first)
            self.shape = len(places), len(first)
        else:
            self.dtype = np.dtype(np.uint8)
            self.shape = len(places), *first.shape

    def read(self, start: int, stop: int) -> Numbers:
        """Decode the messages of some frames."""
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for row, value in enumerate(self._decode(start, stop)):
            if not isinstance(value, dict):
                if value.shape != self.shape[1:]:
                    raise self._refuse(start + row, f"{value.shape}, expected {self.shape[1:]} as before")
                rows[row] = value
            elif value.keys() != self._keys:
                differ = ", ".join(sorted(value.keys() ^ self._keys))
                raise self._refuse(start + row, f"other columns than in the first message: {differ}")
            else:
                rows[row] = [value[key] for key in self._keys]
        return rows

    def _decode(self, start: int, stop: int) -> Iterator[Any]:
        """Return numbers by their names, or pixels; a message that is held for many frames is read once."""
        places = self._places[start:stop].tolist()
        previous: list[int] = []
        for (bag, number), frames in groupby(enumerate(places, start), key=lambda each: each[1][:2]):
            with self._bags[bag].open_file(number) as file:
                for frame, place in frames:
                    if place != previous:
                        try:
                            value = self._convert(decode_message(file.read(place[2:]), self._type))
                        except DemoError as error:
                            raise self._refuse(frame, error.found) from error
                        previous = place
                    yield value

    def _convert(self, message: Any) -> Any:
        return read_pixels(message) if self._type in IMAGE_TYPES else read_numbers(message, self._fields)

    def _refuse(self, frame: int, found: str) -> DemoError:
        bag = self._bags[int(self._places[frame, 0])].path
        return DemoError(f"{bag}: {self._topic} at frame {frame}: {found}; correct or drop the bag")


@register_reader
class Ros2Reader(Reader):
    """Reader of one bag, or of a folder of bags, with a `dataset.toml`."""

    name = "ros2"

    def probe(self, path: Path) -> bool:
        """Recognise bags, folders of bags, and a `dataset.toml` that says so."""
        return get_dataset_format(path) == "ros2" or bool(find_bags(path))

    def open(self, path: Path) -> MemorySource:
        """Index the messages of all topics and sample them; images and numbers are read later."""
        bags = [Bag(each) for each in find_bags(path)]
        if not bags:
            raise DemoError(f"{path} holds no bags: folders with {METADATA_FILE}, or .mcap or .db3 files")
        folder = path if path.is_dir() else path.parent
        if not (folder / DATASET_FILE).exists():
            raise DemoError(suggest_settings(folder, bags))
        settings = load_dataset_toml(folder, Ros2Dataset)
        sampler = Sampler(settings)
        for bag in bags:
            check_topics(bag, settings)
            sampler.add(bag)
        places, ends = sampler.finish()
        arrays = {}
        for topic in settings.topics:
            array = BagArray(topic, bags, places[topic], settings.fields.get(topic, ()))
            arrays[array.name] = array
        source = MemorySource(
            path,
            f"ROS 2 {'bags' if bags[1:] else 'bag'} ({bags[0].storage})",
            arrays,
            ends,
            rate_hz=settings.rate_hz,
            conventions={
                "state": tuple(map(name_array, settings.observations)),
                "action": tuple(map(name_array, settings.actions)),
            },
            attributes={"bags": len(bags), "alignment": sampler.offsets},
        )
        source.notes = tuple(sampler.describe())
        return source


def name_array(topic: str) -> str:
    """Return the name of the array of a topic: without slashes, which separate folders elsewhere."""
    return topic.strip("/").replace("/", ".")


def find_bags(path: Path) -> list[Path]:
    """Return the bags at a path: itself, the folders in it, or else the files; demo_2 before demo_10."""
    if _is_bag(path):
        return [path]
    try:
        inside = sorted(
            path.iterdir(), key=lambda each: [int(n) if n.isdecimal() else n for n in SPLIT(each.name)]
        )
    except OSError:
        return []
    folders = [each for each in inside if each.is_dir() and _is_bag(each)]
    return folders or [each for each in inside if each.suffix in STORAGE_SUFFIXES]


def _is_bag(path: Path) -> bool:
    try:
        content = read_file(path / METADATA_FILE, MAX_METADATA_BYTES, error=DemoError)
    except DemoError:
        return path.suffix in STORAGE_SUFFIXES and path.is_file()
    return b"rosbag2_bagfile_information" in content


def check_topics(bag: Bag, settings: Ros2Dataset) -> None:
    """Raise `DemoError` for topics that a bag does not have, or whose messages cannot be used."""
    for topic in [*settings.topics, *([settings.episode_topic] if settings.episode_topic else [])]:
        if topic not in bag.topics:
            raise DemoError(f"{bag.path} has no topic {topic}; it has: {', '.join(sorted(bag.topics))}")
        found = bag.topics[topic].type
        if not is_known(found):
            raise DemoError(
                f"{bag.path}: {topic} is {found}, which is no standard message; record its numbers as "
                "std_msgs/msg/Float64MultiArray or sensor_msgs/msg/JointState"
            )
        if (found in IMAGE_TYPES) != (topic in settings.images):
            raise DemoError(f"{bag.path}: {topic} is {found}; list images, and only images, under `images`")
        if topic == settings.episode_topic and found not in MARKER_TYPES:
            raise DemoError(f"{bag.path}: {topic} is {found}, expected {' or '.join(MARKER_TYPES)}")


def suggest_settings(folder: Path, bags: Sequence[Bag]) -> str:
    """Describe the topics of the first bag, and suggest a shell command that writes a `dataset.toml`."""
    bag = bags[0]
    rates = {topic: each.size / max(bag.seconds, 1e-9) for topic, each in sorted(bag.topics.items())}
    found = ", ".join(
        f"{topic} ({bag.topics[topic].type}, {bag.topics[topic].size} messages, {rate:.3g} Hz)"
        for topic, rate in rates.items()
    )
    known = [topic for topic in rates if is_known(bag.topics[topic].type)]
    images = [topic for topic in known if bag.topics[topic].type in IMAGE_TYPES]
    actions = [topic for topic in known if any(word in topic.lower() for word in ACTION_WORDS)]
    slow = [topic for topic in known if rates[topic] < SLOW_HZ]
    lines = [
        'format = "ros2"',
        f"rate_hz = {min((rates[topic] for topic in known if topic not in slow), default=20) / 2:.0f}",
        f"observations = {json.dumps([topic for topic in known if topic not in (*images, *actions)])}",
        f"actions = {json.dumps(actions)}",
        f"images = {json.dumps(images)}",
        f"on_change = {json.dumps(slow)}",
    ]
    return (
        f"{folder} needs a {DATASET_FILE} that names the topics to use; {bag.path.name} has "
        f"{found or 'none'}; write it, and correct what does not fit: printf '%s\\n' {shlex.join(lines)} > "
        f"{shlex.quote(str(folder / DATASET_FILE))}"
    )
