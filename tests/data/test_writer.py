"""Tests for data/zarr_store/writer.py: what was committed survives, whatever happens to the writer."""

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
from nsde_policy.data import DemoWriter, Episode, load_demonstrations, open_images
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.errors import (
    DamagedStoreError,
    DemoError,
    EpisodeError,
    NotAStoreError,
    StoreLockedError,
)
from nsde_policy.files import PARTIAL
from tests.helpers.demo_stores import flip_bit, write_store


def episode(number: int, steps: int = 7) -> Episode:
    """An episode that says its own number in every frame, and its step."""
    step = np.arange(steps)
    obs = np.stack([np.full(steps, number), step, step * 0.1], axis=1)
    return Episode(obs=obs, act=-obs[:, :2])


def images(number: int, steps: int = 7) -> dict[str, Any]:
    return {"img": np.full((steps, 200, 200, 3), number, np.uint8)}


def numbers(path: Path) -> list[int]:
    """Numbers of the episodes in a store, after checking every frame of every one."""
    demos = load_demonstrations(path)
    found = [int(e.obs[0, 0]) for e in demos]
    for number, stored in zip(found, demos, strict=True):
        np.testing.assert_array_equal(stored.obs, episode(number, len(stored)).obs)
        np.testing.assert_array_equal(stored.act, episode(number, len(stored)).act)
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "demos.zarr"
    with DemoWriter(path, rate_hz=10, angles=(2,), provenance={"operator": "ada"}) as writer:
        for number in range(5):
            writer.append(episode(number, steps=3 + number), images(number, 3 + number))
        assert len(writer) == 5

    demos = load_demonstrations(path)
    assert numbers(path) == [0, 1, 2, 3, 4]
    assert (demos.angles, demos.rate_hz) == ((2,), 10)
    frames = open_images(path)
    assert frames.shape == (25, 200, 200, 3)
    assert [int(frames[end - 1].max()) for end in demos.episode_ends] == [0, 1, 2, 3, 4]
    assert check_store(path) == []
    session = json.loads((path / ".zattrs").read_text())["sessions"][0]
    assert (session["operator"], session["first_episode"]) == ("ada", 0)


def test_plain_zarr_reads_it_as_a_replay_buffer(tmp_path: Path) -> None:
    with DemoWriter(tmp_path / "demos.zarr") as writer:
        writer.append(episode(0))
        writer.append(episode(1))
    group = zarr.open_group(tmp_path / "demos.zarr", mode="r")
    assert group.metadata.zarr_format == 2
    assert group["data/state"].shape == (14, 3)
    assert list(group["meta/episode_ends"][:]) == [7, 14]


def test_a_recording_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for number in range(3):
        with DemoWriter(path, rate_hz=10) as writer:
            assert len(writer) == number
            writer.append(episode(number))
    assert numbers(path) == [0, 1, 2]
    sessions = json.loads((path / ".zattrs").read_text())["sessions"]
    assert [s["first_episode"] for s in sessions] == [0, 1, 2]


def test_chunks_are_finished_and_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 60
    )  # five frames of state, one end
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        for number in range(6):
            writer.append(episode(number, steps=2 + 3 * (number % 3)))
    with DemoWriter(path) as writer:
        writer.append(episode(6))
    assert numbers(path) == list(range(7))
    assert len(list((path / "data/state").glob("[0-9]*"))) == 8


def test_the_last_episode_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        for number in range(3):
            writer.append(episode(number), images(number))
        writer.drop_last()
        assert numbers(path) == [0, 1]
        writer.append(episode(7, steps=3), images(7, 3))
        assert numbers(path) == [0, 1, 7]
        for _ in range(3):
            writer.drop_last()
        with pytest.raises(EpisodeError, match="no episode to drop"):
            writer.drop_last()
        writer.append(episode(8))
    assert numbers(path) == [8]


def test_death_while_an_episode_is_taken_back_leaves_it_there_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 60)
    for lives in itertools.count():
        path = tmp_path / f"{lives}.zarr"
        with DemoWriter(path) as writer:
            for number in range(4):
                writer.append(episode(number), info={"seed": number})
        finished = False
        with monkeypatch.context() as patch, contextlib.suppress(Killed), DemoWriter(path) as writer:
            dying_writer(patch, lives, half_written=True)
            writer.drop_last()
            finished = True
        assert numbers(path) in ([0, 1, 2], [0, 1, 2, 3][: 4 - finished])
        assert check_store(path) == []
        with DemoWriter(path) as writer:
            assert writer.read_info()["seed"].tolist() == numbers(path)
            writer.append(episode(9), info={"seed": 9})
            assert writer.read_info()["seed"].tolist() == numbers(path)
        if finished:
            break
    assert lives >= 3


