"""Stores and run directories that name code: modules, classes, shell commands, formats and paths.

Every text in the attributes of a store and in the config.json of a run is replaced by each of `NAMES`, with
arguments that are commands. Whatever a command of this package answers, nothing may have been executed: the
module `canary` lies in the current directory, and it and every command leave a file `pwned`.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attacks._attempts import REFUSED, SURVIVED, Attack, Attempt
from attacks._samples import make_samples

COMMAND = "touch pwned"
NAMES = (
    *("os:system", "subprocess:Popen", "subprocess:run", "builtins:exec", "canary:Env", "canary:Env-v0"),
    *("canary", "../canary", "nsde_policy.tasks.gym:import_user_module", "metaworld:../canary", "canary.py"),
    *("GymV26Environment-v0", "Pendulum-v1", "Ant-v5", "pusht", "$(touch pwned)", "{0.__class__}", "%s%n"),
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"command": COMMAND},
    {"args": COMMAND, "shell": True},
    {"name": "canary"},
    {"env_id": "canary:Env"},
    {"make_kwargs": {"entry_point": "canary:Env"}},
    {"entry_point": "canary:Env"},
    {"xml_file": "./canary.py"},
    {"render_mode": "canary:Env"},
)
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


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Write a canary, a store and a run into the current directory; attack both by turns."""
    stack.callback(os.chdir, Path.cwd())
    os.chdir(folder)
    make_samples(folder)
    Path("canary.py").write_text("open('pwned', 'w').close()\n")

    def attack(rng: random.Random, number: int) -> Attempt:
        line = change_run(rng) if number % 2 else change_store(rng)
        what = f"attempt {number}: {line}"
        return Attempt("run" if number % 2 else "store", what, lambda: call(line))

    return attack


def change_store(rng: random.Random) -> str:
    """Name code in an attribute of a store; return a command that reads it."""
    name, made_with = rng.choice(NAMES), {"env_kwargs": rng.choice(ARGUMENTS)}
    attributes: dict[str, Any] = rng.choice(
        (
            {"task": name, "made_with": made_with},
            {"env_id": name, "made_with": made_with},
            {"made_with": {"env": name, **made_with}},
            {"made_with": {"task": name, **made_with}},
            {"sessions": [{"env": name}], "made_with": made_with},
        )
    )
    Path("v2.zarr/.zattrs").write_text(json.dumps({"rate_hz": 10.0, **attributes}))
    store = shutil.make_archive("packed", "zip", "v2.zarr") if rng.random() < 0.5 else "v2.zarr"
    return rng.choice(STORE_COMMANDS).replace("STORE", store)


def change_run(rng: random.Random) -> str:
    """Name code in place of one text of a run's config.json; return a command that uses the run."""
    values = json.loads(Path("run/config.json").read_text())
    if rng.random() < 0.5:
        values["task"] = rng.choice(NAMES)
    else:
        holder, key = rng.choice(list(find_texts(values)))
        holder[key] = rng.choice(NAMES)
    shutil.copytree("run", "copy", dirs_exist_ok=True)
    values["env_kwargs"] = rng.choice(ARGUMENTS)
    Path("copy/config.json").write_text(json.dumps(values))
    return rng.choice(RUN_COMMANDS).replace("RUN", "copy")


def find_texts(values: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the containers and keys of all texts in a JSON value."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, str):
            yield values, key
        elif isinstance(value, dict | list):
            yield from find_texts(value)


def call(line: str) -> str:
    """Run a command with a fresh folder OUT; a bug if something was executed, or the exit code is odd."""
    from nsde_policy.cli.main import main

    out = tempfile.mkdtemp(dir=".")
    code = main(line.replace("OUT", f"{out}/out").split())
    if Path("pwned").exists():
        Path("pwned").unlink()
        return "executed what a file named"
    return {0: SURVIVED, 2: REFUSED}.get(code, f"exit code {code}")
