"""Tests of damaged stores: each kind of damage is refused with a one-line message."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from nsde_policy.data import load_demonstrations
from nsde_policy.errors import DemoError
from tests.helpers.damage import Damage, Payload, replace_by_pipe
from tests.helpers.demo_stores import edit_bytes, example_arrays, write_store, zip_store


def with_arrays(**change: Any) -> Callable[[Path], Path]:
    return lambda path: write_store(path, {key.replace("__", "/"): value for key, value in change.items()})


def with_ends(*ends: float) -> Callable[[Path], Path]:
    return with_arrays(meta__episode_ends=np.array(ends))


def after(damage: Callable[[Path], object], **options: Any) -> Callable[[Path], Path]:
    """Write a valid store, then damage it."""

    def make(path: Path) -> Path:
        damage(write_store(path, **options))
        return path

    return make


def with_file(key: str, change: Callable[[bytes], bytes], **options: Any) -> Callable[[Path], Path]:
    """Write a valid store, then change one file."""
    return after(lambda store: edit_bytes(store / key, change), **options)


def with_metadata(key: str, *, zarr_format: int = 2, **change: Any) -> Callable[[Path], Path]:
    def edit(content: bytes) -> bytes:
        return json.dumps({**json.loads(content), **change}).encode()

    return with_file(key, edit, zarr_format=zarr_format)


def with_attributes(key: str, content: str) -> Callable[[Path], Path]:
    return after(lambda store: (store / key).write_text(content))


def with_pipe(key: str) -> Callable[[Path], Path]:
    return after(lambda store: replace_by_pipe(store / key))


def with_shards(damage: Callable[[Path], object]) -> Callable[[Path], Path]:
    """Write a state in shards of 20 frames, four chunks each; the second shard is damaged."""

    def write_shards(store: Path) -> None:
        array = zarr.open_group(store)["data"].create_array(
            "state", shape=(40, 5), chunks=(5, 5), shards=(20, 5), dtype="f4", overwrite=True
        )
        array[:] = example_arrays()["data/state"]
        damage(store / V3_CHUNK)

    return after(write_shards, zarr_format=3)


def write_truncated_zip(path: Path) -> Path:
    archive = zip_store(write_store(path))
    edit_bytes(archive, half)
    return archive


def link_in_a_circle(store: Path) -> None:
    shutil.rmtree(store / "data/state")
    (store / "data/a").mkdir()
    (store / "data/a/b").symlink_to("..")


def promise_frames(store: Path) -> None:
    """Let the metadata promise 10¹² frames."""
    zarr.open_group(store)["meta/episode_ends"][-1] = 10**12
    for name, width in (("state", 5), ("action", 2)):
        file = store / "data" / name / ".zarray"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), "shape": [10**12, width]}))


def with_pickles(**metadata: Any) -> Callable[[Path], Path]:
    """Write an array that zarr decodes with pickle, whose chunks create a folder when they are unpickled."""

    def make(path: Path) -> Path:
        with_metadata(META, **metadata)(path)
        for row in range(4):
            (path / f"data/state/{row}.0").write_bytes(pickle.dumps(Payload(path.parent / "executed")))
        return path

    return make


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


CHUNK, V3_CHUNK = "data/state/1.0", "data/state/c/1/0"
ZSTD = {"compressors": {"id": "zstd", "level": 1}}
BLOSC = {"compressors": numcodecs.Blosc()}
META, ATTRIBUTES, V3_META = "data/state/.zarray", "data/state/.zattrs", "data/state/zarr.json"

DAMAGES = [
    # the path
    Damage("missing path", lambda path: path, "does not exist"),
    Damage("other file", lambda path: write_store(path) / META, "neither a zarr directory nor"),
    Damage("other directory", lambda path: write_store(path) / "data/state", "neither .zgroup nor zarr.json"),
    Damage("pipe", lambda path: with_pipe("x")(path) / "x", "x is not a regular file"),
    Damage("truncated zip", write_truncated_zip, "nor an undamaged zip"),
    # arrays and metadata
    Damage("no state", with_arrays(data__state=None), "'state'.*holds: action, img"),
    Damage("no ends", with_arrays(meta__episode_ends=None), "'meta/episode_ends'.*write one past the last"),
    Damage("v2 metadata cut off", with_file(META, half), ".zarray is not valid JSON"),
    Damage(
        "attributes as text", with_metadata(V3_META, zarr_format=3, attributes="text"), "state is invalid"
    ),
    Damage("long metadata", with_metadata(META, filters=[[]] * 10**6), "bytes, expected at most 1048576"),
    Damage("huge shape", with_metadata(META, shape=[10**15, 5]), "differ in their number"),
    Damage("unknown v2 codec", with_metadata(META, compressor={"id": "foo"}), "foo"),
    # chunks
    Damage(
        "missing v2 chunk",
        after(lambda store: (store / CHUNK).unlink()),
        "1.0 is missing .*--accept-omitted.*reads 0",
    ),
    Damage("empty chunk", with_file(CHUNK, lambda _: b""), r"is empty \(0 bytes\)"),
    Damage(
        "20 GiB of zeros", after(lambda store: os.truncate(store / CHUNK, 20 * 2**30)), "21474836480 bytes"
    ),
    Damage("truncated Zstandard", with_file(CHUNK, half, **ZSTD), "frames 10 to 20 cannot be decoded"),
    Damage("truncated Blosc", with_file(CHUNK, half, **BLOSC), "its Blosc header says"),
    Damage("truncated shard", with_shards(lambda file: edit_bytes(file, half)), "decoded"),
    Damage("huge chunks", with_metadata(META, chunks=[10**9, 5]), "a chunk would take"),
    # files that are not what they seem
    Damage("chunk is a pipe", with_pipe(CHUNK), "not a regular file"),
    Damage("folders in a circle", after(link_in_a_circle), "no array 'state'"),
    # what the arrays hold
    Damage("pickled objects", with_pickles(dtype="|O", filters=[{"id": "pickle"}], fill_value=None), "pickl"),
    Damage("pickled floats", with_pickles(compressor={"id": "pickle"}), "pickles"),
    Damage("text", with_metadata(META, dtype="<U4", fill_value=""), "expected real numbers"),
    # frames and episodes
    Damage("no episodes", with_ends(), "holds 0 episodes"),
    Damage("uncovered frames", with_ends(15, 39), "ends at frame 39 of 40"),
    # angles and rates
    Damage("half a character", with_attributes(".zattrs", '{"task": "\\ud800"}'), "not valid"),
    Damage("angles are no list", with_attributes(ATTRIBUTES, '{"angles": "four"}'), '"four"'),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(tmp_path / "demos.zarr", load_demonstrations)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"obs_keys": ["joints"]}, "'joints'.*--obs-keys keypoint state"),
        ({"act_key": "x"}, "'x'.*--act-key action"),
        ({"obs_keys": ["img"]}, "camera images.*--obs-keys keypoint"),
        ({"obs_keys": ["state", "action"]}, "action is the action.*--obs-keys keypoint state"),
        ({"obs_keys": ()}, "at least one"),
        ({"angles": (4, 4)}, "twice"),
    ],
)
def test_arrays_and_angles_that_do_not_exist_are_refused(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(DemoError, match=message):
        load_demonstrations(write_store(tmp_path / "demos.zarr"), **arrays)


def test_huge_arrays_are_refused_also_if_chunks_may_be_omitted(tmp_path: Path) -> None:
    path = after(promise_frames)(tmp_path / "demos.zarr")
    with pytest.raises(DemoError, match="would take"):
        load_demonstrations(path, accept_omitted_chunks=True)
