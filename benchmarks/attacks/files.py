"""Damaged and hostile files of every kind that is read: runs, exported graphs, stores and zips.

A file is mutated at random, or replaced by what a path can lead to: a pipe, a device, a socket, links in a
circle, sparse gigabytes, hostile JSON. An attempt is refused with a typed error, or survived with correct
numbers: unchanged where a checksum protects them (ONNX, zip), finite and of the stated shape elsewhere.
A load that hangs or takes 500 MB is a bug.
"""

import os
import random
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks._worker import Attempt, Worker
from attacks.result import SURVIVED, Result, number_attempts

VALUES = (
    *("1e999", "NaN", "-Infinity", "-1", "0", "1", "2", "7", "1e308", "-1e308", "1e-320", "1e30", "0.5"),
    *("1000000000000", "null", "true", "[]", "{}", "[[]]", "[1]", "1" * 400, "[" * 400 + "]" * 400),
)
WORDS = (
    "x",
    "",
    "../../etc/passwd",
    "\u0000",
    "|O",
    "pickle",
    "zstd",
    "gzip",
    "float64",
    "é" * 50,
    "os:system",
)
"""Values that replace numbers, and words that replace texts, in JSON."""


def run(seconds: float, seed: int) -> Result:
    """Mutate and replace files of each kind, and load them in a process of their own."""
    result, kinds = Result(), [*KINDS]
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        export(Path(folder))
        with Worker(prepare, folder) as worker:
            for number in number_attempts(seconds):
                kind = kinds[number % len(kinds)]
                how = "replaced" if number // len(kinds) % 3 == 2 else "mutated"
                answer = worker.attempt((kind, how, f"{seed} {number}"))
                result.count(f"files: {how}, {kind}", answer, f"seed {seed}, attempt {number}")
    return result


def make_demos() -> Any:
    """Make three episodes of demonstrations."""
    from nsde_policy.data.types import Demonstrations

    rng = np.random.default_rng(0)
    act = rng.normal(size=(120, 2)).cumsum(0).astype(np.float32)
    obs = np.concatenate([act, rng.normal(size=(120, 1)).astype(np.float32)], axis=1)
    return Demonstrations(obs, act, np.array([40, 80, 120]), rate_hz=10.0)


def train(path: Path, *, steps: int = 20, **options: Any) -> None:
    """Train a small policy, or continue its training."""
    from nsde_policy.config import NetworkConfig, TrainConfig
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
    from nsde_policy.run_config import RunConfig
    from nsde_policy.training.run import train_run

    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=steps, batch_size=16, log_every=5),
    )
    train_run(make_demos(), config, path, task="none", seed=0, **options)


def export(folder: Path) -> None:
    """Export the small policy."""
    from nsde_policy.deploy.export import export_policy
    from nsde_policy.inference.policy import Policy

    export_policy(Policy.from_pretrained(folder / "run"), folder / "graph" / "policy.onnx", steps=2, cases=1)


def make_files(folder: Path) -> None:
    """Write a small run directory, and stores of both formats and as a zip."""
    import zarr

    train(folder / "run")
    demos = make_demos()
    arrays = {"data/state": demos.obs, "data/action": demos.act, "meta/episode_ends": demos.episode_ends}
    for zarr_format in (2, 3):
        group = zarr.open_group(folder / f"v{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
        group.attrs.update({"rate_hz": 10.0, "action_space": {"low": [-99, -99], "high": [99, 99]}})
        for name, values in arrays.items():
            shape = {"shape": values.shape, "chunks": (30, *values.shape[1:])}
            group.create_array(name, dtype=values.dtype, **shape)[...] = values
    shutil.make_archive(str(folder / "store"), "zip", folder / "v2.zarr")


def prepare(folder: str) -> Attempt:
    """Return an attempt on a file of any kind; it works on copies of the genuine files."""
    attempts = {kind: prepare_kind(Path(folder), kind) for kind in KINDS}
    return lambda payload: attempts[payload[0]](payload[1:])


def prepare_kind(source: Path, kind: str) -> Attempt:
    """Return the attempt for one kind of file."""
    name, target, load, is_protected = KINDS[kind]
    copy = Path(tempfile.mkdtemp(dir=source)) / name
    (shutil.copytree if (source / name).is_dir() else shutil.copy)(source / name, copy)
    files = [copy / target] if target else [p for p in copy.rglob("*") if p.is_file()] or [copy]
    contents = {file: file.read_bytes() for file in sorted(files)}
    expected = load(copy)

    def attempt(payload: tuple[str, str]) -> str:
        how, seed = payload
        rng = random.Random(f"{kind} {how} {seed}")
        file = rng.choice(list(contents))
        if how == "replaced":
            file.unlink()
            rng.choice(REPLACEMENTS)(file)
        else:
            file.write_bytes(mutate(contents[file], rng))
        try:
            return compare(load(copy), expected, is_protected)
        finally:
            if os.path.lexists(file):
                (shutil.rmtree if file.is_dir() and not file.is_symlink() else os.unlink)(file)
            file.write_bytes(contents[file])

    return attempt


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], is_protected: bool) -> str:
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
        content = (_mutate_json if text else _mutate_bytes)(content, rng)
    return content


