"""Tests for data/zarr_store/writer.py: committed episodes survive any crash of the writer."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import nsde_policy.data.zarr_store.atomic_store as store_module
import nsde_policy.data.zarr_store.writer as writer_module
from nsde_policy.data import DemoWriter, load_demonstrations, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.readers import open_source
from nsde_policy.errors import DemoError
from nsde_policy.files import PARTIAL
from tests.helpers.demo_stores import flip_bit, read_files, write_store
from tests.helpers.numbered_episodes import make_episode, make_images


def record(path: Path, number: int = 0, **options: Any) -> None:
    with DemoWriter(path, **options) as writer:
        writer.append(make_episode(number))


def read_numbers(path: Path) -> list[int]:
    """Return the numbers of the episodes in a store after checking every frame."""
    demos = load_demonstrations(path)
    numbers = [int(e.obs[0, 0]) for e in demos]
    for number, stored in zip(numbers, demos, strict=True):
        np.testing.assert_array_equal(stored.obs, make_episode(number, len(stored)).obs)
        np.testing.assert_array_equal(stored.act, make_episode(number, len(stored)).act)
    return numbers


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
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 2
    assert group["data/state"].shape == (25, 3)
    assert list(group["meta/episode_ends"][:]) == [3, 7, 12, 18, 25]


def test_frames_are_read_and_written_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class CountedRows(np.ndarray):
        most = 0

        def __getitem__(self, rows: slice) -> np.ndarray:
            CountedRows.most = max(CountedRows.most, len(range(len(self))[rows]))
            return np.asarray(self)[rows]

    frames = np.random.default_rng(0).integers(0, 255, (50, 4, 4, 3)).astype(np.uint8)  # 48 bytes each
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 150)  # three frames
    monkeypatch.setattr(writer_module, "MAX_WRITE_BYTES", 300)
    with DemoWriter(tmp_path / "demos.zarr") as writer:
        for start, end in ((0, 20), (20, 50)):
            writer.append(make_episode(0, end - start), {"img": frames[start:end].view(CountedRows)})
    assert CountedRows.most == 6
    assert np.array_equal(open_images(tmp_path / "demos.zarr")[:], frames)


def test_episode_info_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for number in range(3):
        with DemoWriter(path, resume=True) as writer:
            writer.append(make_episode(number), info={"seed": number, "won": number > 0})
    with DemoWriter(path, resume=True) as writer:
        info = open_source(path).read_info()
        assert info["episode_seed"].tolist() == [0, 1, 2]
        assert info["episode_won"].tolist() == [False, True, True]
        for info in ({"seed": 3}, {"seed": 3, "won": np.nan}, {"seed": 0.5, "won": True}):
            with pytest.raises(DemoError):
                writer.append(make_episode(3), info=info)
        with pytest.raises(DemoError, match="cannot name episode information"):
            writer.append(make_episode(3), info={"ends": 3})
    assert read_numbers(path) == [0, 1, 2]


def test_session_without_episodes_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    for operator, count in (("ada", 2), ("bob", 0), ("eve", 1)):
        with DemoWriter(path, resume=True, provenance={"operator": operator}) as writer:
            for number in range(count):
                writer.append(make_episode(number))
    sessions = json.loads((path / ".zattrs").read_text())["sessions"]
    assert [(s["operator"], s["first_episode"]) for s in sessions] == [("ada", 0), ("eve", 2)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"made_with": {"by": "bob", "rule": [1, 2]}}, 'was made with by "ada", not "bob"'),
        ({"made_with": {"by": "ada"}}, r"was made with rule \[1, 2\], not null"),
        ({"rate_hz": 20}, "rate_hz 10, not 20"),
        ({"angles": ()}, r"angle columns \[2\]"),
        ({"resume": False}, r"already holds episodes; append .* resume=True, or choose a new"),
    ],
)
def test_recording_with_other_settings_is_not_continued(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "demos.zarr"
    settings: dict[str, Any] = {"resume": True, "rate_hz": 10, "angles": (2,)}
    settings["made_with"] = {"by": "ada", "rule": (1, 2)}
    record(path, **settings)
    before = read_files(path)
    with pytest.raises(DemoError, match=message):
        DemoWriter(path, **settings | change)
    assert read_files(path) == before
    record(path, 1, **settings)
    assert read_numbers(path) == [0, 1]


COMMITTED = [[], [0], [0, 1], [0], [0, 2]]
"""Episodes in the store after each step of the test below: append, append, drop, append."""


@pytest.mark.slow
def test_crash_before_any_write_loses_at_most_the_current_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy the store before each file is replaced, half of the times with that file half written."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 150)
    monkeypatch.setattr(writer_module, "MAX_WRITE_BYTES", 150)  # one chunk after the other
    path, replace = tmp_path / "demos.zarr", writer_module.replace_file
    copies: list[tuple[Path, int]] = []
    steps = 0

    def copy_and_replace(target: Path, content: bytes) -> None:
        copy = shutil.copytree(path, tmp_path / f"{len(copies)}.zarr")
        if len(copies) % 2:
            partial = copy / target.relative_to(path).with_name(target.name + PARTIAL)
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(content[: len(content) // 2])
        copies.append((copy, steps))
        replace(target, content)

    with monkeypatch.context() as patch, DemoWriter(path, resume=True) as writer:
        for module in (writer_module, store_module):
            patch.setattr(module, "replace_file", copy_and_replace)
        for number in range(3):
            writer.append(make_episode(number), info={"seed": number})
            steps += 1
            if number == 1:
                writer.drop_last()
                steps += 1
    assert len(copies) > 20
    for copy, done in copies:
        before = read_numbers(copy) if COMMITTED[done] else None
        with DemoWriter(copy, resume=True) as writer:
            seeds = open_source(copy).read_info()["episode_seed"].tolist() if len(writer) else []
            assert seeds in COMMITTED[done : done + 2], copy
            assert before in (None, seeds)
            assert not list(copy.rglob(f"*{PARTIAL}"))
            writer.append(make_episode(9), info={"seed": 9})
        assert read_numbers(copy) == [*seeds, 9], copy
        assert zarr.open_group(copy, mode="r")["data/state"].shape[0] == 7 * (len(seeds) + 1)


@pytest.mark.parametrize("name", ["data/state/0.0", "meta/episode_ends/0"])
def test_flipped_bits_in_a_recording_are_detected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "demos.zarr"
    record(path)
    whole = (path / name).read_bytes()
    for at in range(8, len(whole), 7):  # behind the header of Zstandard
        (path / name).write_bytes(flip_bit(whole, at))
        with pytest.raises(DemoError):
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
    for call in (second.drop_last, lambda: second.append(make_episode(2))):
        with pytest.raises(DemoError, match="is closed"):
            call()


def test_other_and_damaged_stores_are_left_unchanged(tmp_path: Path) -> None:
    foreign, damaged = write_store(tmp_path / "foreign.zarr"), tmp_path / "damaged.zarr"
    (foreign / "film.partial").write_text("half a film")
    record(damaged)
    (damaged / "meta/episode_ends/.zarray").unlink()
    for path, message in ((foreign, "not a recording of this package"), (damaged, "lost meta/episode_ends")):
        before = read_files(path)
        with pytest.raises(DemoError, match=message):
            DemoWriter(path)
        assert read_files(path) == before


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, "the recording has"),
        ({"img": np.ones((7, 4, 4))}, r"data/img is float64 \(7, 4, 4\)"),
        ({"img": np.ones((6, 200, 200, 3), np.uint8)}, "expected 7 rows"),
        ({"img": np.full((7, 1), np.nan)}, "NaN"),
        ({"img": np.full((7, 200, 200, 3), 0.5)}, "multiply them by 255"),
        ({"../img": np.ones((7, 3))}, "cannot name"),
    ],
)
def test_mismatched_rows_are_rejected_and_nothing_is_lost(
    tmp_path: Path, extras: dict[str, Any], message: str
) -> None:
    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0), make_images(0))
        with pytest.raises(DemoError, match=message):
            writer.append(make_episode(1), extras)
        writer.append(make_episode(2), make_images(2))
    assert read_numbers(path) == [0, 2]


def test_full_disk_is_reported_and_the_writer_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: Path, content: bytes) -> None:
        raise OSError(28, os.strerror(28))

    path = tmp_path / "demos.zarr"
    with DemoWriter(path) as writer:
        writer.append(make_episode(0))
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "replace_file", full)
            with pytest.raises(DemoError, match="No space left on device; earlier ones are safe"):
                writer.append(make_episode(1))
        writer.append(make_episode(2))
    assert read_numbers(path) == [0, 2]


def test_recording_without_episodes_is_reported_and_started_again(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    DemoWriter(path, rate_hz=5).close()
    with pytest.raises(DemoError, match="0 episodes"):
        load_demonstrations(path)
    record(path, rate_hz=10)
    assert load_demonstrations(path).rate_hz == 10
