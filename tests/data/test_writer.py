"""Tests for data/zarr_store/writer.py: committed episodes survive any crash of the writer."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import nsde_policy.data.zarr_store.writer as writer_module
from nsde_policy.data import DemoWriter, load_demonstrations, open_images
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.errors import (
    DemoError,
)
from nsde_policy.files import PARTIAL
from tests.helpers.demo_stores import flip_bit, write_store
from tests.helpers.numbered_episodes import make_episode, make_images


def read_numbers(path: Path) -> list[int]:
    """Return the numbers of the episodes in a store after checking every frame."""
    demos = load_demonstrations(path)
    found = [int(e.obs[0, 0]) for e in demos]
    for number, stored in zip(found, demos, strict=True):
        np.testing.assert_array_equal(stored.obs, make_episode(number, len(stored)).obs)
        np.testing.assert_array_equal(stored.act, make_episode(number, len(stored)).act)
    return found


def test_recording_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "demos.zarr"
    with DemoWriter(path, rate_hz=10, angles=(2,), provenance={"operator": "ada"}) as writer:
        for number in range(5):
            writer.append(make_episode(number, steps=3 + number), make_images(number, 3 + number))
        assert len(writer) == 5

    demos = load_demonstrations(path)
    assert read_numbers(path) == [0, 1, 2, 3, 4]
    assert (demos.angles, demos.rate_hz) == ((2,), 10)
    frames = open_images(path)
    assert frames.shape == (25, 200, 200, 3)
    assert [int(frames[end - 1].max()) for end in demos.episode_ends] == [0, 1, 2, 3, 4]
    assert check_store(path) == []
    session = json.loads((path / ".zattrs").read_text())["sessions"][0]
    assert (session["operator"], session["first_episode"]) == ("ada", 0)


def test_zarr_reads_recording_as_replay_buffer(tmp_path: Path) -> None:
    with DemoWriter(tmp_path / "demos.zarr") as writer:
        writer.append(make_episode(0))
        writer.append(make_episode(1))
    group = zarr.open_group(tmp_path / "demos.zarr", mode="r")
    assert group.metadata.zarr_format == 2
    assert group["data/state"].shape == (14, 3)
    assert list(group["meta/episode_ends"][:]) == [7, 14]


def test_recording_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for number in range(3):
        with DemoWriter(path, resume=True, rate_hz=10) as writer:
            assert len(writer) == number
            writer.append(make_episode(number))
    assert read_numbers(path) == [0, 1, 2]
    sessions = json.loads((path / ".zattrs").read_text())["sessions"]
    assert [s["first_episode"] for s in sessions] == [0, 1, 2]


def test_episodes_span_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 60
    )  # five frames of state, one end
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, resume=True) as writer:
        for number in range(6):
            writer.append(make_episode(number, steps=2 + 3 * (number % 3)))
    with DemoWriter(path, resume=True) as writer:
        writer.append(make_episode(6))
    assert read_numbers(path) == list(range(7))
    assert len(list((path / "data/state").glob("[0-9]*"))) == 8


class CountedRows:
    """Rows that are read in slices, and the largest number that was read at once."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows, self.shape, self.dtype, self.most = rows, rows.shape, rows.dtype, 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.most = max(self.most, len(self._rows[rows]))
        return self._rows[rows]


def test_frames_are_read_and_written_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (50, 4, 4, 3)).astype(np.uint8)  # 48 bytes each
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 150)  # three frames
    stores = []
    for limit in (2**20, 300):
        monkeypatch.setattr(writer_module, "MAX_WRITE_BYTES", limit)
        stores.append(tmp_path / f"{limit}.zarr")
        with DemoWriter(stores[-1]) as writer:
            for start, end in ((0, 20), (20, 50)):
                rows = CountedRows(frames[start:end])
                writer.append(make_episode(0, end - start), {"img": rows})
                assert rows.most == (end - start if limit > 300 else 6)
    assert np.array_equal(open_images(stores[1])[:], frames)
    for file in (stores[0] / "data/img").iterdir():
        assert (stores[1] / "data/img" / file.name).read_bytes() == file.read_bytes()


