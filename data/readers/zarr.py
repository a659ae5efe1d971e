"""Replay-buffer zarr stores, format 2 or 3, a directory or a zip."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.types import Demonstrations
from nsde_policy.data.zarr_store.files import ROOT_KEYS
from nsde_policy.data.zarr_store.store import Store, read_columns
from nsde_policy.errors import ArrayError


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
        angles: Sequence[int] | None = None,
        act_angles: Sequence[int] | None = None,
        rate_hz: float | None = None,
        episode_ends: str = "episode_ends",
        accept_omitted_chunks: bool = False,
    ) -> Demonstrations:
        """Load the low-dimensional arrays; see `load_demonstrations`.

        `angles`, `act_angles` and `rate_hz` default to the attributes of the arrays and the store. The array
        `meta/<episode_ends>` holds one past the last frame of each episode. `accept_omitted_chunks` uses the
        fill value for chunks that do not exist: some writers omit chunks that hold nothing else, zarr 3 by
        default, but a lost chunk looks the same.
        """
        if not obs_keys:
            raise ArrayError("no observation array was named; give at least one, such as 'state'")
        with Store(path, episode_ends=episode_ends, accept_omitted_chunks=accept_omitted_chunks) as store:
            ends, arrays = store.open_episodes([f"data/{key}" for key in (*obs_keys, act_key)])
            *obs, act = (read_columns(array, ends) for array in arrays)
            if angles is None:
                offsets = np.cumsum([0, *(o.shape[1] for o in obs)]).tolist()
                angles = [
                    at + column for at, a in zip(offsets, arrays[:-1], strict=False) for column in a.angles
                ]
            return Demonstrations(
                obs=np.concatenate(obs, axis=1) if len(obs) > 1 else obs[0],
                act=act,
                episode_ends=ends,
                angles=tuple(angles),
                act_angles=arrays[-1].angles if act_angles is None else tuple(act_angles),
                rate_hz=store.attributes.get("rate_hz") if rate_hz is None else rate_hz,
                source=str(path),
            )
