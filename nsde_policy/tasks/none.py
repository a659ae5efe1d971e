"""Any demonstrations at all: no environment, no symmetry, nothing assumed."""

from collections.abc import Mapping

from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import AbstractTask
from nsde_policy.tasks.pusht import DEFAULT, FAST, PAPER, replaced


class GenericTask(AbstractTask):
    """A robot of your own: the presets' networks and training, on whatever the store holds."""

    name = "none"
    env_id = None
    rate_hz = None
    mirror = None

    @property
    def presets(self) -> Mapping[str, RunConfig]:
        """The settings of Push-T, less what belongs to Push-T."""
        own = {"angles": (), "first_action_from": (), "mirror": False}
        return {
            name: replaced(config, demos=own)
            for name, config in {"default": DEFAULT, "paper": PAPER, "fast": FAST}.items()
        }
