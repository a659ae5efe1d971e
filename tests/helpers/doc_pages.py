"""Code of documentation pages."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType


def code_blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced code blocks of some languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in languages]


def load_script(path: Path) -> ModuleType:
    """Import a script that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
