"""Defaults of a task for training: settings of its demonstrations, its symmetry and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nsde_policy.config import EncoderConfig, Preset
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig

if TYPE_CHECKING:
    from nsde_policy.data import Mirror
    from nsde_policy.data.augmentation import RigidMotions
    from nsde_policy.data.download import PublicDemos

AUTO_PRESET = "auto"
"""Preset that is chosen by statistics of the demonstrations, for any method."""
CAMERA_PRESET = "pixels-fast"
"""Preset for cameras and a CPU: `auto` with a small encoder, unless the task has its own."""


@dataclass(frozen=True)
class ObservationChoice:
    """A set of observations that a policy can be trained on, other than the task's usual one."""

    demos: Mapping[str, Any]
    """Fields of `DemoConfig` that differ from those of the task."""
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments with which the environment gives these observations."""
    preset: str = "default"
    """Preset that `train` uses, of methods that have it."""
    recorded_with: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments with which the environment gives them in addition to the usual ones, to record."""
    encoders: Mapping[str, EncoderConfig] = field(default_factory=dict)
    """Settings of the encoder by the name of the preset, for presets without any."""


class TrainingDefaults:
    """Defaults with which policies are trained for a task; every member is optional."""

    default_preset: str = AUTO_PRESET
    """Preset that `train` uses; `auto` chooses settings by statistics of the demonstrations."""
    demos: DemoConfig = DemoConfig()
    """Settings with which its demonstrations are read."""
    observations: Mapping[str, ObservationChoice] = MappingProxyType({})
    """Other observations by the name that `train --obs` gives them, such as "pixels"."""
    encoders: Mapping[str, EncoderConfig] = MappingProxyType({})
    """Settings of the encoder by the name of the preset, see `ObservationChoice`."""

    @property
    def mirror(self) -> Mirror | None:
        """Mirror symmetry of the task, None if it has none."""
        return None

    @property
    def motions(self) -> RigidMotions | None:
        """Rigid motions that the task is invariant to, None if it has none."""
        return None

    @property
    def public_demos(self) -> PublicDemos | None:
        """Demonstrations that `nsde-policy data download` fetches, None if there are none."""
        return None

    def presets(self, method: str) -> Mapping[str, Preset]:
        """Return a method's presets; a task may override or add some."""
        return get_method(method).presets

    def adapt(self, preset: Preset) -> Preset:
        """Return what `auto` chose, changed by what is known about the task; by default unchanged."""
        return preset

    def without_observations(self, env_kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return keyword arguments of the environment, except those that choose what is observed.

        Policies with different observations are compared on the same seeds, and trained on one store.
        """
        choices = self.observations.values()
        observed = {name for choice in choices for name in (*choice.env_kwargs, *choice.recorded_with)}
        return {name: value for name, value in env_kwargs.items() if name not in observed}