def test_last_episode_can_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        for number in range(3):
            writer.append(make_episode(number), make_images(number))
        writer.drop_last()
        assert read_numbers(path) == [0, 1]
        writer.append(make_episode(7, steps=3), make_images(7, 3))
        assert read_numbers(path) == [0, 1, 7]
        for _ in range(3):
            writer.drop_last()
        with pytest.raises(DemoError, match="no episode to drop"):
            writer.drop_last()
        writer.append(make_episode(8))
    assert read_numbers(path) == [8]


def test_crash_while_dropping_an_episode_keeps_or_drops_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 60)
    for writes in itertools.count():
        path = tmp_path / f"{writes}.zarr"
        with DemoWriter(path, resume=True) as writer:
            for number in range(3):
                writer.append(make_episode(number), info={"seed": number})
        finished = False
        with (
            monkeypatch.context() as patch,
            contextlib.suppress(Crash),
            DemoWriter(path, resume=True) as writer,
        ):
            crash_after(patch, writes, half_written=True)
            writer.drop_last()
            finished = True
        assert read_numbers(path) in ([0, 1], [0, 1, 2][: 3 - finished])
        assert check_store(path) == []
        with DemoWriter(path, resume=True) as writer:
            assert writer.read_info()["seed"].tolist() == read_numbers(path)
            writer.append(make_episode(9), info={"seed": 9})
            assert writer.read_info()["seed"].tolist() == read_numbers(path)
        if finished:
            break
    assert writes >= 3


def test_episode_info_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for number in range(3):
        with DemoWriter(path, resume=True) as writer:
            writer.append(make_episode(number), info={"seed": number, "won": number > 0})
    with DemoWriter(path, resume=True) as writer:
        assert writer.read_info()["seed"].tolist() == [0, 1, 2]
        assert writer.read_info()["won"].tolist() == [False, True, True]
        for info in ({"seed": 3}, {"seed": 3, "won": np.nan}, {"seed": 0.5, "won": True}):
            with pytest.raises(DemoError):
                writer.append(make_episode(3), info=info)
        with pytest.raises(DemoError, match="cannot name episode information"):
            writer.append(make_episode(3), info={"ends": 3})
    assert read_numbers(path) == [0, 1, 2]


def test_session_without_episodes_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, resume=True, provenance={"operator": "ada"}) as writer:
        writer.append(make_episode(0))
        writer.append(make_episode(1))
    with DemoWriter(path, resume=True, provenance={"operator": "bob"}):
        pass
    with DemoWriter(path, resume=True, provenance={"operator": "eve"}) as writer:
        writer.append(make_episode(2))
        writer.drop_last()
        writer.drop_last()
        writer.append(make_episode(3))
    sessions = json.loads((path / ".zattrs").read_text())["sessions"]
    assert [(s["operator"], s["first_episode"]) for s in sessions] == [("ada", 0), ("eve", 1)]


def test_recording_with_other_made_with_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, resume=True, made_with={"by": "ada", "rule": [1, 2]}) as writer:
        writer.append(make_episode(0))
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    for other in ({"by": "bob", "rule": [1, 2]}, {"by": "ada"}, None):
        with pytest.raises(DemoError, match="was made"):
            DemoWriter(path, resume=True, made_with=other)
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with DemoWriter(path, resume=True, made_with={"by": "ada", "rule": (1, 2)}) as writer:
        assert len(writer) == 1
    with DemoWriter(
        tmp_path / "frames.zarr", resume=True, made_with={"by": "ada", "images": ["img"]}
    ) as writer:
        writer.append(make_episode(0))
    with pytest.raises(DemoError, match=r'images \["img"\], not null; .*add --obs pixels'):
        DemoWriter(tmp_path / "frames.zarr", resume=True, made_with={"by": "ada"})


def read_lengths(path: Path) -> set[int]:
    """Return the lengths of the arrays below data/ as zarr reads them."""
    return {array.shape[0] for _, array in zarr.open_group(path, mode="r")["data"].arrays()}


class Crash(BaseException):
    """Simulated end of the process."""


