"""Flags and methods of LeRobot, diffusion_policy and robomimic, and what they are called here."""

from collections.abc import Sequence
from dataclasses import fields

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS

FLAGS = {
    "--epochs": "--steps (of the optimiser)",
    "--num-steps": "--steps VALUE",
    "--output-dir": "--out VALUE",
    "--demos": "`nsde-policy score RUN --demos VALUE`",
    "--dataset": "--demos VALUE",
    "--dataset.repo-id": "--demos hf://VALUE",
    "--dataset.root": "--demos VALUE",
    "--policy.type": "--policy VALUE",
    "--policy.path": "a run directory, as in `nsde-policy eval RUN`; `train` starts with new weights",
    "--policy.device": "--device VALUE",
    "--learning-rate": "--lr VALUE",
    "--optimizer.lr": "--lr VALUE",
    "--batch_size": "--batch-size VALUE",
}
"""Flags of other packages and of other commands; VALUE stands for what follows them."""
METHOD_NAMES = {
    "act": "regression",
    "bc": "regression",
    "bc_rnn": "lstm_gmm",
    "ddpm": "diffusion",
    "diffusion_policy": "diffusion",
    "dp": "diffusion",
    "flow_matching": "flow",
    "vqbet": "bet",
}
"""The nearest method here by its usual name elsewhere."""


def refuse_foreign(args: Sequence[str], command: type, name: str) -> None:
    """Raise `ConfigError` for flags and methods of other packages, with all that is to be typed here."""
    own_flags = {field.name for field in fields(command)}
    unknown: list[str] = []
    instead: list[str] = []
    for arg, following in zip(args, [*args[1:], "-"], strict=False):
        flag, equals, value = arg.partition("=")
        if not equals and not following.startswith("-"):
            value = following
        translation = FLAGS.get(flag) or FLAGS.get(flag.replace("_", "-"))
        if flag == "--policy" and "preset" in own_flags and value in {*METHOD_NAMES} - {*METHODS.names()}:
            unknown.append(f"method {value}")
            instead.append(f"--policy {METHOD_NAMES[value]} (the nearest method)")
        elif translation and flag.lstrip("-").replace("-", "_") not in own_flags:
            if flag == "--policy.type":
                value = METHOD_NAMES.get(value, value)
            unknown.append(f"flag {flag}")
            instead.append(translation.replace("VALUE", value or "VALUE"))
    if unknown:
        raise ConfigError(f"{name} has no {', no '.join(unknown)}: use {', '.join(instead)}")
