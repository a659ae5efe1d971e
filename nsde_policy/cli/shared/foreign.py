"""Flags and methods of LeRobot, diffusion_policy and robomimic, and what they are called here."""

from collections.abc import Sequence
from dataclasses import fields

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS

FLAGS = {
    "--epochs": "--steps (of the optimiser)",
    "--num-steps": "--steps VALUE",
    "--output-dir": "--out VALUE",
    "--job-name": "--out VALUE",
    "--demos": "`nsde-policy score RUN --demos VALUE`",
    "--dataset": "--demos VALUE",
    "--dataset.repo-id": "--demos hf://VALUE",
    "--dataset.root": "--demos VALUE",
    "--policy.type": "--policy VALUE",
    "--policy.path": "a run directory, as in `nsde-policy eval RUN`; `train` starts with new weights",
    "--policy.device": "--device VALUE",
    "--env.type": "--env ID",
    "--env.task": "--env ID",
    "--eval.n-episodes": "--episodes VALUE",
    "--config": "--preset FILE or flags",
    "--config-name": "--preset FILE or flags",
    "--config-path": "--preset FILE or flags",
    "--learning-rate": "--lr VALUE",
    "--optimizer.lr": "--lr VALUE",
    "--batch_size": "--batch-size VALUE",
}
"""Flags of other packages and of other commands; VALUE stands for what follows them."""
GROUPS = ("--dataset.", "--policy.", "--env.", "--eval.", "--optimizer.", "--scheduler.", "--wandb.")
"""How flags of other packages begin that have no counterpart here."""
METHOD_NAMES = {
    "act": "regression",
    "bc": "regression",
    "bc_rnn": "lstm_gmm",
    "ddpm": "diffusion",
    "diffusion_policy": "diffusion",
    "dp": "diffusion",
    "dp3": "diffusion",
    "flow_matching": "flow",
    "vq_bet": "bet",
    "vqbet": "bet",
}
"""The nearest method here by its usual name elsewhere."""
OTHER_METHODS = ("gr00t", "groot", "octo", "openvla", "pi0", "pi05", "pi0_fast", "sac", "smolvla", "tdmpc")
"""Methods elsewhere that no method here is near to: pretrained ones, and those that learn from rewards."""


def refuse_foreign(args: Sequence[str], command: type, name: str) -> None:
    """Raise `ConfigError` for flags and methods of other packages, with all that is to be typed here."""
    own_flags = {field.name for field in fields(command)}
    unknown: list[str] = []
    instead: list[str] = []
    for arg, following in zip(args, [*args[1:], "-"], strict=False):
        flag, equals, value = arg.partition("=")
        if not equals and not following.startswith("-"):
            value = following
        if flag == "--policy" and "preset" in own_flags and (method := _translate_method(value)):
            unknown.append(f"method {value}")
            instead.append(method)
        elif flag.lstrip("-").replace("-", "_") not in own_flags and (other := _translate_flag(flag, value)):
            unknown.append(f"flag {flag}")
            instead.append(other)
    if unknown:
        raise ConfigError(f"{name} has no {', no '.join(unknown)}: use {', '.join(dict.fromkeys(instead))}")


def _translate_flag(flag: str, value: str) -> str | None:
    """Return what is to be typed in place of a flag of another package; None for other flags."""
    translation = FLAGS.get(flag) or FLAGS.get(flag.replace("_", "-"))
    if flag == "--policy.type" and (method := _translate_method(value)):
        return method
    if translation:
        return translation.replace("VALUE", value or "VALUE")
    return f"nothing for {flag}" if flag.startswith(GROUPS) else None


def _translate_method(value: str) -> str | None:
    """Return the flag for a method of another package, or for one of ours in other letters; else None."""
    if value in METHODS.names():
        return None
    name = value.lower().replace("-", "_")
    if name in OTHER_METHODS:
        return f"--policy with one of {', '.join(METHODS.names())}"
    if name in METHODS.names():
        return f"--policy {name}"
    return f"--policy {METHOD_NAMES[name]} (the nearest method)" if name in METHOD_NAMES else None
