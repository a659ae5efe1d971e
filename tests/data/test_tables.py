"""Tests of folders of csv and npz files with a `dataset.toml`, and of single npz files."""

import csv
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.images import open_images
from nsde_policy.data.readers import open_source
from nsde_policy.errors import DemoError
from tests.helpers.damage import Damage, Payload, replace_by_pipe
from tests.helpers.demo_stores import edit_bytes

CSV_TOML = 'rate_hz = 50\nobservations = ["q0", "q1"]\nactions = ["u0"]\nangles = ["q1"]\n'
NPZ_TOML = 'rate_hz = 20\nobservations = ["qpos", "grip"]\nactions = ["target"]\nangles = ["grip"]\n'
LENGTHS = {0: 4, 2: 3, 10: 5}


def make_rows(episode: int) -> np.ndarray:
    """Return the columns t, q0, q1, u0 of an episode."""
    rows = np.random.default_rng(episode).normal(size=(LENGTHS[episode], 4))
    rows[:, 0] = np.arange(len(rows)) / 50
    return rows


def write_csv(folder: Path, toml: str | None = CSV_TOML, *, delimiter: str = ",") -> Path:
    folder.mkdir()
    if toml is not None:
        (folder / "dataset.toml").write_text(toml)
    for episode in LENGTHS:
        with (folder / f"run_{episode}.csv").open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["t", "q0", "q1", "u0", "note"])
            writer.writerows([[*row.tolist(), "a, b"] for row in make_rows(episode)])
    return folder


def make_arrays(episode: int) -> dict[str, np.ndarray]:
    """Return an episode with one observation more than actions."""
    rng, frames = np.random.default_rng(episode), LENGTHS[episode]
    return {
        "qpos": np.asfortranarray(rng.normal(size=(frames + 1, 3))),
        "grip": rng.normal(size=frames + 1).astype(np.float32),
        "target": rng.normal(size=(frames, 2)),
        "camera": rng.integers(0, 255, (frames, 6, 7, 3)).astype(np.uint8),
        "notes": np.array(["x"]),
    }


def write_npz(folder: Path, toml: str | None = NPZ_TOML, **change: Any) -> Path:
    """Write a file for each episode; `change` replaces arrays of episode 2."""
    folder.mkdir()
    if toml is not None:
        (folder / "dataset.toml").write_text(toml)
    for episode in LENGTHS:
        arrays = make_arrays(episode) | (change if episode == 2 else {})
        save = np.savez_compressed if episode else np.savez
        save(folder / f"run_{episode}.npz", **{k: v for k, v in arrays.items() if v is not None})
    return folder


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_files_are_episodes_in_the_order_of_their_numbers(tmp_path: Path, delimiter: str) -> None:
    demos = load_demonstrations(write_csv(tmp_path / "arm", delimiter=delimiter))
    assert (demos.rate_hz, demos.angles, demos.obs_names, demos.act_names) == (
        50,
        (1,),
        ("q0", "q1"),
        ("u0",),
    )
    for episode, number in zip(demos, LENGTHS, strict=True):
        rows = make_rows(number).astype(np.float32)
        np.testing.assert_array_equal(episode.obs, rows[:, 1:3])
        np.testing.assert_array_equal(episode.act, rows[:, 3:])


def test_npz_files_are_read_without_the_last_observation(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "arm")
    demos = load_demonstrations(path)
    assert (demos.rate_hz, demos.angles, demos.lengths.tolist()) == (20, (3,), [4, 3, 5])
    for episode, number in zip(demos, LENGTHS, strict=True):
        arrays = make_arrays(number)
        expected = np.c_[arrays["qpos"], arrays["grip"]][:-1]
        np.testing.assert_array_equal(episode.obs, expected.astype(np.float32))
        np.testing.assert_array_equal(episode.act, arrays["target"].astype(np.float32))
    images = open_images(path, key="camera")
    expected = np.concatenate([make_arrays(number)["camera"] for number in LENGTHS])
    np.testing.assert_array_equal(images[:], expected)
    np.testing.assert_array_equal(images[9], expected[9])
    np.testing.assert_array_equal(images[2:6], expected[2:6])


