"""Code of documentation pages."""

import re
from pathlib import Path


def code_blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced code blocks of some languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in languages]
