"""The rooms of the house: who may import whom. A wall that falls fails here, by name."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MATHEMATICS = {"errors", "layout", "sde", "targets", "losses", "networks", "config"}
RUNS = MATHEMATICS | {
    "methods",
    "models",
    "stage_run",
    "trainer",
    "files",
    "run_config",
    "checkpoint",
    "tasks",
    "data",
    "__version__",
}
ROBOT = {"memory", "planner", "observation", "calibration"}
EVERYTHING = (
    RUNS
    | ROBOT
    | {
        "runs",
        "session",
        "acting",
        "remote",
        "runtime",
        "export",
        "policy",
        "assets",
        "envs",
        "eval",
        "viewer",
    }
)

# room: the other rooms of the package it may import. A room not named here is nobody's.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "assets": set(),
    "layout": {"errors"},
    "sde": {"errors"},
    "targets": {"errors"},
    "losses": {"errors"},
    "networks": {"errors"},
    "config": {"errors"},
    "methods": {"errors", "config", "models"},
    "run_config": {"errors", "config", "methods"},
    "models": MATHEMATICS,
    "stage_run": {"config", "models"},
    "trainer": {"errors", "config", "models", "stage_run"},
    "checkpoint": {"errors", "files", "config", "run_config", "layout", "__version__"},
    "envs": {"errors"},
    "data": {"errors", "files"},
    "tasks": {"errors", "config", "methods", "run_config", "data"},
    "runs": RUNS | {"memory", "planner", "calibration"},
    "memory": {"errors"},
    "planner": {"config", "memory"},
    "observation": {"errors", "planner"},
    "calibration": {"errors", "config", "planner"},
    "session": {"errors", "files", "config", *ROBOT},
    "acting": {"errors", *ROBOT, "session"},
    "policy": {"errors", "config", *ROBOT, "models", "checkpoint", "runs", "assets", "acting"},
    "remote": {"errors", "config", "calibration", "memory", "planner", "acting", "__version__"},
    "runtime": {"errors", "config", "calibration", "memory", "planner", "acting"},
    "export": {
        "errors",
        "files",
        "config",
        "layout",
        "networks",
        "models",
        "checkpoint",
        "planner",
        "policy",
        "runtime",
        "__version__",
    },
    "eval": EVERYTHING - {"viewer"},
    "viewer": {
        "errors",
        "assets",
        "config",
        "methods",
        "memory",
        "planner",
        "models",
        "policy",
        "data",
        "envs",
        "eval",
        "remote",
        "__version__",
    },
    "commands": EVERYTHING,
    "cli": {"errors", "commands", "__version__"},
}
HEAVY = {
    "torch",
    "gymnasium",
    "zarr",
    "pygame",
    "pymunk",
    "numpy",
    "matplotlib",
    "diffusers",
    "websockets",
    "msgpack",
}


def modules():
    for folder in ("nsde_policy", "envs", "data", "eval"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "nsde_policy" else parts[0]


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names of everything a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own(name: str) -> str | None:
    """The room of this package that a dotted import name leads to."""
    parts = name.split(".")
    return parts[1] if parts[0] == "nsde_policy" and len(parts) > 1 else None


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    room = room_of(path)
    if room == "__init__":
        assert not {own(name) for name in imports(path)} - {None}
        return
    assert room in ROOMS, f"{path.name} stands in no room: give it one in tests/test_architecture.py"
    rooms = {own(name) for name in imports(path)} - {None, room}
    assert rooms <= ROOMS[room]


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        ("envs", {"torch", "zarr"}),
        ("data", {"torch", "gymnasium", "pymunk", "pygame"}),
        ("nsde_policy/runtime", {"torch", "onnx", "onnxscript", "safetensors", "gymnasium", "zarr"}),
    ],
)
def test_some_rooms_stay_light(folder, banned):
    for path in (ROOT / folder).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & banned, path


def test_a_control_loop_needs_no_torch():
    code = "import sys, nsde_policy.control; assert not {'torch', 'zarr', 'gymnasium'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_in_envs_only_drawing_imports_pygame():
    users = {p.name for p in (ROOT / "envs").rglob("*.py") if any(n.startswith("pygame") for n in imports(p))}
    assert users == {"drawing.py"}


@pytest.mark.parametrize("path", [ROOT / "nsde_policy/cli/main.py", *(ROOT / "nsde_policy/commands").glob("*.py")])
def test_parsing_the_command_line_imports_nothing_heavy(path):
    assert not {name.split(".")[0] for name in imports(path, top_level_only=True)} & HEAVY


def test_nobody_touches_global_randomness():
    banned = ("np.random.seed", "torch.manual_seed", "random.seed(", "np.random.rand", "np.random.normal")
    for path in modules():
        text = path.read_text()
        assert not [b for b in banned if b in text], path


def test_no_pickle_anywhere():
    for path in modules():
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "dill", "cloudpickle"}, path
