"""The interface of a demonstration reader."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from nsde_policy.data.types import Demonstrations


class Reader(abc.ABC):
    """Reads one format of demonstrations; register it with `register_reader`."""

    name: ClassVar[str]

    @abc.abstractmethod
    def probe(self, path: Path) -> bool:
        """Return whether a file or folder looks like this format; must be cheap and must not raise."""

    @abc.abstractmethod
    def load(
        self,
        path: Path,
        *,
        obs_keys: Sequence[str],
        act_key: str,
        angles: Sequence[int] | None,
        act_angles: Sequence[int] | None,
        rate_hz: float | None,
    ) -> Demonstrations:
        """Load the low-dimensional part of the demonstrations; see `load_demonstrations`.

        Raises:
            DemoError: If they are damaged or do not have the expected form.
        """