def test_a_note_about_each_episode_is_kept_with_it(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for number in range(3):
        with DemoWriter(path) as writer:
            writer.append(episode(number), info={"seed": number, "won": number > 0})
    with DemoWriter(path) as writer:
        assert writer.read_info()["seed"].tolist() == [0, 1, 2]
        assert writer.read_info()["won"].tolist() == [False, True, True]
        for info in ({"seed": 3}, {"seed": 3, "won": np.nan}, {"seed": 0.5, "won": True}):
            with pytest.raises(DemoError):
                writer.append(episode(3), info=info)
        with pytest.raises(EpisodeError, match="cannot name episode information"):
            writer.append(episode(3), info={"ends": 3})
    assert numbers(path) == [0, 1, 2]


def test_who_records_nothing_is_not_noted(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, provenance={"operator": "ada"}) as writer:
        writer.append(episode(0))
        writer.append(episode(1))
    with DemoWriter(path, provenance={"operator": "bob"}):
        pass
    with DemoWriter(path, provenance={"operator": "eve"}) as writer:
        writer.append(episode(2))
        writer.drop_last()
        writer.drop_last()
        writer.append(episode(3))
    sessions = json.loads((path / ".zattrs").read_text())["sessions"]
    assert [(s["operator"], s["first_episode"]) for s in sessions] == [("ada", 0), ("eve", 1)]


def test_a_recording_made_otherwise_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, made_with={"by": "ada", "rule": [1, 2]}) as writer:
        writer.append(episode(0))
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    for other in ({"by": "bob", "rule": [1, 2]}, {"by": "ada"}, None):
        with pytest.raises(EpisodeError, match="was made"):
            DemoWriter(path, made_with=other)
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with DemoWriter(path, made_with={"by": "ada", "rule": (1, 2)}) as writer:
        assert len(writer) == 1


def lengths_on_disk(path: Path) -> set[int]:
    """How many rows plain zarr sees in the arrays below data/."""
    return {array.shape[0] for _, array in zarr.open_group(path, mode="r")["data"].arrays()}


class Killed(BaseException):
    """Stands for the end of the process."""


