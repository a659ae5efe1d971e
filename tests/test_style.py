"""Tests of the style of the library: printing, and checks of one method's type."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("nsde_policy", "envs", "data", "eval")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def parse_modules() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in MODULES}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in parse_modules().items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kinds))


def test_only_commands_print():
    printing = [
        f"{name}:{node.lineno}"
        for name, node in nodes(ast.Call)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) == "print"
        and not name.startswith(("nsde_policy/cli/", "nsde_policy/video/command.py"))
    ]
    assert not printing


def test_isinstance_checks_of_neural_sde_are_only_in_its_folder():
    checks = [
        f"{name}:{node.lineno}"
        for name, node in nodes(ast.Call)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) in ("isinstance", "issubclass")
        and "NeuralSDE" in {getattr(part, "id", None) for part in ast.walk(node)}
        and not name.startswith("nsde_policy/methods/neural_sde/")
    ]
    assert not checks
