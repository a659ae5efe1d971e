"""Mirror images of demonstrations, which double the data of tasks with a mirror symmetry."""

from dataclasses import dataclass, replace

import numpy as np

from nsde_policy.data.angles import TURN
from nsde_policy.data.types import Demonstrations, Floats
from nsde_policy.errors import ConfigError

Column = tuple[int, float, float]
"""Column of a mirror image: (source column, factor, offset)."""


@dataclass(frozen=True)
class Mirror:
    """An affine map that swaps, negates and shifts columns and is its own inverse."""

    obs: tuple[Column, ...]
    """Columns of the mirrored observation."""
    act: tuple[Column, ...]
    """Columns of the mirrored action."""

    def __post_init__(self) -> None:
        for name in ("obs", "act"):
            columns = getattr(self, name)
            probe = np.arange(1, len(columns) + 1, dtype=np.float32)[None]
            try:
                back = _map_columns(_map_columns(probe, columns), columns)
            except IndexError:
                raise ConfigError(f"the mirror's {name} names a column beyond its {len(columns)}") from None
            if not np.allclose(back, probe):
                raise ConfigError(f"the mirror's {name} is not its own inverse; apply it twice to check")


def add_mirror_images(demos: Demonstrations, mirror: Mirror) -> Demonstrations:
    """Return the demonstrations followed by the mirror image of each."""
    widths = (demos.obs.shape[1], demos.act.shape[1])
    if (len(mirror.obs), len(mirror.act)) != widths:
        raise ConfigError(
            f"the mirror is for {len(mirror.obs)}-D observations and {len(mirror.act)}-D actions; "
            f"{demos.source} holds {widths[0]}-D and {widths[1]}-D ones"
        )
    obs = _map_columns(demos.obs, mirror.obs, angles=demos.angles)
    act = _map_columns(demos.act, mirror.act, angles=demos.act_angles)
    return replace(
        demos,
        obs=np.concatenate([demos.obs, obs]),
        act=np.concatenate([demos.act, act]),
        episode_ends=np.concatenate([demos.episode_ends, demos.episode_ends[-1] + demos.episode_ends]),
        source=f"{demos.source} and its mirror image",
    )


def _map_columns(values: Floats, columns: tuple[Column, ...], angles: tuple[int, ...] = ()) -> Floats:
    """Map every row; the columns `angles` are wrapped to [0, 2π)."""
    out = np.stack([factor * values[:, source] + offset for source, factor, offset in columns], axis=1)
    out[:, list(angles)] %= TURN
    return out.astype(values.dtype)
