"""Random mutations of every kind of file that is read.

An attempt is refused with a typed error, or survived with correct numbers: equal to those of the file before
the mutation where a checksum protects them (ONNX, zip), and finite and of the stated shape where a mutation
may change a number unnoticed (config, calibration, safetensors, zarr). A load that takes more than 5 s or
500 MB is a bug.
"""

import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attacks._worker import SURVIVED, Attempt, Worker
from attacks.result import AttackResult

KINDS = ("config", "calibration", "safetensors", "onnx", "zarr v2", "zarr v3", "zip")
MUTATIONS = 1000
"""Mutations of each kind at scale 1."""
VALUES = (
    "1e999 NaN -Infinity -1 0 1 2 7 1e308 -1e308 1e-320 null true [] {} [[]] [1] 1e30 1000000000000 0.5 "
    + "1" * 400
    + " "
    + "[" * 400
    + "]" * 400
).split()
WORDS = ("x", "", "../../etc/passwd", "\u0000", "|O", "pickle", "zstd", "gzip", "float64", "é" * 50)
"""Values that replace numbers, and words that replace texts, in JSON."""


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Mutate files of each kind and load them in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        for kind in KINDS:
            result = AttackResult(f"files: {kind}")
            with Worker(prepare, (folder, kind)) as worker:
                for number in range(max(1, round(MUTATIONS * scale))):
                    worker.attempt((seed, number), result, f"seed {seed}, mutation {number}")
            yield result


def make_files(folder: Path) -> None:
    """Write a small run directory, its export, and stores of both formats and as a zip."""
    import zarr

    from nsde_policy.config import NetworkConfig, TrainConfig
    from nsde_policy.data.types import Demonstrations
    from nsde_policy.deploy.export import export_policy
    from nsde_policy.inference.policy import Policy
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
    from nsde_policy.run_config import RunConfig
    from nsde_policy.training.run import train_run

    rng = np.random.default_rng(0)
    act = rng.normal(size=(120, 2)).cumsum(0).astype(np.float32)
    obs = np.concatenate([act, rng.normal(size=(120, 1)).astype(np.float32)], axis=1)
    ends = np.array([40, 80, 120])
    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
        train=TrainConfig(steps=20, batch_size=16, log_every=10),
    )
    train_run(Demonstrations(obs, act, ends, rate_hz=10.0), config, folder / "run", task="none", seed=0)
    (folder / "graph").mkdir()
    export_policy(Policy.from_pretrained(folder / "run"), folder / "graph" / "policy.onnx", cases=2)
    for zarr_format in (2, 3):
        group = zarr.open_group(folder / f"v{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
        group.attrs.update({"rate_hz": 10.0, "action_space": {"low": [-99, -99], "high": [99, 99]}})
        for name, values in (("data/state", obs), ("data/action", act), ("meta/episode_ends", ends)):
            array = group.create_array(
                name, shape=values.shape, dtype=values.dtype, chunks=(30, *values.shape[1:])
            )
            array[...] = values
    shutil.make_archive(str(folder / "store"), "zip", folder / "v2.zarr")


def prepare(argument: tuple[str, str]) -> Attempt:
    """Return the attempt for one kind of file; it works on a copy of the genuine files."""
    source, kind = Path(argument[0]), argument[1]
    name, target, load, is_protected = {
        "config": ("run", "config.json", load_policy, False),
        "calibration": ("run", "calibration.json", load_calibration, False),
        "safetensors": ("run", "model.safetensors", load_policy, False),
        "onnx": ("graph", "policy.onnx", load_graph, True),
        "zarr v2": ("v2.zarr", None, load_store, False),
        "zarr v3": ("v3.zarr", None, load_store, False),
        "zip": ("store.zip", "", load_store, True),
    }[kind]
    genuine = source / name
    copy = Path(tempfile.mkdtemp(dir=source)) / name
    (shutil.copytree if genuine.is_dir() else shutil.copy)(genuine, copy)
    files = [copy / target] if target else [p for p in copy.rglob("*") if p.is_file()] or [copy]
    contents = {file: file.read_bytes() for file in sorted(files)}
    expected = load(copy)

    def attempt(payload: tuple[int, int]) -> str:
        rng = random.Random(f"{kind} {payload}")
        file = rng.choice(list(contents))
        file.write_bytes(mutate(contents[file], rng))
        try:
            found = load(copy)
        finally:
            file.write_bytes(contents[file])
        return compare(found, expected, is_protected)

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
        lambda: before + bytes([rng.randrange(256)]) + content[at + 1 :],
        lambda: before + rng.randbytes(len(part)) + after,
        lambda: before + rng.choice((b"\x00", b"\xff")) * len(part) + after,
        lambda: before + after,
        lambda: before + part * rng.randint(2, 50) + after,
        lambda: before,
        lambda: before + rng.randbytes(size) + content[at:],
    ]
    return rng.choice(changes)()


def load_policy(folder: Path) -> dict[str, np.ndarray]:
    """Load a run directory and plan."""
    from nsde_policy.inference.policy import Policy

    policy = Policy.from_pretrained(folder)
    spec = policy.spec
    states = np.tile(0.5 * (np.array(spec.low) + np.array(spec.high)), (spec.history, 1))
    plan = policy.plan_from(states, steps=2, seed=0)
    if plan.actions.shape != (2, spec.act_dim):
        raise AssertionError(f"a plan of shape {plan.actions.shape}")
    return {"actions": plan.actions}


def load_calibration(folder: Path) -> dict[str, np.ndarray]:
    """Load the calibration of a run and open a session with it."""
    from nsde_policy.inference.policy import Policy

    policy = Policy.from_pretrained(folder)
    calibration = policy.calibration
    with policy.session(**({} if calibration.rate_hz else {"rate_hz": 10.0})) as session:
        command = session.step(np.zeros(policy.spec.obs_dim))
    values: dict[str, Any] = vars(calibration)
    return {"command": command} | {
        name: np.array(value, float) for name, value in values.items() if name != "precision"
    }


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
