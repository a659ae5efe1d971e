"""Flags and methods of LeRobot, diffusion_policy and robomimic, and what they are called here."""

from collections.abc import Sequence
from dataclasses import fields

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS

FLAGS = {
    "--epochs": "--steps (of the optimiser)",
    "--num-steps": "--steps",
    "--output-dir": "--out",
    "--job-name": "--out",
    "--demos": "`nsde-policy score RUN --demos STORE`",
    "--dataset": "--demos",
    "--dataset.repo-id": "--demos hf://NAME",
    "--dataset.root": "--demos",
    "--policy.type": "--policy",
    "--policy.path": "a run directory, as in `nsde-policy eval RUN`; `train` starts with new weights",
    "--policy.device": "--device",
    "--env.type": "--env ID",
    "--env.task": "--env ID",
    "--eval.n-episodes": "--episodes",
    "--config-name": "--preset FILE or flags",
    "--config-path": "--preset FILE or flags",
    "--learning-rate": "--lr",
    "--optimizer.lr": "--lr",
    "--batch_size": "--batch-size",
}
"""Flags of other packages and of other commands."""
NEAREST_METHODS = {
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


def refuse_foreign(args: Sequence[str], command: type, name: str) -> None:
    """Raise `ConfigError` for flags and methods of other packages, with all that take their place."""
    own_flags = {field.name for field in fields(command)}
    unknown: list[str] = []
    instead: list[str] = []
    for arg, following in zip(args, [*args, ""][1:], strict=True):
        flag, equals, value = arg.partition("=")
        method = value if equals else following
        if flag in ("--policy", "--policy.type") and "preset" in own_flags and (near := find_nearest(method)):
            unknown.append(f"method {method}")
            instead.append(f"--policy {near}")
            continue
        translation = FLAGS.get(flag) or FLAGS.get(flag.replace("_", "-"))
        if translation and flag.lstrip("-").replace("-", "_") not in own_flags:
            unknown.append(f"flag {flag}")
            instead.append(translation)
    if unknown:
        raise ConfigError(f"{name} has no {', no '.join(unknown)}: use {', '.join(dict.fromkeys(instead))}")


def find_nearest(method: str) -> str | None:
    """Return the method here for one of another package, or for one of ours in other letters; else None."""
    name = method.lower().replace("-", "_")
    nearest = name if name in METHODS.names() else NEAREST_METHODS.get(name)
    return None if nearest == method else nearest
