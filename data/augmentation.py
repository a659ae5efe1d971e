"""Mirror images of demonstrations, for tasks that look the same in a mirror.

Where the world has a symmetry, the mirror image of a demonstration is a demonstration that nobody
had to give: twice the data for nothing.
"""

from dataclasses import dataclass, replace

import numpy as np

from nsde_policy.data.types import Demonstrations, Floats
from nsde_policy.errors import ConfigError

Column = tuple[int, float, float]
"""A column of the image: (column it comes from, factor, offset)."""


@dataclass(frozen=True)
class Mirror:
    """An affine map that swaps, negates and shifts columns, and undoes itself when done twice."""

    obs: tuple[Column, ...]
    """Columns of the mirrored observation."""
    act: tuple[Column, ...]
    """Columns of the mirrored action."""

    def __post_init__(self) -> None:
        for name in ("obs", "act"):
            columns = getattr(self, name)
            probe = np.arange(1, len(columns) + 1, dtype=np.float32)[None]
            try:
                back = _mapped(_mapped(probe, columns), columns)
            except IndexError:
                raise ConfigError(f"the mirror's {name} names a column beyond its {len(columns)}") from None
            if not np.allclose(back, probe):
                raise ConfigError(f"the mirror's {name} does not undo itself when applied twice")


def with_mirror_images(demos: Demonstrations, mirror: Mirror) -> Demonstrations:
    """The demonstrations, followed by the mirror image of each."""
    widths = (demos.obs.shape[1], demos.act.shape[1])
    if (len(mirror.obs), len(mirror.act)) != widths:
        raise ConfigError(
            f"the mirror is for {len(mirror.obs)}-D observations and {len(mirror.act)}-D actions; "
            f"{demos.source} holds {widths[0]}-D and {widths[1]}-D ones"
        )
    image = {
        "obs": _mapped(demos.obs, mirror.obs, turn=demos.angles),
        "act": _mapped(demos.act, mirror.act, turn=demos.act_angles),
    }
    return replace(
        demos,
        obs=np.concatenate([demos.obs, image["obs"]]),
        act=np.concatenate([demos.act, image["act"]]),
        episode_ends=np.concatenate([demos.episode_ends, demos.episode_ends[-1] + demos.episode_ends]),
        source=f"{demos.source} and its mirror image",
    )


def _mapped(values: Floats, columns: tuple[Column, ...], turn: tuple[int, ...] = ()) -> Floats:
    """Rows through the mirror; columns in `turn` are angles, brought back to [0, 2π)."""
    out = np.stack([factor * values[:, source] + offset for source, factor, offset in columns], axis=1)
    out[:, list(turn)] %= 2 * np.pi
    return out.astype(values.dtype)
