"""ROS 2 bags, mcap or sqlite3: their topics, the times of their messages, and messages read on demand."""

import sqlite3
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.data.ros2_messages import has_header
from nsde_policy.data.types import Ints
from nsde_policy.errors import DemoError, NsdePolicyError, import_optional, summarize_error
from nsde_policy.files import get_max_unpacked

Place = Sequence[int]
"""Where a message is in its file: chunk and offset, or row and 0."""
STAMP_BYTES = 12
"""Start of a message with the time stamp of its header: 4 bytes about the encoding, 4 + 4 of time."""
MESSAGE_RECORD = struct.Struct("<BQHIQQ")
"""Record of a message in an mcap chunk before its data: kind, size, channel, number and two times."""
REPAIR = "restore it from the original, or repair the recording with `mcap recover` or `ros2 bag reindex`"


class BagTopic(NamedTuple):
    """Type and size of a topic."""

    type: str
    size: int
    """Number of its messages."""


class Messages(NamedTuple):
    """The messages of a topic in one bag, in the order in which they were received."""

    times: Ints
    """Time stamps in nanoseconds, not decreasing."""
    places: Ints
    """File of the bag and place in it, (messages, 3)."""


class McapFile:
    """An mcap file; of chunks that are not compressed, only what is asked for is read."""

    def __init__(self, path: Path, topics: Mapping[int, str], chunks: Sequence[Any]) -> None:
        self._file = path.open("rb", buffering=0)
        self._topics, self._chunks = topics, chunks
        self._unpacked = -1, b""  # the chunk that was decompressed last

    def find_messages(self, topics: Collection[str]) -> Iterator[tuple[str, int, Place]]:
        """Return topic, time of reception in nanoseconds, and place of each message of some topics."""
        for number, chunk in enumerate(self._chunks):
            for channel, start in chunk.message_index_offsets.items():
                topic = self._topics.get(channel, "")
                if topic in topics:
                    (size,) = struct.unpack("<I", self._read_file(start + 11, 4))
                    for time, offset in struct.iter_unpack("<QQ", self._read_file(start + 15, size)):
                        yield topic, time, (number, offset)

    def read(self, place: Place, size: int | None = None) -> bytes:
        """Read a message, or its first `size` bytes."""
        number, offset = place
        record = self._read_chunk(number, offset, MESSAGE_RECORD.size)
        kind, length, *_ = MESSAGE_RECORD.unpack(record)
        if kind != 5:
            raise DemoError(f"its index points to a record of kind {kind}, expected a message")
        start = offset + MESSAGE_RECORD.size
        return self._read_chunk(number, start, length - MESSAGE_RECORD.size + 9 if size is None else size)

    def close(self) -> None:
        """Close the mcap file."""
        self._file.close()

    def _read_chunk(self, number: int, offset: int, size: int) -> bytes:
        chunk = self._chunks[number]
        if offset + size > chunk.uncompressed_size:
            raise DemoError(
                f"a message at {offset} is longer than its chunk, {chunk.uncompressed_size} bytes"
            )
        if not chunk.compression:
            return self._read_file(chunk.chunk_start_offset + 49 + offset, size)
        if self._unpacked[0] != number:
            self._unpacked = number, self._decompress(chunk)
        return self._unpacked[1][offset : offset + size]

    def _decompress(self, chunk: Any) -> bytes:
        """Decompress a chunk, and no more of it than it declares."""
        size = chunk.uncompressed_size
        if size > get_max_unpacked():
            raise DemoError(f"a chunk would take {size} bytes, the limit is {get_max_unpacked()}")
        packed = self._read_file(
            chunk.chunk_start_offset + 49 + len(chunk.compression), chunk.compressed_size
        )
        if chunk.compression == "zstd":
            unpacker = import_optional("rosbags.rosbag2.storage_mcap", "ros2").zstd.ZstdDecompressor()
        elif chunk.compression == "lz4":
            unpacker = import_optional("lz4.frame", "ros2").LZ4FrameDecompressor()
        else:
            raise DemoError(f"a chunk is compressed with {chunk.compression!r:.40}, expected zstd or lz4")
        unpacked: bytes = unpacker.decompress(packed, max_length=size)
        if len(unpacked) != size:
            raise DemoError(f"a chunk has {len(unpacked)} bytes, expected {size}")
        return unpacked

    def _read_file(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        content = self._file.read(size)
        if len(content) != size:
            raise DemoError(f"it ends at byte {start + len(content)}, expected {size} bytes at {start}")
        return content


class SqliteFile:
    """A db3 file, opened for reading only."""

    def __init__(self, path: Path, topics: Mapping[int, str]) -> None:
        self._topics = topics
        self._database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)

    def find_messages(self, topics: Collection[str]) -> Iterator[tuple[str, int, Place]]:
        """Return topic, time and place of each message of some topics; their data are not read."""
        known = {number: topic for number, topic in self._topics.items() if topic in topics}
        marks = ", ".join("?" * len(known))
        query = f"SELECT topic_id, timestamp, id FROM messages WHERE topic_id IN ({marks})"
        for number, time, row in self._database.execute(query, [*known]):
            yield known[number], time, (row, 0)

    def read(self, place: Place, size: int | None = None) -> bytes:
        """Read a message, or its first `size` bytes without the rest."""
        with self._database.blobopen("messages", "data", place[0], readonly=True) as blob:
            return blob.read(-1 if size is None else size)

    def close(self) -> None:
        """Close the db3 file again."""
        self._database.close()


