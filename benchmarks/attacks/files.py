"""Damaged and hostile files of every kind that is read: runs, exported graphs, stores and zips.

A file is mutated at random, or replaced by what a path can lead to. An attempt is refused with a typed error,
or survived with correct numbers: unchanged where a checksum protects them (ONNX, zip), finite elsewhere.
"""

import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from attacks._attempts import SURVIVED, Attack, Attempt
from attacks._samples import Arrays, export, load_graph, load_run, load_store, make_samples, resume_run

VALUES = (
    *("1e999", "NaN", "-Infinity", "-1", "0", "1", "2", "7", "1e308", "-1e308", "1e-320", "1e30", "0.5"),
    *("1000000000000", "null", "true", "[]", "{}", "[[]]", "[1]", "1" * 400, "[" * 400 + "]" * 400),
)
"""What replaces a number in JSON."""
WORDS = ("x", "", "../../etc/passwd", "\u0000", "|O", "pickle", "zstd", "gzip", "float64", "os:system")
"""What replaces a text in JSON."""
REPLACEMENTS: tuple[Callable[[Path], Any], ...] = (
    os.mkfifo,
    Path.mkdir,
    Path.touch,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"),
    lambda path: None,
    lambda path: (path.touch(), os.truncate(path, 20 * 2**30)),
    lambda path: path.write_text('{"shape": ' + "[" * 5000 + "]" * 5000 + "}"),
    lambda path: path.write_text('{"shape": [1' + "0" * 400 + '], "step": 1e999}'),
    lambda path: path.write_text('{"a": [' + "[]," * 10**6 + "1]}"),
    lambda path: path.write_text("[1, 2]"),
    lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
)
"""What a file is replaced by, the last by a pickle that would run a command."""
KINDS: dict[str, tuple[str, str | None, Callable[[Path], Arrays], bool]] = {
    "config": ("run", "config.json", load_run, False),
    "calibration": ("run", "calibration.json", load_run, False),
    "weights": ("run", "model.safetensors", load_run, False),
    "resumed run": ("run", None, resume_run, False),
    "graph": ("graph", "policy.onnx", load_graph, True),
    "zarr v2": ("v2.zarr", None, load_store, False),
    "zarr v3": ("v3.zarr", None, load_store, False),
    "zip": ("store.zip", None, load_store, True),
}
"""Files of each kind: folder, the file that is attacked (None for any), reader, whether it has checksums."""


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Write files of every kind, and attack one after the other."""
    make_samples(folder)
    export(folder)
    loads = {kind: prepare_kind(folder, kind) for kind in KINDS}

    def attack(rng: random.Random, number: int) -> Attempt:
        kind = [*KINDS][number % len(KINDS)]
        how = "replaced" if rng.random() < 1 / 3 else "mutated"
        return Attempt(f"{how}, {kind}", f"attempt {number}", lambda: loads[kind](how, rng))

    return attack


def prepare_kind(source: Path, kind: str) -> Callable[[str, random.Random], str]:
    """Copy the files of a kind; return a function that attacks one of them, loads all and restores it."""
    name, target, load, is_protected = KINDS[kind]
    copy = source / f"attacked {kind}" / name
    copy.parent.mkdir()
    (shutil.copytree if (source / name).is_dir() else shutil.copy)(source / name, copy)
    files = [copy / target] if target else [p for p in copy.rglob("*") if p.is_file()] or [copy]
    contents = {file: file.read_bytes() for file in sorted(files)}
    expected = load(copy)

    def attempt(how: str, rng: random.Random) -> str:
        file = rng.choice(list(contents))
        if how == "replaced":
            file.unlink()
            rng.choice(REPLACEMENTS)(file)
        else:
            file.write_bytes(mutate(contents[file], rng))
        try:
            return compare(load(copy), expected, is_protected=is_protected)
        finally:
            if os.path.lexists(file):
                (shutil.rmtree if file.is_dir() and not file.is_symlink() else os.unlink)(file)
            file.write_bytes(contents[file])

    return attempt


def compare(found: Arrays, expected: Arrays, *, is_protected: bool) -> str:
    """Return `SURVIVED` if numbers are correct, or what is wrong with them."""
    for name, values in found.items():
        if is_protected and not np.array_equal(values, expected[name]):
            return f"{name} changed although a checksum protects it"
        if not np.isfinite(values).all():
            return f"{name} is not finite"
    return SURVIVED


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Change a file in one to three places, as text if it is JSON."""
    for _ in range(rng.randint(1, 3)):
        text = content[:1] == b"{" and rng.random() < 0.7
        content = (mutate_json if text else mutate_bytes)(content, rng)
    return content


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Replace a number or a text."""
    text = content.decode("utf-8", "replace")
    is_number = rng.random() < 0.7
    places = list(re.finditer(r"-?\d[\d.e+-]*" if is_number else r'(?<=")[^"]*(?=")', text))
    if not places:
        return content
    place = rng.choice(places)
    return (text[: place.start()] + rng.choice(VALUES if is_number else WORDS) + text[place.end() :]).encode()


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit, or overwrite, delete, repeat, cut off or insert some bytes."""
    if not content:
        return rng.randbytes(rng.randint(1, 64))
    at, size = rng.randrange(len(content)), rng.randint(1, min(64, len(content)))
    before, part, after = content[:at], content[at : at + size], content[at + size :]
    flipped = bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    changes = (
        before + flipped,
        before + rng.randbytes(len(part)) + after,
        before + b"\xff" * len(part) + after,
        before + after,
        before + part * rng.randint(2, 50) + after,
        before,
        before + rng.randbytes(size) + content[at:],
    )
    return rng.choice(changes)
