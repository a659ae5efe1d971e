"""Tests of stores and archives that unpack to gigabytes: they are refused in little memory."""

import subprocess
import sys
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr

from tests.helpers.demo_stores import write_store, zip_files

BOMB_BYTES, MOST_BYTES = 1 << 28, 100 << 20

LOAD = """
import sys
from pathlib import Path
from nsde_policy.data import load_demonstrations
from nsde_policy.data.zarr_store.archive import extract_store
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.errors import NsdePolicyError

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

healthy, *bombs = map(Path, sys.argv[1:])
load_demonstrations(healthy)
before = peak()
for bomb in bombs:
    for load in (load_demonstrations, check_store)[: 1 if bomb == bombs[1] else 2]:
        try:
            assert load(bomb) != [], bomb
        except NsdePolicyError as error:
            print(error)
extract_store(bombs[-1], healthy.parent / "extracted", max_bytes=2**31)
print(peak() - before)
"""


def zstd_bomb(path: Path) -> Path:
    write_store(path, compressors=numcodecs.Zstd())
    (path / "data/state/1.0").write_bytes(numcodecs.Zstd(1).encode(bytes(BOMB_BYTES)))
    return path


def consistent_bomb(path: Path) -> Path:
    """Write metadata that promise the zeros that the chunks unpack to."""
    rows = 8 * BOMB_BYTES // 40
    write_store(path, {"data/state": None, "data/action": None, "meta/episode_ends": np.array([rows])})
    zeros = numcodecs.Zstd(1).encode(bytes(rows // 200 * 40))
    for name in ("state", "action"):
        zarr.open_group(path)["data"].create_array(
            name, shape=(rows, 5), chunks=(rows // 200, 5), dtype="f8", compressors=numcodecs.Zstd()
        )
        for number in range(201):
            (path / f"data/{name}/{number}.0").write_bytes(zeros)
    return path


def zip_bomb(path: Path) -> Path:
    """Write a zip with a chunk of zeros, which deflates a thousandfold."""
    write_store(path, compressors=None)
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    bomb = path.with_suffix(".zip")
    bomb.write_bytes(zip_files(files | {"data/state/1.0": bytes(BOMB_BYTES)}, inside=""))
    return bomb


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_bombs_are_refused_in_little_memory(tmp_path: Path) -> None:
    healthy = write_store(tmp_path / "healthy.zarr")
    bombs = [
        make(tmp_path / f"{number}.zarr")
        for number, make in enumerate((zstd_bomb, consistent_bomb, zip_bomb))
    ]
    (tmp_path / "extracted").mkdir()
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(healthy), *map(str, bombs)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert not run.returncode, run.stderr
    *messages, peak = run.stdout.splitlines()
    assert int(peak) < MOST_BYTES
    text = "\n".join(messages)
    assert "unpacks to more than the 264 bytes" in text
    assert "would take" in text
    assert "has 268435456 bytes, expected at most 264" in text
