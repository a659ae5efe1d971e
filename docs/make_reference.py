"""Write the reference pages of the site from the code: python docs/make_reference.py.

docs/reference/ and out/reference/ are ignored by git. mkdocstrings reads the package without importing it, so
it gets a folder in which data/, envs/ and eval/ are where they are installed.
"""

import contextlib
import importlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import nsde_policy
from nsde_policy.cli import main as cli

ROOT = Path(__file__).parents[1]
MODULES = {
    "nsde_policy": "What most programs need.",
    "nsde_policy.data": "Demonstrations.",
    "nsde_policy.control": "Control loop, without torch.",
    "nsde_policy.deploy.runtime": "Exported policies, without torch.",
    "nsde_policy.deploy.client": "Policies behind a server, without torch.",
    "nsde_policy.deploy.export": "Export to ONNX.",
    "nsde_policy.errors": "Errors. All derive from `NsdePolicyError`.",
    "nsde_policy.tasks": "Tasks, to [extend the package](../extending.md).",
    "nsde_policy.data.readers": "Readers of formats.",
    "nsde_policy.encoders": "Encoders of observations.",
    "nsde_policy.methods.base": "Methods.",
}
"""Documented modules, and what their sections say."""
OWN = {"nsde_policy.deploy.client", "nsde_policy.errors", "nsde_policy.methods.base"}
"""Modules that define their public names; the others import them from their files."""


def find_public_names(module: str) -> list[str]:
    """Return the public names of a documented module."""
    if module == "nsde_policy":
        return [*(name for name in nsde_policy.__all__ if name != "__version__"), "__version__"]
    found = vars(importlib.import_module(module)).items()
    kept = [(name, getattr(value, "__module__", "")) for name, value in found if not name.startswith("_")]
    return [name for name, home in kept if (home == module if module in OWN else home.startswith(module))]


def write_python() -> Iterator[str]:
    """Yield the lines of the page of the Python API."""
    yield "# Python\n\nPublic names by module. Everything else may change without notice."
    shown: list[object] = []
    for module, text in MODULES.items():
        yield f"\n## {module}\n\n{text}\n"
        for name in find_public_names(module):
            value = getattr(importlib.import_module(module), name)
            yield f"`{name}` is described above.\n" if value in shown else f"::: {module}.{name}\n"
            shown.append(value)


def write_commands() -> Iterator[str]:
    """Yield the lines of the page of the commands: their help texts."""
    yield "# Commands\n\nThe help texts of `nsde-policy`."
    yield f"\n```text\n{capture_help(['--help'])}```"
    pages = [([], cli.NSDE_POLICY.commands)]
    for names, commands in pages:
        for name, command in commands.items():
            path = [*names, name]
            if not isinstance(command, type):
                pages.append((path, command))
                continue
            yield f"\n## {' '.join(path)}\n\n```text\n{capture_help([*path, '--help'])}```"
    yield f"\n## All settings of train\n\n```text\n{capture_help(['train', '--help-all'])}```"


def capture_help(args: list[str]) -> str:
    """Return what a command prints for `--help`."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        cli.NSDE_POLICY.parse(args)
    return printed.getvalue()


def main() -> None:
    """Write the pages and the folder that mkdocstrings reads."""
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    pages = ROOT / "docs/reference"
    pages.mkdir(exist_ok=True)
    for name, lines in (("python", write_python()), ("commands", write_commands())):
        (pages / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    package = ROOT / "out/reference/nsde_policy"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "nsde_policy", package, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    for folder in ("data", "envs", "eval"):
        shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))


if __name__ == "__main__":
    main()
