"""Tests of the layers: which room may import which, and which rooms do without heavy packages."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Layers, lowest first. A room may import itself and every room on a lower line. Parts of eval are rooms too.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "version", "bounds", "ranks", "torch_threads"),
    ("files", "assets", "log"),
    ("registry", "config"),
    ("core",),
    ("data", "envs"),
    ("methods",),
    ("encoders", "selection"),
    ("run_config",),
    ("run_directory",),
    ("tasks",),
    ("interface",),
    ("control",),
    ("policy",),
    ("training",),
    ("deploy",),
    ("eval.machine", "eval.names", "eval.statistics"),
    ("eval.episodes", "eval.tables"),
    ("eval.modes",),
    ("eval.summary",),
    ("eval.rollouts",),
    ("eval.compare", "eval.score", "eval.render", "eval.demonstrator"),
    ("eval.report", "eval.tune"),
    ("viewer",),
    ("cli",),
    ("__main__",),
)


def modules():
    for folder in ("nsde_policy", "envs", "data", "eval"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return own(".".join(parts if parts[0] == "nsde_policy" else ("nsde_policy", *parts)))


@cache
def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Return the dotted names of everything a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names: set[str] = set()
    parts = path.relative_to(ROOT).parts[:-1]
    package = parts if parts[0] == "nsde_policy" else ("nsde_policy", *parts)
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], node.module] if node.level else [node.module]
            module = ".".join(filter(None, base))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_within_a_folder_are_relative(path):
    parts = path.relative_to(ROOT).parts[:-1]
    folder = ".".join(parts[:2] if parts[0] == "nsde_policy" else ("nsde_policy", parts[0]))
    if folder == "nsde_policy":
        return  # files of the package itself
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    modules_of_nodes = [node.module or "" for node in nodes if not node.level]
    assert not [name for name in modules_of_nodes if f"{name}.".startswith(f"{folder}.")]


def own(name: str) -> str | None:
    """Return the room of this package that a dotted import name leads to."""
    parts = name.split(".")
    if parts[0] != "nsde_policy" or len(parts) < 2:
        return None
    return ".".join(parts[1:3]) if parts[1] == "eval" else parts[1]


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_lower_layers(path):
    room = room_of(path)
    if path.name == "__init__.py" and room in ("__init__", "eval.__init__"):
        return  # the public API, which imports lazily
    layer = {name: i for i, names in enumerate(LAYERS) for name in names}
    assert room in layer, f"{path} belongs to no layer: add its room in tests/test_architecture.py"
    imported = {own(name) for name in imports(path)} - {None, room}
    assert not {name for name in imported if layer[name] >= layer[room]}


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        ("envs", {"torch", "zarr"}),
        ("data", {"torch", "gymnasium", "pymunk", "pygame"}),
        ("nsde_policy/interface", {"torch", "gymnasium", "zarr"}),
        ("nsde_policy/control", {"torch", "gymnasium", "zarr"}),
        ("nsde_policy/deploy/runtime", {"torch", "onnx", "onnxscript", "safetensors", "gymnasium", "zarr"}),
    ],
)
def test_some_rooms_do_without_heavy_packages(folder, banned):
    for path in (ROOT / folder).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & banned, path


def test_a_robot_needs_no_training_code():
    for path in (ROOT / "nsde_policy/deploy/runtime").rglob("*.py"):  # lower layers are tested above
        assert "training" not in {own(name) for name in imports(path)}, path


def test_a_control_loop_needs_no_torch():
    code = "import sys, nsde_policy.control; assert not {'torch', 'zarr', 'gymnasium'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_global_random_generators_are_not_used():
    banned = ("np.random.seed", "torch.manual_seed", "random.seed(", "np.random.rand", "np.random.normal")
    for path in modules():
        text = path.read_text()
        assert not [b for b in banned if b in text], path


def test_pickle_is_not_used():
    for path in modules():
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "dill", "cloudpickle"}, path


def test_nothing_of_one_system_is_imported_with_the_package():
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
    for path in modules():
        names = {name.split(".")[0] for name in imports(path, top_level_only=True)}
        assert not names & {*posix, "msvcrt", "winreg"}, path


def test_only_commands_print():
    for path in modules():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if not path.is_relative_to(ROOT / "nsde_policy/cli"):
            assert not [node.lineno for node in calls if getattr(node.func, "id", None) == "print"], path
