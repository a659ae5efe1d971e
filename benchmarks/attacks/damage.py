"""Damage of one file of an input at random: its bytes, its length, what its path leads to, or its values."""

import json
import os
import random
import re
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

Change = Callable[[np.ndarray], np.ndarray]
VALUES = (
    *("0", "1", "-1", "7", "0.5", "1e-300", "1e30", "1e308", "-1e308", "1e999", "NaN", "1000000000000"),
    *("1" * 400, "null", "true", "[]", "{}", "[[]]", "[1]", "[-1]", "[1000000000000, 2]", '{"a": 1}'),
    *('""', '"x"', '"../../etc/passwd"', '"\\u0000"', '"\\ud800"', '"é🙂"', '"|O"', '"pickle"', '"1e999"'),
    *('"' + "x" * 10**6 + '"', "[" * 400 + "]" * 400, "[" * 10**5 + "]" * 10**5, "[" + "[]," * 10**6 + "1]"),
)
"""What replaces a value in JSON, TOML, YAML or csv."""
REPLACEMENTS: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: None,
    "empty": Path.touch,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to its folder": lambda path: path.symlink_to("."),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "20 GiB": lambda path: (path.touch(), os.truncate(path, 20 * 2**30)),
    "an LFS pointer": lambda path: path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid {'0' * 64}"
    ),
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    "a JSON list": lambda path: path.write_text("[1, 2]"),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}
"""What a file or folder is replaced by."""
ARRAYS: dict[str, Change] = {
    **{f"{v}": lambda a, v=v: np.append(np.full_like(a[:1], v), a[1:], 0) for v in (np.nan, np.inf, 1e30)},
    **{t: lambda a, t=t: a.astype(t) for t in ("S8", "complex64", "bool", "int8", "float16", ">f8", "M8[s]")},
    "a row less": lambda a: a[:-1],
    "a row more": lambda a: np.append(a, a[:1], 0),
    "no rows": lambda a: a[:0],
    "no columns": lambda a: a[:, None][:, :0],
    "one column": lambda a: a.reshape(len(a), -1)[:, :1],
    "one axis more": lambda a: a[..., None],
    "one number": lambda a: a.flat[0],
    "a million columns": lambda a: np.zeros((len(a), 10**6), np.int8),
}
"""How the values of an array are changed."""
SQL_VALUES = ("NULL", "0", "-1", "9e999", "9223372036854775807", "'x'", "x'00'", "zeroblob(100000000)")
"""What values of a database are replaced by."""
ENDLESS = "(WITH RECURSIVE e AS (SELECT 1 UNION ALL SELECT 1 FROM e) SELECT * FROM e)"
SHAPES = ((10**12, 2), (2**31, 3), (-1, 2), (2**62, 2**62), (10**9,), ())
"""What the header of an npy file declares."""


def damage(path: Path, rng: random.Random) -> tuple[str, str, str]:
    """Damage a file or folder; return the kind of damage, the file and details."""
    while True:
        kind = rng.choice(("bytes", "cut", "added", "file", "value", "value"))
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in files if file.is_file() or kind == "file"]
        (file,) = rng.choices(files, [kind == "file" or 1 + file.stat().st_size ** 0.5 for file in files])
        name = str(file.relative_to(path)) if path.is_dir() else path.name
        try:
            if what := {"file": replace, "value": change_values}.get(kind, change_bytes)(file, rng, kind):
                return (what, name, "") if kind == "file" else (kind, name, what)
        except (ValueError, TypeError, IndexError, OverflowError, NotImplementedError):
            continue  # this damage does not fit this file


def replace(file: Path, rng: random.Random, _: str) -> str:
    """Replace a file or folder, rename it, or exchange it with its neighbour."""
    what, away = rng.choice(("renamed", "exchanged", *REPLACEMENTS)), file.with_name(f"{file.name}.away")
    other = rng.choice(sorted(file.parent.iterdir()))
    file.rename(away)
    if what == "exchanged" and other != file:
        other.rename(file)
        away.rename(other)
    elif what in REPLACEMENTS:
        (shutil.rmtree if away.is_dir() else os.unlink)(away)
        REPLACEMENTS[what](file)
    return what


