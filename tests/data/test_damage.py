"""Tests of damaged stores: each kind of damage raises its own error with a one-line message."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

from nsde_policy.data import load_demonstrations
from nsde_policy.errors import (
    DemoError,
)
from tests.helpers.demo_stores import edit_bytes, example_arrays, flip_bit, write_store, zip_store


@dataclass(frozen=True)
class Damage:
    """A kind of damage and the expected error."""

    name: str
    make: Callable[[Path], Path]
    """Write a damaged store to the given path and return its path."""
    error: type[DemoError]
    message: str
    load: dict[str, Any] = field(default_factory=dict)
    """Arguments of `load_demonstrations`."""


def with_arrays(**change: Any) -> Callable[[Path], Path]:
    return lambda path: write_store(path, {key.replace("__", "/"): value for key, value in change.items()})


def with_file(key: str, change: Callable[[bytes], bytes] | None, **options: Any) -> Callable[[Path], Path]:
    """Write a valid store, then change or delete one file."""

    def make(path: Path) -> Path:
        write_store(path, **options)
        if change is None:
            (path / key).unlink()
        else:
            edit_bytes(path / key, change)
        return path

    return make


def with_metadata(key: str, zarr_format: int = 2, **change: Any) -> Callable[[Path], Path]:
    def edit(content: bytes) -> bytes:
        return json.dumps({**json.loads(content), **change}).encode()

    return with_file(key, edit, zarr_format=zarr_format)


def sharded(damage_file: Callable[[Path], None], **packing: Any) -> Callable[[Path], Path]:
    """Write a state in shards of 20 frames, four chunks each; the second shard is damaged."""

    def make(path: Path) -> Path:
        write_store(path, zarr_format=3)
        array = zarr.open_group(path)["data"].create_array(
            "state", shape=(40, 5), chunks=(5, 5), shards=(20, 5), dtype="f4", overwrite=True, **packing
        )
        array[:] = example_arrays()["data/state"]
        damage_file(path / "data/state/c/1/0")
        return path

    return make


def some_file(path: Path) -> Path:
    path.write_text("not a store")
    return path


def empty_directory(path: Path) -> Path:
    path.mkdir()
    return path


def other_directory(path: Path) -> Path:
    (path / "holiday").mkdir(parents=True)
    return path


def empty_group(path: Path) -> Path:
    zarr.open_group(path, mode="w", zarr_format=2)
    return path


def truncated_zip(path: Path) -> Path:
    archive = zip_store(write_store(path))
    edit_bytes(archive, half)
    return archive


def zip_with_a_flipped_bit(path: Path) -> Path:
    archive = zip_store(write_store(path, compressors=None))
    with zipfile.ZipFile(archive) as file:
        name = "data/state/1.0"
        content = file.read(name)
    edit_bytes(archive, lambda data: data.replace(content[:64], flip_bit(content[:64], 40)))
    if zipfile.ZipFile(archive).testzip() is None:
        raise AssertionError("the zip was not damaged")
    return archive


def zip_bomb(path: Path) -> Path:
    """Write a zip with a chunk of zeros, which deflates a thousandfold."""
    write_store(path)
    (path / CHUNK).write_bytes(bytes(10**7))
    return zip_store(path)


def stored_zip(path: Path) -> Path:
    """Write a zip without a store."""
    archive = path.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "hello")
    return archive


def pickled_objects(path: Path) -> Path:
    write_store(path)
    metadata = {**json.loads((path / "data/state/.zarray").read_bytes()), "dtype": "|O", "fill_value": None}
    metadata.update(filters=[{"id": "pickle", "protocol": 5}], compressor=None)
    return with_payload(path, metadata)


def pickled_floats(path: Path) -> Path:
    """Write an array of floats that are decoded with pickle."""
    write_store(path)
    metadata = {**json.loads((path / "data/state/.zarray").read_bytes()), "compressor": {"id": "pickle"}}
    return with_payload(path, metadata)


class Payload:
    """Creates a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def with_payload(path: Path, metadata: dict[str, Any]) -> Path:
    (path / "data/state/.zarray").write_text(json.dumps(metadata))
    for row in range(4):
        (path / f"data/state/{row}.0").write_bytes(pickle.dumps(Payload(path.parent / "executed")))
    return path


