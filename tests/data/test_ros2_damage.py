"""Tests of damaged ROS 2 bags: each kind is refused with a message that says what to do."""

import re
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.damage import Damage, replace_by_pipe
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.ros2_bags import (
    JOINTS,
    SETTINGS,
    Message,
    make_image,
    make_small,
    write_small,
)


def with_messages(change: Callable[[list[Message]], Any], settings: str = "") -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        messages = make_small()
        write_small(path, change(messages) or messages, SETTINGS + settings)

    return write


def with_camera(content: Any) -> Callable[[Path], Any]:
    """Write a camera whose second image is wrong."""
    good = make_image(0, np.zeros((4, 4, 3), np.uint8))
    film = [Message("/cam", t, good) for t in range(0, 10**9, 10**8)]
    film += [Message("/cam", t, content) for t in range(10**9, 2 * 10**9, 10**8)]
    return with_messages(lambda messages: messages + film, 'images = ["/cam"]\nstamps = "receive"\n')


def with_file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Write a valid bag, then change one file."""
    return lambda path: edit_bytes(write_small(path) / name, change)


def change_content(messages: list[Message], number: int = 40, **fields: Any) -> None:
    """Change some fields of a joint state."""
    for name, value in fields.items():
        setattr(messages[number].content, name, value)


def with_computed(table: str, definition: str) -> Callable[[Path], Any]:
    """Replace a table of a database by one whose rows or values are computed."""

    def write(path: Path) -> None:
        (file,) = write_small(path, storage="sqlite3").glob("*.db3")
        with closing(sqlite3.connect(file)) as database:
            database.execute(f"DROP TABLE {table}")
            database.execute(definition)

    return write


ENDLESS = "(WITH RECURSIVE e AS (SELECT 1 AS schema_version UNION ALL SELECT 1 FROM e) SELECT * FROM e)"
BLOBS = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp, data AS (zeroblob(1000000000))"
DAMAGES = [
    Damage("truncated mcap", with_file("bag.mcap", lambda b: b[: len(b) // 2]), "File end magic is invalid"),
    Damage(
        "metadata that never end",
        with_file("metadata.yaml", lambda text: text + b"#" * 2**20),
        "bytes, the limit is 1048576",
    ),
    Damage(
        "metadata with another count",
        with_file("metadata.yaml", lambda text: text.replace(b"message_count: 100", b"message_count: 90")),
        "declares 90 messages of /joint_states, its files hold 100",
    ),
    Damage(
        "unknown type",
        with_messages(lambda messages: [*messages[::2], Message("/command", 0, "my_msgs/msg/Command")]),
        "/command is my_msgs/msg/Command, expected a standard message",
    ),
    Damage(
        "clocks that differ",
        with_messages(
            lambda messages: [m for m in messages if (m.received > 10**9) == (m.topic == "/command")]
        ),
        'if the clocks differ set stamps = "receive"',
    ),
    Damage(
        "long gap",
        with_messages(lambda messages: [m for m in messages if not 0.6e9 < m.received < 1.4e9]),
        "no message of /joint_states for 0.82 s at frame 5",
    ),
    Damage(
        "missing joint",
        with_messages(lambda messages: change_content(messages, name=JOINTS[:5], position=np.zeros(5))),
        "/joint_states at 0.40 s: other columns than in the first message: wrist_3",
    ),
    Damage(
        "image of another size",
        with_camera(make_image(0, np.zeros((4, 5, 3), np.uint8))),
        "/cam at 1.00 s: an image of shape (4, 5, 3), expected (4, 4, 3)",
    ),
    Damage(
        "mcap that is a pipe",
        lambda path: replace_by_pipe(write_small(path) / "bag.mcap"),
        "bag.mcap is not a regular file",
    ),
    Damage(
        "endless view",
        with_computed("schema", f"CREATE VIEW schema AS SELECT * FROM {ENDLESS}"),
        "computes schema instead of storing it",
    ),
    Damage("computed blobs", with_computed("messages", f"{BLOBS} VIRTUAL)"), "computes messages instead"),
    Damage("stored blobs", with_computed("messages", f"{BLOBS} STORED)"), "computes messages instead"),
    Damage(
        "unknown field",
        lambda path: write_small(path, settings=SETTINGS + '[fields]\n"/command" = ["positions"]\n'),
        "0 numbers in 'positions', expected 6; sensor_msgs/msg/JointState has position[0], ",
    ),
]


def read_all(path: Path) -> None:
    load_demonstrations(path)
    for name in summarize(path).videos:
        open_images(path, key=name)[:]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_refused(tmp_path: Path, damage: Damage):
    path = tmp_path / "bag"
    damage._replace(message=re.escape(damage.message)).check(path, lambda _: read_all(path))


def test_definitions_in_a_bag_are_not_executed(tmp_path: Path):
    mark = tmp_path / "mark"
    hostile = f"x/msg/Y']; open({str(mark)!r}, 'w'); ['"
    path = write_small(tmp_path / "bag", [*make_small()[::2], Message("/command", 0, hostile)])
    with pytest.raises(DemoError, match="expected a standard message"):
        load_demonstrations(path)
    assert not mark.exists()


def test_images_are_read_in_little_memory(tmp_path: Path):
    messages = make_small(10)
    for stamp in range(0, 10**10, 10**8):
        messages.append(
            Message("/cam", stamp, make_image(stamp, np.full((600, 500, 3), stamp // 10**8, np.uint8)))
        )
    path = write_small(tmp_path / "bag", messages, SETTINGS + 'images = ["/cam"]\n')
    del messages
    tracemalloc.start()
    try:
        frames = open_images(path, key="cam")
        assert (frames[66] == 67).all()  # the first frame is at 0.1 s
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 * 10**6


def test_numbers_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_small(tmp_path / "bag")
    monkeypatch.setenv("NSDE_POLICY_MAX_UNPACKED_BYTES", "10000")
    with pytest.raises(DemoError, match="more than 10000 bytes of numbers; split the bag"):
        load_demonstrations(path)
