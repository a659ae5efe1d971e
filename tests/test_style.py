"""Test of the style of the library: only commands print."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (ROOT / "nsde_policy/cli",)


def test_only_commands_print():
    modules = [
        path
        for room in ("nsde_policy", "envs", "data", "eval")
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    for path in modules:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if not any(path.is_relative_to(command) for command in COMMANDS):
            assert not [node.lineno for node in calls if getattr(node.func, "id", None) == "print"], path