def with_attribute(key: str, value: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_store(path)
        zarr.open_group(path)["data/state"].attrs[key] = value
        return path

    return make


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_frames(frames: int) -> Callable[[Path], Path]:
    """Write a store whose metadata promises many frames."""

    def make(path: Path) -> Path:
        write_store(path, {"meta/episode_ends": np.array([frames])})
        for name in ("state", "action"):
            file = path / "data" / name / ".zarray"
            values = json.loads(file.read_bytes())
            file.write_text(json.dumps({**values, "shape": [frames, *values["shape"][1:]]}))
        return path

    return make


def with_pipe(key: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_store(path)
        (path / key).unlink(missing_ok=True)
        os.mkfifo(path / key)
        return path

    return make


def with_link(key: str, target: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_store(path)
        (path / key).parent.mkdir(exist_ok=True)
        (path / key).unlink(missing_ok=True)
        (path / key).symlink_to(target)
        return path

    return make


def state_with(value: float, frame: int, column: int, dtype: str = "f4") -> np.ndarray:
    state = example_arrays()["data/state"].astype(dtype)
    state[frame, column] = value
    return state


CHUNK, V3_CHUNK = "data/state/1.0", "data/state/c/1/0"
ZSTD = {"compressors": {"id": "zstd", "level": 1}}
BLOSC = {"compressors": numcodecs.Blosc()}
STATE_META, ENDS_META = "data/state/.zarray", "meta/episode_ends/.zarray"
FOO = {"id": "foo"}

DAMAGES = [
    # the path
    Damage("missing path", lambda path: path, DemoError, "does not exist"),
    Damage("some file", some_file, DemoError, "is not a zarr store"),
    Damage("empty directory", empty_directory, DemoError, "is empty"),
    Damage("other directory", other_directory, DemoError, "neither .zgroup nor zarr.json"),
    Damage("other zip", stored_zip, DemoError, "neither .zgroup nor zarr.json"),
    Damage("truncated zip", truncated_zip, DemoError, "damaged zip"),
    Damage("bit flip in a zip", zip_with_a_flipped_bit, DemoError, r"frames 10 to 20 .*CRC"),
    # groups, arrays, metadata
    Damage("empty group", empty_group, DemoError, "it holds: none"),
    Damage("no state", with_arrays(data__state=None), DemoError, "'data/state'.*data/action, data/img"),
    Damage("no ends", with_arrays(meta__episode_ends=None), DemoError, "'meta/episode_ends'"),
    Damage("no such key", write_store, DemoError, "'data/joints'", {"obs_keys": ("joints",)}),
    Damage("v2 metadata cut off", with_file(STATE_META, half), DemoError, ".zarray is not valid JSON"),
    Damage(
        "v3 metadata cut off",
        with_file("data/state/zarr.json", half, zarr_format=3),
        DemoError,
        "zarr.json is not valid JSON",
    ),
    Damage("metadata is a list", with_file(STATE_META, lambda _: b"[]"), DemoError, "holds a JSON list"),
    Damage("binary metadata", with_file(STATE_META, lambda _: b"\xff\xfe\0"), DemoError, "not valid JSON"),
    Damage(
        "negative shape",
        with_metadata(STATE_META, shape=[-4, 5]),
        DemoError,
        "metadata of data/state is invalid",
    ),
    Damage("no shape", with_file(STATE_META, lambda _: b'{"dtype": "<f4"}'), DemoError, "is invalid"),
    Damage("no dtype", with_file(STATE_META, lambda _: b"{}"), DemoError, "does not give a data type"),
    Damage("huge shape", with_metadata(STATE_META, shape=[10**15, 5]), DemoError, "differ in their number"),
    Damage("zero chunks", with_metadata(STATE_META, chunks=[0, 5]), DemoError, "expected"),
    Damage("unknown v2 codec", with_metadata(STATE_META, compressor=FOO), DemoError, "codec.*foo"),
    Damage(
        "unknown v3 codec",
        with_metadata("data/state/zarr.json", 3, codecs=[{"name": "foo"}]),
        DemoError,
        "codec.*foo",
    ),
    Damage(
        "root attributes cut off",
        with_file(".zattrs", lambda _: b"{"),
        DemoError,
        ".zattrs is not valid JSON",
    ),
    # chunks
    Damage("missing v2 chunk", with_file(CHUNK, None), DemoError, "data/state/1.0 is missing.*read 0"),
    Damage("missing v3 chunk", with_file(V3_CHUNK, None, zarr_format=3), DemoError, "c/1/0 is missing"),
    Damage("missing ends chunk", with_file("meta/episode_ends/0", None), DemoError, "ends/0 is missing"),
    Damage("empty chunk", with_file(CHUNK, lambda _: b""), DemoError, r"is empty \(0 bytes\)"),
    Damage(
        "truncated Zstandard",
        with_file(CHUNK, half, **ZSTD),
        DemoError,
        "frames 10 to 20 cannot be decoded",
    ),
    Damage("truncated Blosc", with_file(CHUNK, half, **BLOSC), DemoError, "its Blosc header says"),
    Damage("stub of Blosc", with_file(CHUNK, lambda b: b[:9], **BLOSC), DemoError, "9 bytes, less than"),
    Damage("padded Blosc", with_file(CHUNK, lambda b: b + b"0", **BLOSC), DemoError, "header says"),
    Damage("flipped Blosc size", with_file(CHUNK, lambda b: flip_bit(b, 13), **BLOSC), DemoError, "says"),
    Damage(
        "truncated plain chunk",
        with_file(CHUNK, half, compressors=None),
        DemoError,
        "frames 10 to 20",
    ),
    Damage(
        "truncated v3 Blosc",
        with_file(V3_CHUNK, half, zarr_format=3, compressors=BloscCodec()),
        DemoError,
        "its Blosc header says",
    ),
    Damage(
        "bit flip under a checksum",
        with_file(
            CHUNK, lambda b: flip_bit(b, -20), compressors={"id": "zstd", "level": 1, "checksum": True}
        ),
        DemoError,
        "frames 10 to 20 cannot be decoded",
    ),
    Damage("missing shard", sharded(Path.unlink), DemoError, "c/1/0 is missing"),
    Damage("empty shard", sharded(lambda p: p.write_bytes(b"") and None), DemoError, "0 bytes"),
    Damage("stub of a shard", sharded(lambda p: edit_bytes(p, lambda b: b[:20])), DemoError, "decoded"),
    Damage("truncated shard", sharded(lambda p: edit_bytes(p, half)), DemoError, "decoded"),
    Damage(
        "sparse chunk",
        with_file(CHUNK, lambda _: bytes(10**6), compressors=None),
        DemoError,
        "has 1000000 bytes, expected at most 67136",
    ),
    Damage("bomb in a zip", zip_bomb, DemoError, "has 10000000 bytes, expected at most 67136"),
    Damage("huge chunks", with_metadata(STATE_META, chunks=[10**9, 5]), DemoError, "a chunk would take"),
    Damage(
        "huge arrays",
        with_frames(10**12),
        DemoError,
        "1000000000000 frames would take|expected at most 1048576",
        {"accept_omitted_chunks": True},
    ),
    # files that are not what they seem
    Damage("attributes are a pipe", with_pipe(".zattrs"), DemoError, "zattrs is not a regular file"),
    Damage(
        "array attributes are a pipe",
        with_pipe("data/state/.zattrs"),
        DemoError,
        "zattrs is not a regular file",
    ),
    Damage("metadata is a pipe", with_pipe(STATE_META), DemoError, "is not a regular file"),
    Damage("chunk is a pipe", with_pipe(CHUNK), DemoError, "is not a regular file"),
    Damage(
        "omitted chunk is a pipe",
        with_pipe(CHUNK),
        DemoError,
        "is not a regular file",
        {"accept_omitted_chunks": True},
    ),
    Damage("attributes are zeros", with_link(".zattrs", "/dev/zero"), DemoError, "not a regular"),
    Damage("array attributes are zeros", with_link("data/state/.zattrs", "/dev/zero"), DemoError, "reg"),
    Damage("attributes lead nowhere", with_link(".zattrs", "nowhere"), DemoError, "leads nowhere"),
    Damage("attributes in a circle", with_link(".zattrs", ".zattrs"), DemoError, "symbolic links"),
    Damage("folders in a circle", with_link("data/a/b", ".."), DemoError, "a link may lead back"),
    Damage(
        "attributes nested deeply",
        with_file("data/state/.zattrs", lambda _: b'{"angles": ' + b"[" * 500 + b"]" * 500 + b"}"),
        DemoError,
        "nested more than 64 deep",
    ),
    Damage(
        "attributes with a huge number",
        with_file("data/state/.zattrs", lambda _: b'{"angles": [1' + b"0" * 400 + b"]}"),
        DemoError,
        "is too large",
    ),
    # what the arrays hold
    Damage("pickled objects", pickled_objects, DemoError, "pickles"),
    Damage("pickled floats", pickled_floats, DemoError, "pickles"),
    Damage("text", with_metadata(STATE_META, dtype="<U4"), DemoError, "holds '<U4'"),
    Damage("v3 text", with_metadata("data/state/zarr.json", 3, data_type="string"), DemoError, "str"),
    Damage("dates", with_metadata(STATE_META, dtype="<M8[s]"), DemoError, "M8"),
    Damage("records", with_metadata(STATE_META, dtype=[["x", "<f4"]]), DemoError, "expected real"),
    Damage("complex", with_arrays(data__state=np.ones((40, 2), "c8")), DemoError, "'<c8'"),
    Damage(
        "NaN",
        with_arrays(data__state=state_with(np.nan, 17, 3)),
        DemoError,
        r"nan in data/state\[3\] at frame 17 \(episode 1, step 2\)",
    ),
    Damage(
        "infinity",
        with_arrays(data__action=np.full((40, 2), -np.inf)),
        DemoError,
        r"-inf in data/action\[0\] at frame 0",
    ),
    Damage(
        "too large",
        with_arrays(data__state=state_with(1e39, 7, 0, "f8")),
        DemoError,
        "frame 7 is too large",
    ),
    Damage("no columns", with_arrays(data__state=np.ones((40, 0), "f4")), DemoError, "at least one"),
    # frames and episodes
    Damage("unequal lengths", with_arrays(data__action=np.ones((39, 2))), DemoError, "data/action 39"),
    Damage(
        "no frames",
        with_arrays(data__state=np.ones((0, 5)), data__action=np.ones((0, 2))),
        DemoError,
        "overruns the 0",
    ),
    Damage("no episodes", with_arrays(meta__episode_ends=np.zeros(0, int)), DemoError, "is empty"),
    Damage("ends in a table", with_arrays(meta__episode_ends=np.array([[15, 40]])), DemoError, r"\(1, 2\)"),
    Damage("fractional ends", with_arrays(meta__episode_ends=np.array([15.5, 40])), DemoError, "float64"),
    Damage(
        "ends not increasing",
        with_arrays(meta__episode_ends=np.array([25, 15, 40])),
        DemoError,
        "15 after 25",
    ),
    Damage(
        "a repeated end", with_arrays(meta__episode_ends=np.array([15, 15, 40])), DemoError, "15 after 15"
    ),
    Damage("a negative end", with_arrays(meta__episode_ends=np.array([-5, 40])), DemoError, "-5 after 0"),
    Damage("an end of zero", with_arrays(meta__episode_ends=np.array([0, 40])), DemoError, "0 after 0"),
    Damage(
        "an overrun",
        with_arrays(meta__episode_ends=np.array([15, 41])),
        DemoError,
        "episode 1 ends at frame 41",
    ),
    Damage(
        "uncovered frames",
        with_arrays(meta__episode_ends=np.array([15, 39])),
        DemoError,
        "ends at 39 of 40",
    ),
    Damage(
        "an episode too short",
        with_arrays(meta__episode_ends=np.array([15, 16, 40])),
        DemoError,
        "episode 1 is too short",
    ),
    # angles and rates
    Damage("angle out of range", write_store, DemoError, "columns 0 to 4", {"angles": (5,)}),
    Damage("negative angle column", write_store, DemoError, "columns 0 to 4", {"angles": (-1,)}),
    Damage("angle given twice", write_store, DemoError, "twice", {"angles": (4, 4)}),
    Damage("declared angles are no list", with_attribute("angles", "four"), DemoError, '"four"'),
    Damage("declared angle out of range", with_attribute("angles", [9]), DemoError, "columns 0 to 4"),
    Damage("a rate of zero", write_store, DemoError, "rate_hz", {"rate_hz": 0.0}),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    path = damage.make(tmp_path / "demos.zarr")
    with pytest.raises(damage.error, match=damage.message) as caught:
        load_demonstrations(path, **damage.load)
    assert type(caught.value) is damage.error
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists(), "a pickle was run"


def test_payload_of_the_pickle_tests_runs(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_images_are_not_loaded_as_observations(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/img": np.ones((40, 64, 64, 3), np.uint8)})
    with pytest.raises(DemoError, match=r"camera images.*--obs-keys keypoint state"):
        load_demonstrations(path, obs_keys=("img",))


def test_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DemoError, match="neither a file nor a folder"):
        load_demonstrations(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("key", [".", "data", "data/state/.zarray", "data/state/1.0"])
def test_permission_error_is_reported(tmp_path: Path, key: str) -> None:
    path = write_store(tmp_path / "demos.zarr")
    (path / key).chmod(0)
    try:
        with pytest.raises(DemoError, match=r"cannot be .*Permission denied"):
            load_demonstrations(path)
    finally:
        (path / key).chmod(0o700)


@pytest.mark.parametrize(
    ("owner", "call", "error"),
    [(Path, "iterdir", DemoError), (os, "open", DemoError), (os, "stat", DemoError)],
)
def test_permission_error_of_any_call_raises_a_demo_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, call: str, error: type[DemoError]
) -> None:
    path = write_store(tmp_path / "demos.zarr")

    genuine = getattr(owner, call)

    def denied(file: Any, *args: Any, **options: Any) -> Any:
        if isinstance(file, str | Path) and str(file).startswith(f"{path}{'' if owner is Path else '/'}"):
            raise PermissionError(13, "Permission denied")
        return genuine(file, *args, **options)

    monkeypatch.setattr(owner, call, denied)
    with pytest.raises(error, match="cannot be read: Permission denied"):
        load_demonstrations(path)


def test_corrupted_zip_raises_only_demo_errors(tmp_path: Path) -> None:
    archive = zip_store(write_store(tmp_path / "demos.zarr"))
    whole = np.frombuffer(archive.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(60):
        corrupted = whole.copy()
        corrupted[rng.integers(len(whole), size=8)] = rng.integers(256, size=8)
        archive.write_bytes(corrupted.tobytes())
        try:
            load_demonstrations(archive)
        except DemoError:
            rejected += 1
    assert rejected > 10


@pytest.mark.parametrize("packing", [BLOSC, {"compressors": None}, ZSTD], ids=["blosc", "plain", "zstd"])
def test_corrupted_chunks_raise_only_demo_errors(tmp_path: Path, packing: dict[str, Any]) -> None:
    path = write_store(tmp_path / "demos.zarr", **packing)
    whole = (path / CHUNK).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        corrupted = np.frombuffer(whole, np.uint8).copy()
        corrupted[rng.integers(len(corrupted), size=3)] = rng.integers(256, size=3)
        (path / CHUNK).write_bytes(corrupted.tobytes())
        try:
            demos = load_demonstrations(path)
        except DemoError:
            continue
        assert np.isfinite(demos.obs).all()
