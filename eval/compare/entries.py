"""Entry of a comparison: the episodes of one trained run under one setting, and their costs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from nsde_policy.selection.rule import Kind

from ..episodes import Episodes
from ..rollouts.disturbances import Condition
from ..tables import format_label


class Setting(NamedTuple):
    """What entries must share to be pooled in one row."""

    name: str
    chunk: int
    demos: int
    latency_steps: int = 0
    obs_noise: float = 0.0
    push: float = 0.0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trained run, rolled out under one setting."""

    name: str
    """Unique name of the row, such as "diffusion, DDIM-10"."""
    title: str
    method: str
    train_seed: int
    demos: int
    """Number of demonstrations it was trained on."""
    chunk: int
    """Actions executed before replanning (T_a)."""
    sampling: Mapping[str, Any]
    """Sampling settings of the trained model."""
    condition: Condition
    parameters: int
    train_steps: int
    train_s: float | None
    """Training time in seconds, if the run had the device to itself."""
    calls_per_chunk: float
    """Sequential network calls for eight actions, the mean over plans."""
    episodes: Episodes
    select: Kind = "none"
    """Rule by which plans were selected."""
    frames: str = ""
    """Observations of all episodes for the player of a report page, see `encode_frames`."""

    @property
    def setting(self) -> Setting:
        """Setting by which entries are pooled."""
        return Setting(self.name, self.chunk, self.demos, **self.condition.to_dict())

    @property
    def label(self) -> str:
        """Name with the method's title, see `format_label`."""
        return format_label(self.name, self.method, self.title)
