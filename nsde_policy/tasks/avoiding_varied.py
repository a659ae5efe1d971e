"""Obstacle avoidance from varied starts, with demonstrations of its own."""

from types import MappingProxyType

from nsde_policy.tasks.avoiding import AvoidingBase
from nsde_policy.tasks.registry import register_task


@register_task
class AvoidingVariedTask(AvoidingBase):
    """Obstacle avoidance from starts that the seed draws."""

    name = "avoiding_varied"
    title = "Avoiding, varied starts"
    env_kwargs = MappingProxyType({"start": "varied"})
