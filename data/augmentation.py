"""Mirror images of demonstrations, which double the data of tasks with a mirror symmetry."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nsde_policy.data.angles import TURN
from nsde_policy.data.types import Demonstrations, Floats
from nsde_policy.errors import ConfigError

Column = tuple[int, float, float]
"""Column of a mirror image: (source column, factor, offset)."""


FrameMirror = Literal["left_right", "up_down", "transpose", "antitranspose"]
"""How the frame of a mirrored scene is made: swap columns, swap rows, or reflect at one of the diagonals."""


@dataclass(frozen=True)
class Mirror:
    """An affine map that swaps, negates and shifts columns and is its own inverse."""

    obs: tuple[Column, ...]
    """Columns of the mirrored observation."""
    act: tuple[Column, ...]
    """Columns of the mirrored action."""
    frame: FrameMirror | None = None
    """How camera frames of the mirrored scene look; None if that is not known."""

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

    def select(self, columns: Sequence[int]) -> "Mirror":
        """Return the mirror for observations that hold only some columns, in the given order.

        Raises:
            ConfigError: If a mirrored column needs one that is left out.
        """
        place = {column: i for i, column in enumerate(columns)}
        try:
            chosen = tuple(
                (place[source], factor, offset)
                for source, factor, offset in (self.obs[column] for column in columns)
            )
        except (IndexError, KeyError):
            raise ConfigError(
                f"the mirror image of observation columns {list(columns)} needs columns that are left out; "
                "set demos.mirror to False, or select them too"
            ) from None
        return replace(self, obs=chosen)

    def flip(self, demos: Demonstrations) -> Demonstrations:
        """Return the mirror image of every demonstration."""
        widths = (demos.obs.shape[1], demos.act.shape[1])
        if (len(self.obs), len(self.act)) != widths:
            raise ConfigError(
                f"the mirror is for {len(self.obs)}-D observations and {len(self.act)}-D actions; "
                f"{demos.source} holds {widths[0]}-D and {widths[1]}-D ones"
            )
        return replace(
            demos,
            obs=_map_columns(demos.obs, self.obs, angles=demos.angles),
            act=_map_columns(demos.act, self.act, angles=demos.act_angles),
        )


def add_mirror_images(demos: Demonstrations, mirror: Mirror | None) -> Demonstrations:
    """Return the demonstrations followed by the mirror image of each.

    Demonstrations that hold features of images have their mirror images already, and need no `mirror`.
    """
    image = demos.mirror_image if mirror is None else mirror.flip(demos)
    if image is None:
        raise ConfigError("these demonstrations have no mirror images; set demos.mirror to False")
    return replace(
        demos,
        obs=np.concatenate([demos.obs, image.obs]),
        act=np.concatenate([demos.act, image.act]),
        episode_ends=np.concatenate([demos.episode_ends, demos.episode_ends[-1] + demos.episode_ends]),
        mirror_image=None,
        source=f"{demos.source} and its mirror image",
    )


def _map_columns(values: Floats, columns: tuple[Column, ...], angles: tuple[int, ...] = ()) -> Floats:
    """Map every row; the columns `angles` are wrapped to [0, 2π)."""
    out = np.stack([factor * values[:, source] + offset for source, factor, offset in columns], axis=1)
    out[:, list(angles)] %= TURN
    return out.astype(values.dtype)
