"""Flags of LeRobot, diffusion_policy and robomimic, and what they are called here."""

from collections.abc import Sequence
from dataclasses import fields

from nsde_policy.errors import ConfigError

FLAGS = {
    "--epochs": "--steps (of the optimiser)",
    "--num-steps": "--steps",
    "--output-dir": "--out",
    "--demos": "`nsde-policy score RUN --demos STORE`",
    "--dataset": "--demos",
    "--dataset.repo-id": "--demos hf://NAME",
    "--dataset.root": "--demos",
    "--policy.type": "--policy",
    "--policy.path": "a run directory, as in `nsde-policy eval RUN`; `train` starts with new weights",
    "--policy.device": "--device",
    "--learning-rate": "--lr",
    "--optimizer.lr": "--lr",
    "--batch_size": "--batch-size",
}
"""Flags of other packages and of other commands."""


def refuse_foreign(args: Sequence[str], command: type, name: str) -> None:
    """Raise `ConfigError` for flags of other packages, with all that take their place."""
    own_flags = {field.name for field in fields(command)}
    unknown: list[str] = []
    instead: list[str] = []
    for arg in args:
        flag = arg.partition("=")[0]
        translation = FLAGS.get(flag) or FLAGS.get(flag.replace("_", "-"))
        if translation and flag.lstrip("-").replace("-", "_") not in own_flags:
            unknown.append(f"flag {flag}")
            instead.append(translation)
    if unknown:
        raise ConfigError(f"{name} has no {', no '.join(unknown)}: use {', '.join(instead)}")
