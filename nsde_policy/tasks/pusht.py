"""Push-T: its layout, its mirror symmetry, and the settings that were tuned for it (seeds 200000 and up)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsde_policy.config import NetworkConfig, NeuralSDEConfig, SamplingConfig, TrainConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import AbstractTask

if TYPE_CHECKING:
    from nsde_policy.data import Mirror

_MODEL = NeuralSDEConfig(
    history=2,
    noise=0.7,
    network=NetworkConfig(kind="shared", width=256, depth=6, dropout=0.1),
    sampling=SamplingConfig(alpha=1.0, diffusion=0.5),
)

DEFAULT = RunConfig(
    demos=DemoConfig(angles=(4,), first_action_from=(0, 1), final_action_weight=10.0, mirror=True),
    model=_MODEL,
    train=TrainConfig(steps=100_000, batch_size=1024),
)
"""Our best."""

PAPER = RunConfig(
    demos=DemoConfig(angles=(4,), first_action_from=(0, 1), final_action_weight=0.0),
    model=NeuralSDEConfig(
        history=1,
        flow_loss="log",
        diffusion_loss="squared",
        interpolation="uniform",
        network=NetworkConfig(
            kind="separate", width=1024, depth=2, dropout=0.0, layer_norm=False, activation="relu"
        ),
        sampling=SamplingConfig(alpha=1.0, diffusion=1.0),
    ),
    train=TrainConfig(steps=30_000, batch_size=1024),
)
"""The paper's own design, as far as it says: a Markov state of observation and action, separate two-layer
networks, the log loss, interpolation, noise, a denoiser.

Deviation: "the current action" is what the policy is asked for, so the state holds the command in force, the
previous one. The blur is relative to each dimension's increments, not one σ for all, and δ is 0.1 in their
squared units: the paper states neither σ nor δ for this task."""

FAST = replace(
    DEFAULT,
    model=replace(_MODEL, network=NetworkConfig(kind="shared", width=256, depth=4, dropout=0.1)),
    train=TrainConfig(steps=30_000, batch_size=256),
)
"""The best a two-core CPU reaches in five minutes."""

_SIDE = 512.0


def replaced(config: RunConfig, **parts: dict[str, Any]) -> RunConfig:
    """The same settings with some fields of some parts changed: `replaced(config, train={"steps": 5})`."""
    return replace(config, **{name: replace(getattr(config, name), **new) for name, new in parts.items()})


class PushTTask(AbstractTask):
    """Push a T-shaped block onto its outline."""

    name = "pusht"
    env_id = "nsde_policy/PushT-v0"
    rate_hz = 10.0

    @property
    def presets(self) -> Mapping[str, RunConfig]:
        """`default`, `paper`, `fast`."""
        return {"default": DEFAULT, "paper": PAPER, "fast": FAST}

    @property
    def mirror(self) -> "Mirror":
        """(x, y) ↦ (512 − y, 512 − x): table and goal are symmetric about the diagonal of the goal's stem.

        The walls are 0.5 px off that symmetry; nothing else is.
        """
        from nsde_policy.data import Mirror

        swap = ((1, -1.0, _SIDE), (0, -1.0, _SIDE))
        block = ((3, -1.0, _SIDE), (2, -1.0, _SIDE), (4, -1.0, math.pi / 2))
        return Mirror(obs=swap + block, act=swap)