@pytest.mark.parametrize("write", [write_csv, write_npz])
def test_without_a_description_the_error_is_a_template(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write(tmp_path / "arm", None)
    expected = {
        write_csv: r't, q0, q1, u0, note; write .*arm/dataset.toml .*`rate_hz = 20`, `observations = \["q0"',
        write_npz: r'`observations = \["qpos", "grip", "notes"\]`, `actions = \["target"\]`',
    }
    with pytest.raises(DemoError, match=expected[write]):
        load_demonstrations(path)


ENDS = [4, 10, 15]
"""Last frames of three episodes, as 1 is added to them."""
FLAGS = np.isin(np.arange(15), np.subtract(ENDS, 1))
IDS = np.repeat([0, 1, 0], [4, 6, 5])
DIVIDERS: list[dict[str, Any]] = [
    {"episode_ends": ENDS},
    {"traj_lengths": [4, 6, 5]},
    {"episode_lengths": np.array([4, 6, 5], np.uint8)},
    {"episode_starts": [0, 4, 10]},
    {"is_first": np.roll(FLAGS, 1)},
    {"dones": FLAGS},
    {"finished": FLAGS},
    {"terminals": FLAGS[:, None].astype(np.float32)},
    {"terminals": FLAGS & (np.arange(15) < 9), "timeouts": FLAGS & (np.arange(15) == 9)},
    {"episode_index": IDS},
    {"traj_id": IDS},
]


@pytest.mark.parametrize("divider", DIVIDERS, ids=" and ".join)
def test_an_array_divides_an_npz_file_into_episodes(tmp_path: Path, divider: dict[str, Any]) -> None:
    arrays = {"states": np.arange(30.0).reshape(15, 2), "actions": np.ones((15, 1))}
    np.savez(tmp_path / "alone.npz", **arrays, **divider)
    demos = load_demonstrations(tmp_path / "alone.npz")
    assert demos.episode_ends.tolist() == ENDS
    np.testing.assert_array_equal(demos.obs, arrays["states"])
    (tmp_path / "dataset.toml").write_text('rate_hz = 20\nobservations = ["states"]\nactions = ["actions"]\n')
    described = load_demonstrations(tmp_path)
    assert (described.fingerprint, described.rate_hz) == (demos.fingerprint, 20)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("episode_ends", ENDS),
        ("episode_lengths", [4, 6, 5]),
        ("episode_starts", [0, 4, 10]),
        ("dones", FLAGS),
    ],
)
def test_dataset_toml_names_the_array_that_divides_an_npz_file(tmp_path: Path, key: str, values: Any) -> None:
    np.savez(tmp_path / "all.npz", states=np.zeros((15, 2)), actions=np.ones((15, 1)), mine=values)
    lines = 'rate_hz = 20\nobservations = ["states"]\nactions = ["actions"]\n'
    (tmp_path / "dataset.toml").write_text(f'{lines}{key} = "mine"\n')
    assert load_demonstrations(tmp_path).episode_ends.tolist() == ENDS
    (tmp_path / "dataset.toml").write_text(f'{lines}{key} = "other"\n')
    with pytest.raises(DemoError, match="has no other, it holds: states, actions, mine"):
        load_demonstrations(tmp_path)


@pytest.mark.parametrize(
    ("name", "unit", "note"),
    [("t", 1, "t says 25 Hz, dataset.toml says 50 Hz"), ("time", 1000, "time says 25 Hz"), ("note", 1, "")],
)
def test_a_time_that_contradicts_the_rate_is_mentioned(
    tmp_path: Path, name: str, unit: float, note: str
) -> None:
    path = write_csv(tmp_path / "arm")
    for hz, expected in ((50, ""), (25, note)):
        for file in path.glob("*.csv"):
            _, *lines = file.read_text().splitlines()
            rows = [f"{unit * k / hz},{line.partition(',')[2]}" for k, line in enumerate(lines)]
            file.write_text("\n".join([f"{name},q0,q1,u0,text", *rows]))
        assert " ".join(open_source(path).notes).startswith(expected)
        assert bool(open_source(path).notes) == bool(expected)