def crash_after(monkeypatch: pytest.MonkeyPatch, writes: int, half_written: bool) -> None:
    """Crash after `writes` more files, with the next one half written or untouched."""
    count = itertools.count()
    replace = writer_module.replace_file

    def replace_or_crash(target: Path, content: bytes) -> None:
        if next(count) < writes:
            return replace(target, content)
        if half_written:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_name(target.name + PARTIAL).write_bytes(content[: len(content) // 2])
        raise Crash

    monkeypatch.setattr(writer_module, "replace_file", replace_or_crash)


@pytest.mark.parametrize("half_written", [False, True])
def test_crash_between_any_two_writes_loses_only_the_current_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_written: bool
) -> None:
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 100)
    if half_written:
        monkeypatch.setattr(writer_module, "MAX_WRITE_BYTES", 100)  # one chunk after the other
    finished = False
    for writes in itertools.count():
        path, committed = tmp_path / f"{writes}.zarr", 0
        with monkeypatch.context() as patch:
            crash_after(patch, writes, half_written)
            try:
                with DemoWriter(path, resume=True) as writer:
                    for number in range(2):
                        writer.append(make_episode(number))
                        committed += 1
                    finished = True
            except Crash:
                pass
        if committed:
            assert read_numbers(path) == list(range(committed)), f"before repair, after {writes} steps"
            assert check_store(path) == []
        with DemoWriter(path, resume=True) as writer:
            assert len(writer) == committed
            assert read_lengths(path) <= {7 * committed}, "the tail was not cut off"
            assert not list(path.rglob(f"*{PARTIAL}"))
            writer.append(make_episode(9))
        assert read_numbers(path) == [*range(committed), 9], f"after {writes} steps"
        assert read_lengths(path) == {7 * (committed + 1)}
        if finished:
            break
    assert writes > 20


RECORDER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.helpers.numbered_episodes import make_episode, make_images
from nsde_policy.data import DemoWriter

with DemoWriter(sys.argv[1], resume=True) as writer:
    print("ready", flush=True)
    while True:
        number = len(writer)
        writer.append(make_episode(number, 5 + number % 9), make_images(number, 5 + number % 9))
        print(number, flush=True)
