"""Tests of the style of the library: docstrings, sizes, names, printing, and mentions of Push-T."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("nsde_policy", "envs", "data", "eval")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
PAGE_FILES = [
    path for room in ROOMS for end in ("js", "html", "css") for path in (ROOT / room).rglob(f"*.{end}")
]

SHORTEST_DOCSTRING = 20
LONGEST_FUNCTION = 55
MOST_ANY = 250
MOST_PARAMETERS = 8
MOST_PUSHT_FILES = 5
PUSHT_ROOMS = ("envs/", "nsde_policy/tasks/pusht.py", "nsde_policy/assets/", "nsde_policy/viewer/")
"""Files that may mention Push-T as often as they like."""
SHARED_NAMES = {"logger", "__all__", "PRESETS"}
"""Names that mean the same in every module that defines them; `PRESETS` are the presets of a method."""


@cache
def parse_modules() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in MODULES}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in parse_modules().items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kinds))


def module_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and getattr(value.func, "id", None) == "TypeVar":
            continue  # type variables have no meaning outside their module
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_docstrings_of_modules_classes_functions_and_attributes_are_not_too_short():
    short = [
        f"{name}:{node.lineno} {node.value.value!r}"
        for name, node in nodes(ast.Expr)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and len(node.value.value.strip()) < SHORTEST_DOCSTRING
    ]
    assert not short


def test_functions_have_a_maximum_length():
    long = [
        f"{name}:{node.lineno} {node.name}, {length} lines"
        for name, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long


def test_few_types_are_any():
    assert sum(len(re.findall(r"\bAny\b", path.read_text())) for path in MODULES) <= MOST_ANY


def test_functions_have_few_parameters():
    many = []
    for name, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        given = node.args
        found = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        count = sum(each is not None and each.arg not in ("self", "cls") for each in found)
        if count > MOST_PARAMETERS:
            many.append(f"{name}:{node.lineno} {node.name}, {count} parameters")
    assert not many


def test_a_module_level_name_is_defined_once_in_the_package():
    places = defaultdict(set)
    for name, tree in parse_modules().items():
        for found in module_level_names(tree):
            places[found].add(name)
    assert not {
        found: sorted(where)
        for found, where in places.items()
        if len(where) > 1 and found not in SHARED_NAMES and not found.startswith("__")
    }


def test_few_other_files_mention_push_t():
    found = [
        name
        for path in [*MODULES, *PAGE_FILES]
        if not (name := str(path.relative_to(ROOT))).startswith(PUSHT_ROOMS)
        and re.search(r"push[-_ ]?t\b|pusht", path.read_text(), re.I)
    ]
    assert len(found) <= MOST_PUSHT_FILES, found


def test_only_commands_print():
    printing = [
        f"{name}:{node.lineno}"
        for name, node in nodes(ast.Call)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) == "print"
        and not name.startswith("nsde_policy/cli/")
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


def test_there_are_few_classes_of_errors():
    names = [
        node.name for node in parse_modules()["nsde_policy/errors.py"].body if isinstance(node, ast.ClassDef)
    ]
    assert len(names) <= 12


def test_indefinite_pronouns_are_not_used():
    pattern = re.compile(r"\b(somebody|nobody|whoever|everybody)\b", re.I)
    assert not [name for name in parse_modules() if pattern.search((ROOT / name).read_text())]
