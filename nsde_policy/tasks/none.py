"""Any demonstrations: no environment, no symmetry, nothing assumed."""

from nsde_policy.tasks.base import Task
from nsde_policy.tasks.registry import register_task


@register_task
class NoTask(Task):
    """A robot of your own: everything is taken from the demonstrations."""

    name = "none"