BagFile = McapFile | SqliteFile


class Bag:
    """A bag: a folder with metadata.yaml, or a single file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() and any(path.glob("*.zstd")):
            raise DemoError(f"{path} is compressed as a whole; decompress it with `ros2 bag convert`")
        with refuse_damage(path), import_optional("rosbags.rosbag2", "ros2").Reader(path) as reader:
            if reader.compression_mode:
                raise DemoError(f"the messages of {path} are compressed; decompress with `ros2 bag convert`")
            self.storage = "sqlite3"
            self.seconds = reader.duration / 1e9
            storages = getattr(reader.storage, "storages", [reader.storage])
            self.files: list[Callable[[], BagFile]] = []
            for storage in storages:
                ids = {connection.id: connection.topic for connection in storage.connections}
                if hasattr(storage, "chunks"):
                    self.storage = "mcap"
                    self.files.append(partial(McapFile, storage.path, ids, tuple(storage.chunks)))
                else:
                    self.files.append(partial(SqliteFile, storage.path, ids))
            self.topics = self._count(connection for each in storages for connection in each.connections)
            self._check_metadata(self._count(reader.connections))

    def _count(self, connections: Iterator[Any]) -> dict[str, BagTopic]:
        """Return the type and the number of messages of each topic."""
        topics: dict[str, BagTopic] = {}
        for each in connections:
            type_, count = topics.get(each.topic, BagTopic(each.msgtype, 0))
            if each.msgtype != type_:
                raise DemoError(
                    f"{self.path}: {each.topic} has messages of two types, {type_}, {each.msgtype}"
                )
            topics[each.topic] = BagTopic(type_, count + each.msgcount)
        return topics

    def _check_metadata(self, declared: Mapping[str, BagTopic]) -> None:
        for topic in sorted({*declared, *self.topics}):
            said, found = declared.get(topic), self.topics.get(topic)
            if said != found and (said or found or BagTopic("", 0)).size:
                raise DemoError(
                    f"{self.path}: metadata.yaml declares {_count_messages(said)} of {topic}, its files hold "
                    f"{_count_messages(found)}; {REPAIR}"
                )

    def index(self, topics: Collection[str], *, use_stamps: bool) -> dict[str, Messages]:
        """Find the messages of some topics and their times; of images, only the time stamp is read.

        Args:
            topics: Names of topics of this bag.
            use_stamps: Use the time stamp of a header if it is not zero, otherwise the time of reception.
        """
        rows: dict[str, array[int]] = {topic: array("q") for topic in topics}
        stamped = {topic for topic in topics if use_stamps and has_header(self.topics[topic].type)}
        for number in range(len(self.files)):
            with self.open_file(number) as file:
                for topic, received, place in file.find_messages(topics):
                    time = _parse_stamp(file.read(place, STAMP_BYTES)) if topic in stamped else 0
                    rows[topic].extend((received, time or received, number, *place))
        return {topic: self._sort(topic, np.frombuffer(each, np.int64)) for topic, each in rows.items()}

    def _sort(self, topic: str, rows: Ints) -> Messages:
        rows = rows.reshape(-1, 5)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        count = self.topics[topic].size
        if len(rows) != count:
            raise DemoError(
                f"{self.path}: its index has {len(rows)} of {count} messages of {topic}; {REPAIR}"
            )
        if not len(rows):
            raise DemoError(f"{self.path}: {topic} has no messages; remove the bag, or the topic")
        back = np.diff(rows[:, 1])
        if (back < 0).any():
            i = int(np.argmin(back))
            raise DemoError(
                f"{self.path}: the clock of {topic} goes back by {-back[i] / 1e9:.3g} s after "
                f"{(rows[i, 0] - rows[0, 0]) / 1e9:.2f} s; split the bag there, or set "
                'stamps = "receive" in dataset.toml'
            )
        return Messages(rows[:, 1], rows[:, 2:])

    def read_messages(self, messages: Messages) -> Iterator[bytes]:
        """Read messages that `index` found."""
        for number, places in groupby(messages.places.tolist(), key=itemgetter(0)):
            with self.open_file(number) as file:
                for _, *place in places:
                    yield file.read(place)

    @contextmanager
    def open_file(self, number: int) -> Iterator[BagFile]:
        """Open one of the files; what goes wrong while it is open becomes a `DemoError`."""
        with refuse_damage(self.path):
            file = self.files[number]()
            try:
                yield file
            finally:
                file.close()


@contextmanager
def refuse_damage(path: Path) -> Iterator[None]:
    """Raise `DemoError` for everything that goes wrong while a damaged bag is read."""
    try:
        yield
    except NsdePolicyError as error:
        if isinstance(error, DemoError) and str(path) not in str(error):
            raise DemoError(f"{path}: {error}; {REPAIR}") from None
        raise
    except Exception as error:  # of many kinds: parsers, databases, decompressors
        raise DemoError(f"{path} cannot be read: {summarize_error(error)}; {REPAIR}") from error


def _parse_stamp(start: bytes) -> int:
    """Return the time in the header of a message, in nanoseconds."""
    seconds, nanoseconds = struct.unpack_from("<iI" if start[1] & 1 else ">iI", start, 4)
    return int(seconds * 10**9 + nanoseconds)


def _count_messages(topic: BagTopic | None) -> str:
    return "no messages" if topic is None else f"{topic.size} messages ({topic.type})"
