"""Replay-buffer zarr stores, format 2 or 3, a directory or a zip."""

import math
import operator
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.types import ActionLimits, Demonstrations
from nsde_policy.data.zarr_store.roles import check_keys
from nsde_policy.data.zarr_store.store import ROOT_KEYS, Store, read_columns
from nsde_policy.errors import DemoError


@register_reader
class ZarrReader(Reader):
    """Reader of the arrays in `data/` and of `meta/episode_ends`."""

    name = "zarr"

    def probe(self, path: Path) -> bool:
        """Recognise zarr directories and zip files."""
        return path.suffix == ".zip" or any((path / key).exists() for key in ROOT_KEYS)

    def load(
        self,
        path: Path,
        *,
        obs_keys: Sequence[str],
        act_key: str,
        accept_omitted_chunks: bool = False,
    ) -> Demonstrations:
        """Load the low-dimensional arrays; angles and rate are attributes of the arrays and the store.

        `accept_omitted_chunks` uses the fill value for chunks that do not exist: some writers omit chunks
        that hold nothing else, zarr 3 by default, but a lost chunk looks the same.
        """
        with Store(path, accept_omitted_chunks=accept_omitted_chunks) as store:
            check_keys(store, obs_keys, act_key)
            ends, arrays = store.open_episodes([f"data/{key}" for key in (*obs_keys, act_key)])
            *obs, act = (read_columns(array, ends) for array in arrays)
            first_columns = np.cumsum([0, *(part.shape[1] for part in obs)]).tolist()
            angles = [
                first + column
                for first, array in zip(first_columns, arrays[:-1], strict=False)
                for column in array.angles
            ]
            return Demonstrations(
                obs=np.concatenate(obs, axis=1),
                act=act,
                episode_ends=ends,
                angles=tuple(angles),
                act_angles=arrays[-1].angles,
                rate_hz=store.attributes.get("rate_hz"),
                act_limits=_read_act_limits(store, act.shape[1]),
            )


def _read_act_limits(store: Store, act_dim: int) -> ActionLimits | None:
    """Read the root attribute `action_space`, {"low": […], "high": […]}; null stands for no limit.

    Raises:
        DemoError: If it has other sizes, numbers that are not finite, or a low above its high.
    """
    space = store.attributes.get("action_space")
    if space is None:
        return None
    try:
        low = tuple(_parse_limit(value, -math.inf) for value in space["low"])
        high = tuple(_parse_limit(value, math.inf) for value in space["high"])
        is_valid = len(low) == len(high) == act_dim and all(map(operator.le, low, high))
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise DemoError(
            f"the attribute action_space of {store.path} is {space!r:.80}, expected lists 'low' and 'high' "
            f"of {act_dim} numbers, low below high: correct it or remove it"
        )
    return low, high


def _parse_limit(value: float | None, unlimited: float) -> float:
    """Return a finite limit, or `unlimited` for None; raise `ValueError` if it is not finite as a float."""
    if value is None:
        return unlimited
    if not abs(value) <= sys.float_info.max:
        raise ValueError(value)
    return float(value)
