"""Damage of demonstrations, and how it must be refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsde_policy.errors import DemoError


class Damage(NamedTuple):
    """A kind of damage, and a part of the expected message."""

    name: str
    make: Callable[[Path], Any]
    """Damage the demonstrations at a path, or write damaged ones and return their path."""
    message: str

    def __str__(self) -> str:
        return self.name

    def check(self, path: Path, read: Callable[[Path], object]) -> None:
        """Assert that demonstrations at a path are refused with the message, on one line."""
        made = self.make(path)
        with pytest.raises(DemoError, match=self.message) as caught:
            read(made if isinstance(made, Path) else path)
        assert "\n" not in str(caught.value)
        assert not (path.parent / "executed").exists(), "a pickle was run"


class Payload:
    """Creates a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def replace_by_pipe(file: Path) -> None:
    """Replace a file by a pipe, which would never end."""
    file.unlink(missing_ok=True)
    os.mkfifo(file)
