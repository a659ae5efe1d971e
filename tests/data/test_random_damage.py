"""Tests of random damage to files of every format: demonstrations are read, or refused in one line."""

import json
import random
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numcodecs import Blosc

from nsde_policy.data import DemoWriter
from nsde_policy.data.check import check_store
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.registry import load_from
from nsde_policy.data.roles import find_cameras
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.data.test_minari import write_minari
from tests.data.test_tables import write_csv, write_npz
from tests.helpers.demo_stores import write_store, zip_store
from tests.helpers.hdf5_files import write_aloha, write_d4rl, write_robomimic
from tests.helpers.lerobot_sets import write_v2, write_v3
from tests.helpers.numbered_episodes import make_episode, make_images
from tests.helpers.ros2_bags import SETTINGS, Message, draw_time, make_image, make_small, write_small

VALUES = (
    "0",
    "-1",
    "1e308",
    "1e999",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "[[1]]",
    '"x"',
    '"../../etc/passwd"',
)
"""What replaces a value in JSON, TOML, YAML and csv."""


def write_recording(path: Path) -> None:
    with DemoWriter(path, rate_hz=10.0) as writer:
        for number in range(3):
            writer.append(make_episode(number), extras=make_images(number))


def write_zip(path: Path) -> None:
    zip_store(write_store(path.with_suffix("")))


def write_bag(path: Path, storage: str) -> None:
    stamps = range(0, 2 * 10**9, 10**8)
    images = [Message("/camera", stamp, make_image(stamp, draw_time(stamp))) for stamp in stamps]
    write_small(path, [*make_small(), *images], f'{SETTINGS}images = ["/camera"]\n', storage=storage)


FORMATS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "zarr v2": ("d.zarr", partial(write_store, compressors=Blosc())),
    "zarr v3": ("d.zarr", partial(write_store, zarr_format=3)),
    "zarr zip": ("d.zarr.zip", write_zip),
    "recorded": ("d.zarr", write_recording),
    "LeRobot v2": ("d", write_v2),
    "LeRobot v3": ("d", write_v3),
    "robomimic": ("d.hdf5", write_robomimic),
    "ALOHA": ("d", partial(write_aloha, compress=True, episodes=3)),
    "D4RL": ("d.hdf5", write_d4rl),
    "Minari": ("d", write_minari),
    "csv": ("d", write_csv),
    "npz": ("d", write_npz),
    "mcap": ("d", partial(write_bag, storage="mcap")),
    "db3": ("d", partial(write_bag, storage="sqlite3")),
}


def damage(path: Path, rng: random.Random) -> str:
    """Change bytes, the length or a value of one file; return what was done."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    (file,) = rng.choices(files, [1 + file.stat().st_size ** 0.5 for file in files])
    content = file.read_bytes()
    at, size = rng.randrange(len(content)), rng.choice((1, 8, 64))
    kind = rng.choice(("flipped", "noise", "cut", "repeated", "value"))
    if kind == "value" and re.search(r"\.(jsonl?|toml|yaml|csv|zarray|zattrs)$", file.name):
        text, value = content.decode(), rng.choice(VALUES)
        start = rng.choice([place.end() for place in re.finditer(r"[:=,[{]\s*|^", text, re.MULTILINE)])
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            end = start + len(re.split(r"[,\n]", text[start:])[0])
        file.write_text(text[:start] + value + text[end:])
        return f"{file.name}: {text[start:end]:.40} becomes {value}"
    part = {
        "flipped": bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 : at + size],
        "cut": b"",
        "repeated": content[at : at + size] * 50,
    }.get(kind, rng.randbytes(size))
    file.write_bytes(content[:at] + part + (b"" if kind == "cut" else content[at + size :]))
    return f"{file.name}: {kind}, {size} bytes at {at}"


def read_everything(path: Path) -> None:
    """Read demonstrations as `data info`, `data check`, training and a loader of camera frames do."""
    summarize(path)
    check_store(path)
    with open_source(path) as source:
        demos = load_from(source)
        assert np.isfinite(demos.obs).all()
        for name in find_cameras(source):
            source.open_array(name).read_checked(len(demos.obs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_random_damage_raises_only_one_line_errors(name: str, tmp_path: Path) -> None:
    file, write = FORMATS[name]
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole" / file)
    read_everything(tmp_path / "whole" / file)
    rng, refused = random.Random(name), 0
    for attempt in range(25):
        copy = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(attempt)))
        what = damage(copy / file, rng)
        message = ""
        try:
            read_everything(copy / file)
        except DemoError as error:
            message = str(error)
        except Exception as error:
            pytest.fail(f"{what}: {error!r}")
        assert "\n" not in message, what
        refused += bool(message)
        shutil.rmtree(copy)
    assert refused > 5