def dying_writer(monkeypatch: pytest.MonkeyPatch, lives: int, half_written: bool) -> None:
    """Let the writer replace `lives` files more, then die, leaving the next one half written or untouched."""
    count = itertools.count()
    replace = writer_module.replace_file

    def replace_or_die(target: Path, content: bytes) -> None:
        if next(count) < lives:
            return replace(target, content)
        if half_written:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_name(target.name + PARTIAL).write_bytes(content[: len(content) // 2])
        raise Killed

    monkeypatch.setattr(writer_module, "replace_file", replace_or_die)


@pytest.mark.parametrize("half_written", [False, True])
def test_death_between_any_two_steps_loses_only_the_episode_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_written: bool
) -> None:
    monkeypatch.setattr("nsde_policy.data.zarr_store.growing_array.CHUNK_BYTES", 100)
    finished = False
    for lives in itertools.count():
        path, committed = tmp_path / f"{lives}.zarr", 0
        with monkeypatch.context() as patch:
            dying_writer(patch, lives, half_written)
            try:
                with DemoWriter(path) as writer:
                    for number in range(3):
                        writer.append(episode(number))
                        committed += 1
                    finished = True
            except Killed:
                pass
        if committed:
            assert numbers(path) == list(range(committed)), f"before repair, after {lives} steps"
            assert check_store(path) == []
        with DemoWriter(path) as writer:
            assert len(writer) == committed
            assert lengths_on_disk(path) <= {7 * committed}, "the tail was not cut off"
            assert not list(path.rglob(f"*{PARTIAL}"))
            writer.append(episode(9))
        assert numbers(path) == [*range(committed), 9], f"after {lives} steps"
        assert lengths_on_disk(path) == {7 * (committed + 1)}
        if finished:
            break
    assert lives > 20


RECORDER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.data.test_writer import episode, images
from nsde_policy.data import DemoWriter

with DemoWriter(sys.argv[1]) as writer:
    print("ready", flush=True)
    while True:
        number = len(writer)
        writer.append(episode(number, 5 + number % 9), images(number, 5 + number % 9))
        print(number, flush=True)
"""


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    path, root = tmp_path / "demos.zarr", Path(__file__).resolve().parents[2]
    rng = random.Random(0)
    promised = 0
    for _ in range(6):
        command = [sys.executable, "-c", RECORDER, str(path), str(root)]
        recorder = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        for _ in range(rng.randrange(1, 4)):
            recorder.stdout.readline()
        growing = numbers(path)
        assert len(growing) > promised, "a store can be read while it grows"
        time.sleep(rng.uniform(0, 0.05))
        recorder.send_signal(signal.SIGKILL)
        reported = recorder.communicate()[0].split("\n")[:-1]
        found = numbers(path)
        assert found == list(range(len(found)))
        assert promised < len(found)
        if reported:
            assert int(reported[-1]) + 1 <= len(found) <= int(reported[-1]) + 2
        promised = len(found)
    with DemoWriter(path) as writer:
        assert len(writer) == promised
    assert check_store(path) == []


def test_a_flipped_bit_in_a_recording_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(episode(0))
    for name in ("data/state/0.0", "data/action/0.0", "meta/episode_ends/0"):
        whole = (path / name).read_bytes()
        noticed = 0
        for at in range(len(whole)):
            (path / name).write_bytes(flip_bit(whole, at))
            try:
                assert numbers(path) == [0], "the bit meant nothing"
            except DamagedStoreError:
                noticed += 1
        assert noticed >= len(whole) - 2  # a bit or two of a Zstandard header mean nothing
        (path / name).write_bytes(whole)
    assert numbers(path) == [0]


def test_a_foreign_store_with_a_tail_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(episode(0))
        writer.append(episode(1))
    ends = json.loads((path / "meta/episode_ends/.zarray").read_text())
    (path / "meta/episode_ends/.zarray").write_text(json.dumps({**ends, "shape": [1]}))
    assert numbers(path) == [0]
    (path / ".zattrs").write_text("{}")
    with pytest.raises(EpisodeError, match="ends at 7 of 14"):
        load_demonstrations(path)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as first:
        with pytest.raises(StoreLockedError, match="another process"):
            DemoWriter(path)
        first.append(episode(0))
    with DemoWriter(path) as second:
        second.append(episode(1))
    assert numbers(path) == [0, 1]
    with pytest.raises(DemoError, match="is closed"):
        second.append(episode(2))


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    foreign = write_store(tmp_path / "foreign.zarr")
    (foreign / "film.partial").write_text("half a film")
    before = {p: p.stat().st_mtime_ns for p in foreign.rglob("*")}
    with pytest.raises(NotAStoreError, match="not a recording of this package"):
        DemoWriter(foreign)
    assert before == {p: p.stat().st_mtime_ns for p in foreign.rglob("*")}

    (tmp_path / "file").write_text("")
    with pytest.raises(NotAStoreError, match="cannot be created"):
        DemoWriter(tmp_path / "file")


def test_a_recording_that_lost_its_ends_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(episode(0))
    (path / "meta/episode_ends/.zarray").unlink()
    with pytest.raises(DamagedStoreError, match="has lost meta/episode_ends"):
        DemoWriter(path)
    assert (path / "data/state/0.0").exists()


def test_other_settings_cannot_continue_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path, rate_hz=10, angles=(2,)) as writer:
        writer.append(episode(0))
    with pytest.raises(EpisodeError, match="'rate_hz': 10"):
        DemoWriter(path, rate_hz=20, angles=(2,))
    with pytest.raises(EpisodeError, match=r"angle columns \[2\]"):
        DemoWriter(path, rate_hz=10)
    with DemoWriter(path, rate_hz=10, angles=(2,)) as writer:
        assert len(writer) == 1


@pytest.mark.parametrize(
    ("extras", "error", "message"),
    [
        ({}, EpisodeError, "the recording has"),
        ({"img": np.ones((7, 4, 4))}, EpisodeError, r"data/img is float64 \(7, 4, 4\)"),
        ({"img": np.ones((6, 200, 200, 3), np.uint8)}, EpisodeError, "expected 7 rows"),
        ({"img": np.full((7, 1), "x")}, EpisodeError, "real numbers"),
        ({"img": np.full((7, 1), np.nan)}, EpisodeError, "NaN"),
        ({"state": np.ones((7, 3))}, EpisodeError, "cannot name"),
        ({"../img": np.ones((7, 3))}, EpisodeError, "cannot name"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_cost_nothing(
    tmp_path: Path, extras: dict[str, Any], error: type[DemoError], message: str
) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(episode(0), images(0))
        with pytest.raises(error, match=message):
            writer.append(episode(1), extras)
        writer.append(episode(2), images(2))
    assert numbers(path) == [0, 2]


def test_an_angle_column_must_exist(tmp_path: Path) -> None:
    with (
        DemoWriter(tmp_path / "demos.zarr", angles=(3,)) as writer,
        pytest.raises(EpisodeError, match="0 to 2"),
    ):
        writer.append(episode(0))


def test_a_full_disk_is_said_and_the_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: Path, content: bytes) -> None:
        raise OSError(28, os.strerror(28))

    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(episode(0))
        with monkeypatch.context() as patch:
            patch.setattr(writer_module, "replace_file", full)
            with pytest.raises(DemoError, match="No space left on device; earlier ones are safe"):
                writer.append(episode(1))
        writer.append(episode(2))
    assert numbers(path) == [0, 2]


def test_no_episode_yet_is_said(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    DemoWriter(path).close()
    with pytest.raises(EpisodeError, match="there is no episode"):
        load_demonstrations(path)
