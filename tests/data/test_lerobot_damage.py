"""Tests of damaged LeRobot data sets: each kind is refused with a message that says what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot.reader import LeRobotSource
from nsde_policy.data.source import read_columns
from nsde_policy.errors import DemoError
from tests.helpers.damage import Damage
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.lerobot_sets import (
    DATA,
    EPISODES,
    TOP,
    VIDEO,
    WRIST,
    edit_column,
    edit_info,
    write_v2,
    write_v3,
)


def in_column(name: str, change: Callable[[list[Any]], Any], file: str = DATA) -> Callable[[Path], object]:
    return lambda path: edit_column(path / file, name, change)


def with_value(row: int, value: object) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [*rows[:row], value, *rows[row + 1 :]]


def with_feature(name: str, **change: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        features = json.loads((path / "meta/info.json").read_text())["features"]
        edit_info(path, features={**features, name: {**features.get(name, {}), **change}})

    return make


def drop_a_frame(path: Path) -> None:
    """Drop a frame as a slow camera does, with metadata that agree with the rows."""
    table = pq.read_table(path / DATA)
    pq.write_table(pa.concat_tables([table.slice(0, 3), table.slice(4)]), path / DATA)
    edit_column(path / EPISODES, "length", with_value(0, 7))


V2_VIDEO = f"videos/chunk-000/{WRIST}/episode_000001.mp4"
SPAN = f"videos/{WRIST}"
DAMAGES = [
    Damage(
        "no footer",
        lambda p: edit_bytes(p / DATA, lambda b: b[:-300]),
        "damaged or unfinished parquet file: .*; restore it",
    ),
    Damage("no data", lambda p: (p / DATA).unlink(), "file-000.parquet is missing; restore it"),
    Damage(
        "cut video", lambda p: edit_bytes(p / VIDEO, lambda b: b[: len(b) // 2]), "file-000.mp4 is damaged"
    ),
    Damage(
        "fewer rows",
        lambda p: pq.write_table(pq.read_table(p / DATA).slice(0, 20), p / DATA),
        "has 20 rows, but its episodes 0 to 2 have 22 frames in meta",
    ),
    Damage(
        "frame gap", drop_a_frame, r"frame_index is 4 in row 3 \(episode 0, step 3\), expected frames without"
    ),
    Damage("other episode", in_column("episode_index", with_value(9, 2)), "episode_index is 2 in row 9"),
    Damage(
        "late frame",
        in_column("timestamp", lambda t: [x + 3.0 * (i > 4) for i, x in enumerate(t)]),
        "timestamp is 3.5 in row 5",
    ),
    Damage(
        "shifted video",
        in_column(f"{SPAN}/from_timestamp", with_value(1, 0.6), EPISODES),
        "an episode begins at 0.600 s in .*mp4, where another one ends at 0.800 s",
    ),
    Damage(
        "short video",
        in_column(f"{SPAN}/from_timestamp", lambda times: [time + 2 for time in times], EPISODES),
        "file-000.mp4 has 22 frames, but its episodes have 42",
    ),
    Damage(
        "no video column",
        in_column(f"{SPAN}/file_index", lambda n: None, EPISODES),
        "has no column 'videos/.*/file_index'",
    ),
    Damage("NaN as time", in_column("timestamp", with_value(4, np.nan)), "timestamp is nan in row 4"),
    Damage(
        "episodes miscounted",
        lambda p: edit_info(p, total_episodes=4),
        "lists 3 episodes, meta/info.json counts 4",
    ),
    Damage(
        "path above",
        lambda p: edit_info(p, data_path="../{chunk_index}.parquet"),
        "expected one inside the data set",
    ),
    Damage(
        "many features",
        lambda p: edit_info(p, features={str(k): {"dtype": "bool", "shape": [1]} for k in range(501)}),
        "info.json is damaged: .*length <= 500",
    ),
    Damage("long info", lambda p: edit_info(p, more=2**24 * "x"), "bytes, the limit is 16777216"),
    Damage("many columns", with_feature("action", shape=[3 * 10**6]), "3000000 numbers a frame, expected"),
    Damage("many axes", with_feature("action", shape=[1] * 65), "info.json is damaged: .*length <= 8"),
    Damage("other width", with_feature("action", shape=[3]), r"with lengths \[2\], expected float32 \(3,\)"),
    Damage(
        "no picture",
        in_column(TOP, with_value(4, {"bytes": b"?", "path": ""})),
        "not an undamaged JPEG or PNG",
    ),
    Damage(
        "other size of videos",
        with_feature(WRIST, shape=[40, 64, 3]),
        r"frames of shape \(48, 64, 3\), expected \(40, 64, 3\)",
    ),
]
DAMAGES_OF_VERSION_2 = [
    Damage("tiny fps", lambda p: edit_info(p, fps=1e-300), r"info.json is damaged: .*>= 0.001.*\$.fps"),
    Damage(
        "unknown codec",
        lambda p: edit_bytes(p / V2_VIDEO, lambda b: b.replace(b"avc1", b"zzzz")),
        "000001.mp4 holds video of an unknown codec",
    ),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("write", "damage"),
    [*((write_v3, each) for each in DAMAGES), *((write_v2, each) for each in DAMAGES_OF_VERSION_2)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_damage_is_refused(write: Callable[[Path], Path], damage: Damage, tmp_path: Path) -> None:
    damage.check(write(tmp_path / "set"), _read_everything)


def repeat_text(file: str, name: str) -> Callable[[Path], object]:
    """Return a function that makes a column a text of 100 kB, which is stored once for all rows."""
    return in_column(name, lambda rows: ["x" * 100_000] * len(rows), file)


def with_many_rows(path: Path) -> None:
    rows = 2**15
    state = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * rows, np.float32)), 4)
    pq.write_table(pa.table({"observation.state": state, "action": state}), path / DATA)
    edit_column(path / EPISODES, "length", lambda lengths: [8, 5, rows - 13])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (repeat_text(DATA, "timestamp"), "timestamp would take [0-9]+ bytes or more, the limit is 150000"),
        (repeat_text(DATA, "action"), "action would take [0-9]+ bytes or more, the limit is 150000"),
        (repeat_text(EPISODES, "length"), "would take [0-9]+ bytes or more, the limit is 150000"),
        (repeat_text("meta/tasks.parquet", "task"), "would take [0-9]+ bytes or more, the limit is 150000"),
        (
            with_many_rows,
            "has 32768 rows, the limit is 15625; set NSDE_POLICY_MAX_UNPACKED_BYTES to at least",
        ),
    ],
    ids=["time", "action", "length", "task", "rows"],
)
def test_files_that_grow_in_memory_are_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(write_v3(tmp_path))
    monkeypatch.setenv("NSDE_POLICY_MAX_UNPACKED_BYTES", "1000000" if make is with_many_rows else "150000")
    with pytest.raises(DemoError, match=message):
        load_demonstrations(tmp_path)


def test_short_lines_that_grow_in_memory_are_refused(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "set")
    (path / "meta/episodes.jsonl").write_text("{}\n" * (2**20 + 1))
    with pytest.raises(DemoError, match="lists 1048577 episodes or tasks, the limit is 1048576"):
        load_demonstrations(path)


def _read_everything(path: Path) -> None:
    source = open_source(path)
    assert isinstance(source, LeRobotSource)
    ends = source.read_ends()
    for name in ("observation.state", *source.find_arrays()):
        array = source.open_array(name)
        if len(array.shape) == 4:
            array.check_parts(int(ends[-1]))
            array.read(0, int(ends[-1]))
        else:
            read_columns(array, ends)
