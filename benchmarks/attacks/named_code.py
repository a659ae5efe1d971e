"""Stores and run directories that name code: modules, classes, shell commands, formats and paths.

Every text in the attributes of a store and in the config.json of a run is replaced by each of `NAMES`, with
arguments that are commands. Whatever a command of this package answers, nothing may have been executed: the
module `canary` lies in the current directory, and it and every command leave a file `pwned`.
"""

import contextlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attacks.result import REFUSED, SURVIVED, Result, number_attempts

COMMAND = "touch pwned"
NAMES = (
    *("os:system", "subprocess:Popen", "subprocess:run", "builtins:exec", "canary:Env", "canary:Env-v0"),
    *("canary", "../canary", "nsde_policy.tasks.gym:import_user_module", "metaworld:../canary", "canary.py"),
    *("GymV26Environment-v0", "Pendulum-v1", "Ant-v5", "pusht", "$(touch pwned)", "{0.__class__}", "%s%n"),
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"command": COMMAND},
    {"args": COMMAND.split()},
    {"args": COMMAND, "shell": True},
    {"name": "canary"},
    {"env_id": "canary:Env"},
    {"make_kwargs": {"entry_point": "canary:Env"}},
    {"entry_point": "canary:Env"},
    {"xml_file": "./canary.py"},
    {"render_mode": "canary:Env"},
)
STORE_KEYS = ("task", "env_id", "made_with.env", "made_with.task", "sessions.env")
STORE_COMMANDS = (
    "data info STORE",
    "data replay STORE",
    "train --demos STORE --policy knn --device cpu --out OUT",
)
RUN_COMMANDS = (
    "eval RUN --episodes 1 --workers 1",
    "compare RUN --episodes 1 --workers 1 --latency-rounds 0 --out OUT",
    "report RUN --episodes 1 --workers 1 --latency-rounds 0 --videos 0 --cache OUT --out OUT.html",
    "collect --policy RUN --episodes 1 --workers 1 --out OUT.zarr",
    "play RUN --port 0 --token-file missing",
    "export RUN --out OUT.onnx",
)


def run(seconds: float, seed: int) -> Result:
    """Replace names in stores and runs, and call the commands that read them."""
    before, result = Path.cwd(), Result()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            make_files()
            for kind, attack in (("store", attack_store), ("run", attack_run)):
                for number in number_attempts(seconds / 2):
                    answer = judge(*attack(random.Random(f"{kind} {seed} {number}")))
                    result.count(f"named code: {kind}", answer, f"seed {seed}, attempt {number}")
        finally:
            os.chdir(before)
    return result


def make_files() -> None:
    """Write the canary, a store without attributes and a run that was trained on it."""
    from nsde_policy.data import DemoWriter, Episode

    Path("canary.py").write_text("open('pwned', 'w').close()\n")
    rng = np.random.default_rng(0)
    with DemoWriter(Path("store.zarr"), rate_hz=10) as writer:
        for _ in range(3):
            writer.append(Episode(*(rng.normal(size=(12, n)).astype("f4") for n in (5, 2))))
    code, said = call("train --demos store.zarr --policy knn --device cpu --out run")
    assert code == 0, said


def attack_store(rng: random.Random) -> tuple[int, str]:
    """Name code in an attribute of a store, and read it."""
    attributes: dict[str, Any] = {"made_with": {"env_kwargs": rng.choice(ARGUMENTS)}}
    first, _, second = rng.choice(STORE_KEYS).partition(".")
    name = rng.choice(NAMES)
    if not second:
        attributes[first] = name
    elif first == "sessions":
        attributes["sessions"] = [{second: name}]
    else:
        attributes["made_with"][second] = name
    Path("store.zarr/.zattrs").write_text(json.dumps(attributes))
    store = shutil.make_archive("packed", "zip", "store.zarr") if rng.random() < 0.5 else "store.zarr"
    return call(rng.choice(STORE_COMMANDS).replace("STORE", store))


def attack_run(rng: random.Random) -> tuple[int, str]:
    """Name code in place of one text of a run's config.json, and use the run."""
    text = Path("run/config.json").read_text()
    values = {**json.loads(text), "plugins": {"task": "x", "method": "x"}}
    if rng.random() < 0.5:
        values.update(task=rng.choice(NAMES), plugins={})
    else:
        holder, key = rng.choice(list(find_texts(values)))
        holder[key] = rng.choice(NAMES)
    shutil.copytree("run", "copy", dirs_exist_ok=True)
    values["env_kwargs"] = rng.choice(ARGUMENTS)
    Path("copy/config.json").write_text(json.dumps(values))
    return call(rng.choice(RUN_COMMANDS).replace("RUN", "copy"))


def find_texts(values: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the containers and keys of all texts in a JSON value."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, str):
            yield values, key
        elif isinstance(value, dict | list):
            yield from find_texts(value)


def call(line: str) -> tuple[int, str]:
    """Run a command with a fresh folder OUT; return its exit code and what it printed."""
    from nsde_policy.cli.main import main

    out, said = tempfile.mkdtemp(dir="."), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(line.replace("OUT", f"{out}/out").split())
    return code, f"{line}: {said.getvalue()[-300:]}"


def judge(code: int, said: str) -> str:
    """Return how an attempt ended: a bug if something was executed, or failed without a clear error."""
    if Path("pwned").exists():
        Path("pwned").unlink()
        return f"executed what a file named: {said}"
    return {0: SURVIVED, 2: REFUSED}.get(code, f"exit code {code}: {said}")
