"""Symmetries of tasks: mirror images double the demonstrations, rigid motions align their ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nsde_policy.core.spec import wrap_angle
from nsde_policy.errors import ConfigError

from .angles import TURN
from .types import Demonstrations

Column = tuple[int, float, float]
"""Column of a mirror image: (source column, factor, offset)."""


FrameMirror = Literal["left_right", "up_down", "transpose", "antitranspose"]
"""How the frame of a mirrored scene is made: swap columns, swap rows, or reflect at one of the diagonals."""


@dataclass(frozen=True)
class Mirror:
    """An affine map that swaps, negates and shifts columns and is its own inverse."""

    obs: tuple[Column, ...]
    act: tuple[Column, ...]
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
        """Return the mirror for observations that hold only some columns, in the given order."""
        place = {column: i for i, column in enumerate(columns)}
        try:
            selected = tuple(
                (place[source], factor, offset)
                for source, factor, offset in (self.obs[column] for column in columns)
            )
        except (IndexError, KeyError):
            raise ConfigError(
                f"the mirror image of observation columns {list(columns)} needs columns that are left out; "
                "set demos.mirror to False, or select them too"
            ) from None
        return replace(self, obs=selected)

    def flip_observations(self, obs: np.ndarray, angles: tuple[int, ...]) -> np.ndarray:
        """Return the mirror image of observations (n, obs_dim) with the columns `angles` of angles."""
        return _map_columns(obs, self.obs, angles)

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
            obs=self.flip_observations(demos.obs, demos.angles),
            act=_map_columns(demos.act, self.act, angles=demos.act_angles),
        )


@dataclass(frozen=True)
class RigidMotions:
    """Planar rigid transforms, SE(2), that a task is invariant to, and the body whose pose is its goal."""

    points: tuple[tuple[int, int], ...]
    """Observation columns x and y of every point that moves along."""
    angles: tuple[int, ...]
    """Observation columns of angles that turn along."""
    act_points: tuple[tuple[int, int], ...]
    """Action columns x and y of every point that moves along."""
    body: tuple[int, int, int]
    """Observation columns x, y and angle of the body."""

    def align(self, demos: Demonstrations, ends: np.ndarray, goal: np.ndarray) -> Demonstrations:
        """Move each demonstration as a whole, so that its body goes from its row of `ends` to `goal` (3,)."""
        frames = np.repeat(np.arange(len(demos)), demos.lengths)
        turn = wrap_angle(goal[2] - ends[:, 2])[frames]
        turning = np.stack([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        start = ends[frames, :2]

        def move(values: np.ndarray, points: tuple[tuple[int, int], ...]) -> np.ndarray:
            moved: np.ndarray = values.astype(np.float64)
            for point in points:
                moved[:, point] = np.einsum("ijn,nj->ni", turning, moved[:, point] - start) + goal[:2]
            return moved

        obs = move(demos.obs, self.points)
        obs[:, self.angles] = (obs[:, self.angles] + turn[:, None]) % TURN
        act = move(demos.act, self.act_points)
        dtype = demos.obs.dtype
        return replace(demos, obs=obs.astype(dtype), act=act.astype(dtype), source=f"{demos.source}, aligned")


def add_mirror_images(demos: Demonstrations, mirror: Mirror | None) -> Demonstrations:
    """Return the demonstrations followed by the mirror image of each; unchanged without a `mirror`."""
    if mirror is None:
        return demos
    return replace(demos.append(mirror.flip(demos)), source=f"{demos.source} and its mirror image")


def _map_columns(values: np.ndarray, columns: tuple[Column, ...], angles: tuple[int, ...] = ()) -> np.ndarray:
    """Map every row; the columns `angles` are wrapped to [0, 2π)."""
    out = np.stack([factor * values[:, source] + offset for source, factor, offset in columns], axis=1)
    out[:, list(angles)] %= TURN
    return out.astype(values.dtype)