def change_bytes(file: Path, rng: random.Random, kind: str) -> str:
    """Change bytes in place, or the length of a file."""
    content = file.read_bytes()
    at, size = rng.randrange(len(content)), rng.choice((1, 8, 64, len(content)))
    before, part, after = content[:at], content[at : at + size], content[at + size :]
    number = struct.pack(rng.choice("fd"), rng.choice((np.nan, np.inf, 1e30)))
    flipped = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:]
    changes = {
        "bytes": (flipped, bytes(len(part)), rng.randbytes(len(part)), (number * len(part))[: len(part)]),
        "cut": (b"",),
        "added": (part * 2, part * 50, rng.randbytes(len(part)) + part),
    }
    result = before + rng.choice(changes[kind]) + after
    file.write_bytes(result)
    return f"{size} bytes at {at}" if result != content else ""


def change_values(file: Path, rng: random.Random, _: str) -> str:
    """Write a file of valid form with other values, which no checksum can reveal."""
    if file.suffix == ".db3":
        return change_database(file, rng)
    is_array = file.suffix in (".hdf5", ".npy", ".parquet") or file.name == ".zarray"
    if file.suffix in (".zip", ".npz"):
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder := file.with_name("unpacked"))
        what = " ".join(damage(folder, rng))
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in sorted(folder.rglob("*")):
                if member.is_file() and member.stat().st_size < 2**30:  # no link to a device
                    archive.write(member, member.relative_to(folder))
        shutil.rmtree(folder)
        return what
    if is_array or (file.name == "zarr.json" and rng.random() < 0.5):
        what = rng.choice(list(ARRAYS))
        return f"{change_array(file, ARRAYS[what], rng)} {what}"
    text, value = file.read_text(), rng.choice(VALUES)
    start = rng.choice([place.end() for place in re.finditer(r"[:=,[{]\s*|^", text, re.MULTILINE)])
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        end = start + re.match(r"[^,\n]*", text[start:]).end()
    file.write_text(text[:start] + value + text[end:])
    return f"{text[start:end]:.40} becomes {value:.40}"


def change_database(file: Path, rng: random.Random) -> str:
    """Change or remove values of a table, compute them, or replace the table by an endless view."""
    with closing(sqlite3.connect(file)) as database:
        tables = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        table = rng.choice(sorted(tables))
        column = rng.choice([row[1] for row in database.execute(f"PRAGMA table_info({table})")])
        rows = rng.choice(("", " WHERE rowid = 1", " WHERE rowid > 20"))
        statement = rng.choice((
            f"UPDATE {table} SET {column} = {rng.choice(SQL_VALUES)}{rows}",
            f"DELETE FROM {table}{rows}",
            f"ALTER TABLE {table} DROP COLUMN {column}",
            f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
            f"ALTER TABLE {table} ADD COLUMN other AS (zeroblob(1000000000))",
            f"ALTER TABLE {table} RENAME TO other; CREATE VIEW {table} AS SELECT * FROM other, {ENDLESS}",
            f"CREATE VIEW other AS SELECT * FROM {ENDLESS}",
        ))  # fmt: skip
        try:
            database.executescript(statement)
        except sqlite3.Error as error:
            raise ValueError(statement) from error
    return statement


def change_array(file: Path, change: Change, rng: random.Random) -> str:
    """Write an array of a file again with other values; return its name."""
    if file.suffix == ".npy":
        values, shape = np.load(file), rng.choice(SHAPES)
        with file.open("wb") as target:
            if rng.random() < 0.7:
                np.save(target, change(values))
                return "array"
            header = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(target, header)
            target.write(values.tobytes())
            return f"declares {shape}, not"
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        name = rng.choice(table.column_names)
        changed = np.asarray(change(np.array(table[name].to_pylist())))
        if not changed.shape:
            raise ValueError("a column needs rows")
        values = pa.array(changed.tolist())
        table = (
            table.slice(0, len(values)) if rng.random() < 0.1 else table.drop([name]).slice(0, len(values))
        )
        pq.write_table(table.append_column(name, values), file)
        return name
    if file.suffix == ".hdf5":
        with h5py.File(file, "a") as target:
            names: list[str] = []
            target.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
            name = rng.choice(sorted(names))
            values = change(target[name][()])
            del target[name]
            target[name] = values
            return name
    array = zarr.open_array(file.parent, mode="r")
    options = {"attributes": dict(array.attrs), "zarr_format": array.metadata.zarr_format, "overwrite": True}
    zarr.create_array(file.parent, data=change(array[...]), **options)
    return "array"