def _mutate_json(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    is_number = rng.random() < 0.7
    places = list(re.finditer(r"-?\d[\d.e+-]*" if is_number else r'(?<=")[^"]*(?=")', text))
    if not places:
        return content
    place = rng.choice(places)
    return (text[: place.start()] + rng.choice(VALUES if is_number else WORDS) + text[place.end() :]).encode()


def _mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return rng.randbytes(rng.randint(1, 64))
    at, size = rng.randrange(len(content)), rng.randint(1, min(64, len(content)))
    before, part, after = content[:at], content[at : at + size], content[at + size :]
    changes: list[Callable[[], bytes]] = [
        lambda: before + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :],
        lambda: before + rng.randbytes(len(part)) + after,
        lambda: before + rng.choice((b"\x00", b"\xff")) * len(part) + after,
        lambda: before + after,
        lambda: before + part * rng.randint(2, 50) + after,
        lambda: before,
        lambda: before + rng.randbytes(size) + content[at:],
    ]
    return rng.choice(changes)()


def _make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


REPLACEMENTS: tuple[Callable[[Path], Any], ...] = (
    os.mkfifo,
    _make_socket,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/tty"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("."),
    lambda path: None,
    lambda path: path.touch(),
    lambda path: (path.touch(), os.truncate(path, 20 * 2**30)),
    lambda path: (path.touch(), os.truncate(path, 15 * 2**20)),
    lambda path: path.write_text('{"shape": ' + "[" * 5000 + "]" * 5000 + "}"),
    lambda path: path.write_text("[" * 10**6),
    lambda path: path.write_text('{"shape": [1' + "0" * 400 + '], "step": 1e999}'),
    lambda path: path.write_text('{"a": [' + "[]," * 10**6 + "1]}"),
    lambda path: path.write_text("[1, 2]"),
    lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
)
"""What a file is replaced by, the last by a pickle that would run a command."""


def load_run(folder: Path) -> dict[str, np.ndarray]:
    """Load a run directory with its curves, plan, and open a session with its calibration."""
    from nsde_policy.eval.report.collect import read_curves
    from nsde_policy.inference.policy import Policy
    from nsde_policy.run_directory import RunDirectory

    policy = Policy.from_pretrained(folder)
    spec, calibration = policy.spec, policy.calibration
    states = np.tile(0.5 * (np.array(spec.low) + np.array(spec.high)), (spec.history, 1))
    plan = policy.plan_from(states, steps=2, seed=0)
    if plan.actions.shape != (2, spec.act_dim):
        raise AssertionError(f"a plan of shape {plan.actions.shape}")
    with policy.session(**({} if calibration.rate_hz else {"rate_hz": 10.0})) as session:
        command = session.step(np.zeros(spec.obs_dim))
    read_curves(RunDirectory(folder))
    return {"actions": plan.actions, "command": command, "step": np.array(calibration.step, float)}


def resume_run(folder: Path) -> dict[str, np.ndarray]:
    """Resume the training of a copy of a run, and load it."""
    copy = folder.with_name("resumed")
    shutil.copytree(folder, copy, symlinks=True, copy_function=_copy_or_link)
    try:
        train(copy, resume=True)
        return load_run(copy)
    finally:
        shutil.rmtree(copy)


def _copy_or_link(source: str, target: str) -> None:
    """Copy a file; link a pipe, a socket or a file of gigabytes."""
    if os.path.islink(source) or (os.path.isfile(source) and os.path.getsize(source) < 2**30):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        os.link(source, target)


def load_graph(folder: Path) -> dict[str, np.ndarray]:
    """Load an exported graph and plan."""
    from nsde_policy.deploy.runtime import RuntimePolicy

    policy = RuntimePolicy.load(folder / "policy.onnx")
    states = np.tile(np.linspace(-1, 1, 5), (policy.spec.history, 1))
    return {"actions": policy.plan_from(states, steps=2, seed=0).actions}


def load_store(path: Path) -> dict[str, np.ndarray]:
    """Load a store, and decode all of it."""
    from nsde_policy.data import load_demonstrations
    from nsde_policy.data.zarr_store.check import check_store

    check_store(path)
    demos = load_demonstrations(path)
    if not len(demos.obs) == len(demos.act) == demos.episode_ends[-1]:
        raise AssertionError(f"arrays of shapes {demos.obs.shape} and {demos.act.shape}")
    return {"obs": demos.obs, "act": demos.act, "ends": demos.episode_ends}


KINDS: dict[str, tuple[str, str | None, Callable[[Path], dict[str, np.ndarray]], bool]] = {
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
