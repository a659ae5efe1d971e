"""Ticks of one rate over the messages of several topics, and the message of each topic at each tick.

At a tick, an observation or image is the newest message that is not later: what a policy would have seen.
An action is the first command at or after the tick, within one period: what was commanded after seeing that.
Without one, the command before is still in force.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig, require
from nsde_policy.data.ros2_bag import Bag, Messages
from nsde_policy.data.ros2_messages import SWITCH, decode_message
from nsde_policy.data.types import MIN_STEPS, Ints
from nsde_policy.errors import DemoError

MOST_MISSED = 5
"""Longest time without a message, in periods or in median intervals of the topic, whichever is longer."""
FOREVER = 2**62
"""Time after all messages, nanoseconds."""


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
    episode_topic: str | None = None
    """Topic that divides bags into episodes: Bool, true during an episode; or String or Empty, one message at
    the start of each. Without it and `gap_s`, a bag is an episode."""
    gap_s: Positive | None = None
    """Seconds without a message of some topic that end an episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        topics = self.topics
        require(
            self, bool(self.observations and self.actions), "name at least one observation and one action"
        )
        require(self, len({*topics}) == len(topics), f"a topic is named twice: {', '.join(topics)}")
        others = {*self.fields, *self.on_change} - {*topics}
        require(self, not others, f"{', '.join(sorted(others))} is none of the topics {', '.join(topics)}")
        require(self, not (self.episode_topic and self.gap_s), "set episode_topic or gap_s, not both")

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that become arrays."""
        return (*self.observations, *self.actions, *self.images)


class Sampler:
    """Samples bags one after the other and records how far messages are from their ticks."""

    def __init__(self, settings: Ros2Dataset) -> None:
        self._settings = settings
        self._period = 1e9 / settings.rate_hz
        self._places: dict[str, list[Ints]] = {topic: [] for topic in settings.topics}
        self._lengths: list[int] = []
        self._left_out = 0
        self._bags = 0
        self.offsets: dict[str, float] = {}
        """Largest time between a tick and its message in seconds, by topic."""

    def add(self, bag: Bag) -> None:
        """Divide a bag into episodes and choose the messages of their frames."""
        settings = self._settings
        messages = bag.index(
            [*settings.topics, *filter(None, [settings.episode_topic])],
            use_stamps=settings.stamps == "header",
        )
        before = len(self._lengths)
        for start, stop in self._find_spans(bag, messages):
            ticks = self._find_ticks(messages, start, stop)
            if len(ticks) < MIN_STEPS:
                self._left_out += 1
                continue
            self._lengths.append(len(ticks))
            for topic in settings.topics:
                chosen = self._choose(topic, messages[topic].times, ticks, stop)
                self._check_offsets(bag, topic, messages[topic].times, ticks, chosen)
                places = messages[topic].places[chosen]
                self._places[topic].append(np.insert(places, 0, self._bags, axis=1))
        if len(self._lengths) == before:
            first = min(each.times[0] for each in messages.values())
            spans = ", ".join(
                f"{topic} {(each.times[0] - first) / 1e9:.2f} to {(each.times[-1] - first) / 1e9:.2f} s"
                for topic, each in messages.items()
            )
            raise DemoError(
                f"{bag.path}: its topics have no {MIN_STEPS} frames in common: {spans}; "
                'drop the bag, or if the clocks differ set stamps = "receive" in dataset.toml'
            )
        self._bags += 1

    def finish(self) -> tuple[dict[str, Ints], Ints]:
        """Return where the message of each frame is, (frames, 4) by topic, and the ends of episodes."""
        return {topic: np.concatenate(each) for topic, each in self._places.items()}, np.cumsum(self._lengths)

    def describe(self) -> Iterator[str]:
        """Describe how well messages are aligned, one line each."""
        settings, period = self._settings, self._period / 1e6
        offsets = {topic: 1e3 * offset for topic, offset in self.offsets.items()}
        listed = ", ".join(f"{topic} {offset:.0f} ms" for topic, offset in offsets.items())
        yield f"sampled at {settings.rate_hz:g} Hz (period {period:.0f} ms); largest misalignment: {listed}"
        old = [topic for topic in offsets if offsets[topic] > period / 2 and topic not in settings.actions]
        if old:
            yield f"{', '.join(old)}: more than half a period old; lower rate_hz, or publish more often"
        if self._left_out:
            yield f"{self._left_out} parts of bags are left out: they are shorter than {MIN_STEPS} frames"

    def _find_spans(self, bag: Bag, messages: Mapping[str, Messages]) -> list[tuple[int, int]]:
        """Return where episodes start and stop, before they are cut to what all topics have."""
        settings = self._settings
        if settings.episode_topic:
            times = messages[settings.episode_topic].times.tolist()
            kind = bag.topics[settings.episode_topic].type
            if kind != SWITCH:
                return [(start, stop - 1) for start, stop in pairwise([*times, FOREVER])]
            contents = bag.read_messages(messages[settings.episode_topic])
            states = [False, *(decode_message(content, kind).data for content in contents)]
            changes = [time for time, (old, new) in zip(times, pairwise(states), strict=True) if old != new]
            return list(zip(changes[::2], [*changes[1::2], FOREVER], strict=False))
        gaps = []
        for topic in settings.topics:
            times = messages[topic].times
            if settings.gap_s and topic not in settings.on_change:
                long = np.flatnonzero(np.diff(times) > 1e9 * settings.gap_s)
                gaps += [(int(times[i]), int(times[i + 1])) for i in long]
        spans, start = [], -FOREVER
        for stop, after in sorted(gaps):
            if stop > start:
                spans.append((start, stop))
            start = max(start, after)
        return [*spans, (start, FOREVER)]

    def _find_ticks(self, messages: Mapping[str, Messages], start: int, stop: int) -> Ints:
        """Return ticks over the part of a span in which all topics have messages."""
        first, last = [start], [stop]
        for topic in self._settings.topics:
            times = messages[topic].times
            if topic in self._settings.on_change:
                first.append(int(times[0]))
                continue
            inside = times[np.searchsorted(times, start) : np.searchsorted(times, stop, side="right")]
            if not len(inside):
                return np.empty(0, np.int64)
            first.append(int(inside[0]))
            last.append(int(inside[-1]))
        count = max(int((min(last) - max(first)) / self._period) + 1, 0)
        return max(first) + np.round(np.arange(count) * self._period).astype(np.int64)

    def _choose(self, topic: str, times: Ints, ticks: Ints, stop: int) -> Ints:
        """Return which message a topic has at each tick."""
        newest: Ints = np.searchsorted(times, ticks, side="right") - 1
        if topic not in self._settings.actions:
            return newest
        following = np.minimum(np.searchsorted(times, ticks), len(times) - 1)
        time = times[following]
        return np.where((time >= ticks) & (time < ticks + self._period) & (time <= stop), following, newest)

    def _check_offsets(self, bag: Bag, topic: str, times: Ints, ticks: Ints, chosen: Ints) -> None:
        """Record how far messages are from their ticks; raise `DemoError` where too many are missing."""
        if topic in self._settings.on_change:
            return
        ages = (ticks - times[chosen]) / 1e9
        self.offsets[topic] = max(self.offsets.get(topic, 0.0), round(float(np.abs(ages).max()), 4))
        usual = max(self._period, float(np.median(np.diff(times)))) / 1e9
        if ages.max() > MOST_MISSED * usual:
            worst = int(np.argmax(ages))
            last = (times[chosen[worst]] - times[0]) / 1e9
            raise DemoError(
                f"{bag.path}: no message of {topic} for {ages[worst]:.2f} s, at {last:.2f} s; "
                f"drop the bag, end episodes there with gap_s = {MOST_MISSED * usual:.2g}, or "
                "add the topic to on_change if it is published only when it changes"
            )