def test_an_observation_does_not_divide_a_file(tmp_path: Path) -> None:
    (tmp_path / "dataset.toml").write_text('rate_hz = 9\nobservations = ["q", "done"]\nactions = ["u"]\n')
    lines = [f"{i},{-i},{i == 2:d}" for i in range(7)]
    (tmp_path / "all.csv").write_text("\n".join(["q,u,done", *lines]))
    demos = load_demonstrations(tmp_path)
    assert demos.lengths.tolist() == [7]
    assert demos.obs[:, 1].tolist() == [0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("text", ["true", "True", "1"])
def test_flags_divide_a_csv_file_into_episodes(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.toml").write_text('rate_hz = 9\nobservations = ["q"]\nactions = ["u"]\n')
    lines = [f'{i},{-i},"a,b",{text if i in (2, 6) else "False"}' for i in range(7)]
    (tmp_path / "all.csv").write_text("\n".join(["\ufeffq,u,note,done", *lines]))
    demos = load_demonstrations(tmp_path / "all.csv")
    assert demos.lengths.tolist() == [3, 4]
    assert demos.act[:, 0].tolist() == [-i for i in range(7)]


def with_toml(old: str, new: str) -> Callable[[Path], Path]:
    return lambda path: write_csv(path, CSV_TOML.replace(old, new))


def on_file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    write = write_csv if name.endswith("csv") else write_npz
    return lambda path: edit_bytes(write(path) / name, change)


def with_line(line: str, number: int = 2) -> Callable[[Path], None]:
    """Replace a line of the second csv file."""

    def change(content: bytes) -> bytes:
        lines = content.splitlines()
        lines[number] = line.encode()
        return b"\n".join(lines)

    return on_file("run_2.csv", change)


def with_arrays(**change: Any) -> Callable[[Path], Path]:
    return lambda path: write_npz(path, **change)


def single(**arrays: Any) -> Callable[[Path], Path]:
    """Write a single npz file."""

    def make(path: Path) -> Path:
        good = {"state": np.ones((10, 2)), "action": np.ones((10, 1)), "episode_ends": [4, 10]}
        path = path.with_suffix(".npz")
        np.savez(path, **{k: v for k, v in (good | arrays).items() if v is not None}, allow_pickle=True)
        return path

    return make


def with_pickle(path: Path) -> Path:
    state = np.array([Payload(path.parent / "executed")] * 10, object)
    assert pickle.dumps(state)
    return single(state=state)(path)


def promise(shape: str) -> Callable[[Path], Path]:
    """Let the header of an array promise a shape."""

    def make(path: Path) -> Path:
        path = path.with_suffix(".npz")
        np.savez(path, state=np.ones((10, 2)), action=np.ones((10, 2)), episode_ends=[10])
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        old = b"(10, 2), }" + b" " * (len(shape) - 5)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content.replace(old, f"({shape}), }}".encode()))
        return path

    return make


DAMAGES = [
    # dataset.toml
    Damage("no rate", with_toml("rate_hz = 50\n", ""), "dataset.toml: .*needs the setting 'rate_hz'"),
    Damage("unknown setting", with_toml("angles", "angels"), "angels"),
    Damage("unknown angle", with_toml('angles = ["q1"]', 'angles = ["q7"]'), r"\['q7'\] in angles"),
    Damage("name twice", with_toml('["u0"]', '["q0"]'), "a name is listed twice: q0, q1, q0"),
    Damage("unknown column", with_toml('"u0"', '"u9"'), "run_0.csv has no u9, it holds: t, q0, q1, u0, note"),
    # csv
    Damage("text", with_line("0,x,1,1,x"), "run_2.csv has 'x' in line 3 of q0, expected a num"),
    Damage("long row", with_line("0,5,1,1,1,x"), "run_2.csv has 6 values in line 3, expected 5"),
    Damage(
        "index of pandas", with_line(",q0,q1,u0,note", 0), "first column without a name.* use index=False"
    ),
    Damage("trailing comma", with_line("t,q0,q1,u0,", 0), "expected a different name for each column"),
    Damage("other columns", with_line("a,b,c,d,e", 0), "run_2.csv has no q0, q1, u0, it holds: a, b, c"),
    Damage("no rows", on_file("run_2.csv", lambda b: b.splitlines()[0]), "run_2.csv has no rows"),
    Damage("no UTF-8", on_file("run_2.csv", lambda b: b"\xff\xfe" + b), "run_2.csv cannot be .*utf-8"),
    Damage(
        "pipe", lambda path: replace_by_pipe(write_csv(path) / "run_2.csv"), "run_2.csv is not a regular file"
    ),
    # npz
    Damage("missing array", with_arrays(grip=None), "run_2.npz has no grip, it holds: qpos"),
    Damage(
        "other width", with_arrays(qpos=np.ones((4, 2))), r"qpos in .*_2.npz is float64 \(4, 2\), expected"
    ),
    Damage(
        "padded", with_arrays(target=np.ones((3, 9, 2))), r"has shape \(3, 9, 2\), expected \(frames, col"
    ),
    Damage("truncated", on_file("run_2.npz", lambda b: b[:-50]), "run_2.npz is not an undamaged npz"),
    Damage("bit flip", on_file("run_10.npz", lambda b: b[:150] + b"\xff" * 9 + b[159:]), "run_10.npz"),
    # a single npz
    Damage("no ends", single(episode_ends=None), "state, action, expected an array that divides"),
    Damage("no state", single(state=None), "no array 'state' in .*; it holds: action"),
    Damage("unknown lengths", single(episode_ends=None, sizes=[4, 6]), "call it episode_lengths"),
    Damage("unknown ends", single(episode_ends=None, stops=[4, 10]), "call it episode_ends"),
    Damage("ends after 0", single(episode_ends=None, stops=[0, 4, 10]), "call it episode_ends"),
    Damage("column of lengths", single(episode_ends=None, n=[[4.0], [6.0]]), "call it episode_lengths"),
    Damage("other lengths", single(episode_ends=None, traj_lengths=[4, 5]), "traj_lengths .* frame 9 of 10"),
    Damage("late start", single(episode_ends=None, episode_starts=[2, 5]), "has to start at frame 0"),
    Damage("contradiction", single(traj_lengths=[5, 5]), "traj_lengths in .* contradicts episode_ends"),
    Damage(
        "many arrays", single(**{f"x{k}": np.ones(10) for k in range(500)}), "503 arrays, the limit is 500"
    ),
    Damage("wide flags", single(episode_ends=None, dones=np.ones((10, 2))), r"\(10, 2\), expected a number"),
    Damage("no episodes", single(episode_ends=np.zeros(0, int)), "at least 1 episode"),
    Damage("pickle", with_pickle, "state in .* is object .* expected real numbers"),
    Damage("huge", promise("1000000000000, 2"), "ends at frame 10 of 1000000000000"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(tmp_path / "demos", load_demonstrations)