"""


def test_sigkill_at_random_times_loses_only_the_current_episode(tmp_path: Path) -> None:
    path, root = tmp_path / "demos.zarr", Path(__file__).resolve().parents[2]
    rng = random.Random(0)
    committed_before = 0
    for _ in range(6):
        command = [sys.executable, "-c", RECORDER, str(path), str(root)]
        recorder = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        for _ in range(rng.randrange(1, 4)):
            recorder.stdout.readline()
        growing = read_numbers(path)
        assert len(growing) > committed_before, "a store can be read while it grows"
        time.sleep(rng.uniform(0, 0.05))
        recorder.send_signal(signal.SIGKILL)
        reported = recorder.communicate()[0].split("\n")[:-1]
        found = read_numbers(path)
        assert found == list(range(len(found)))
        assert committed_before < len(found)
        if reported:
            assert int(reported[-1]) + 1 <= len(found) <= int(reported[-1]) + 2
        committed_before = len(found)
    with DemoWriter(path, resume=True) as writer:
        assert len(writer) == committed_before
    assert check_store(path) == []


def test_flipped_bits_in_a_recording_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 60)
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0, steps=2))
    for name in ("data/state/0.0", "data/action/0.0", "meta/episode_ends/0"):
        whole = (path / name).read_bytes()
        detected = 0
        for at in range(len(whole)):
            (path / name).write_bytes(flip_bit(whole, at))
            try:
                assert read_numbers(path) == [0], "the bit has no meaning"
            except DemoError:
                detected += 1
        assert detected >= len(whole) - 2  # one or two bits of a Zstandard header have no meaning
        (path / name).write_bytes(whole)
    assert read_numbers(path) == [0]


def test_uncommitted_rows_are_an_error_in_other_stores(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0))
        writer.append(make_episode(1))
    ends = json.loads((path / "meta/episode_ends/.zarray").read_text())
    (path / "meta/episode_ends/.zarray").write_text(json.dumps({**ends, "shape": [1]}))
    assert read_numbers(path) == [0]
    (path / ".zattrs").write_text("{}")
    with pytest.raises(DemoError, match="ends at 7 of 14"):
        load_demonstrations(path)


def test_second_writer_is_rejected_until_the_first_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, resume=True) as first:
        with pytest.raises(DemoError, match="another process"):
            DemoWriter(path, resume=True)
        first.append(make_episode(0))
    with DemoWriter(path, resume=True) as second:
        second.append(make_episode(1))
    assert read_numbers(path) == [0, 1]
    for call in (second.drop_last, second.read_info):
        with pytest.raises(DemoError, match="is closed"):
            call()
    with pytest.raises(DemoError, match="is closed"):
        second.append(make_episode(2))


def test_other_stores_and_files_are_left_unchanged(tmp_path: Path) -> None:
    foreign = write_store(tmp_path / "foreign.zarr")
    (foreign / "film.partial").write_text("half a film")
    before = {p: p.stat().st_mtime_ns for p in foreign.rglob("*")}
    with pytest.raises(DemoError, match="not a recording of this package"):
        DemoWriter(foreign)
    assert before == {p: p.stat().st_mtime_ns for p in foreign.rglob("*")}

    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match="cannot be created"):
        DemoWriter(tmp_path / "file")


def test_recording_without_episode_ends_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0))
    (path / "meta/episode_ends/.zarray").unlink()
    with pytest.raises(DemoError, match="has lost meta/episode_ends"):
        DemoWriter(path)
    assert (path / "data/state/0.0").exists()


def test_recording_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, resume=True, rate_hz=10, angles=(2,)) as writer:
        writer.append(make_episode(0))
    with pytest.raises(DemoError, match="rate_hz 10, not 20"):
        DemoWriter(path, resume=True, rate_hz=20, angles=(2,))
    with pytest.raises(DemoError, match=r"angle columns \[2\]"):
        DemoWriter(path, resume=True, rate_hz=10)
    with DemoWriter(path, resume=True, rate_hz=10, angles=(2,)) as writer:
        assert len(writer) == 1


@pytest.mark.parametrize(
    ("extras", "error", "message"),
    [
        ({}, DemoError, "the recording has"),
        ({"img": np.ones((7, 4, 4))}, DemoError, r"data/img is float64 \(7, 4, 4\)"),
        ({"img": np.ones((6, 200, 200, 3), np.uint8)}, DemoError, "expected 7 rows"),
        ({"img": np.full((7, 1), "x")}, DemoError, "real numbers"),
        ({"img": np.full((7, 1), np.nan)}, DemoError, "NaN"),
        ({"state": np.ones((7, 3))}, DemoError, "cannot name"),
        ({"../img": np.ones((7, 3))}, DemoError, "cannot name"),
    ],
)
def test_mismatched_rows_are_rejected_and_nothing_is_lost(
    tmp_path: Path, extras: dict[str, Any], error: type[DemoError], message: str
) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0), make_images(0))
        with pytest.raises(error, match=message):
            writer.append(make_episode(1), extras)
        writer.append(make_episode(2), make_images(2))
    assert read_numbers(path) == [0, 2]


def test_angle_column_must_exist(tmp_path: Path) -> None:
    with (
        DemoWriter(tmp_path / "demos.zarr", angles=(3,)) as writer,
        pytest.raises(DemoError, match="0 to 2"),
    ):
        writer.append(make_episode(0))


def test_full_disk_is_reported_and_the_writer_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: Path, content: bytes) -> None:
        raise OSError(28, os.strerror(28))

    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0))
        with monkeypatch.context() as patch:
            patch.setattr(writer_module, "replace_file", full)
            with pytest.raises(DemoError, match="No space left on device; earlier ones are safe"):
                writer.append(make_episode(1))
        writer.append(make_episode(2))
    assert read_numbers(path) == [0, 2]


def test_recording_without_episodes_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    DemoWriter(path).close()
    with pytest.raises(DemoError, match="at least 1"):
        load_demonstrations(path)
