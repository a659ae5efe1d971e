"""Code of documentation pages."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType


def read_page(page: Path) -> str:
    """Return the text of a page, without passages between `check after merge` and `checked`."""
    passage = r"<!-- check after merge -->.*?<!-- checked -->"
    return re.sub(passage, "", page.read_text(), flags=re.DOTALL)


def code_blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced code blocks of some languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", read_page(page), re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in languages]


def load_script(path: Path) -> ModuleType:
    """Import a script that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
