"""What flags and methods of other packages are called here."""

from collections.abc import Sequence
from dataclasses import fields

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS

FLAGS = {
    "--epochs": "--steps (of the optimiser)",
    "--num-steps": "--steps VALUE",
    "--max-steps": "--steps VALUE",
    "--output-dir": "--out VALUE",
    "--demos": "`nsde-policy score RUN --demos VALUE`",
    "--dataset": "--demos VALUE",
    "--data": "--demos VALUE",
    "--dataset.repo-id": "--demos hf://VALUE",
    "--dataset.root": "--demos VALUE",
    "--policy.type": "--policy VALUE",
    "--policy.path": "a run directory, as in `nsde-policy eval RUN`; `train` starts with new weights",
    "--policy.device": "--device VALUE",
    "--policy.n-obs-steps": "--model.history VALUE",
    "--policy.n-action-steps": "--chunk VALUE",
    "--learning-rate": "--lr VALUE",
    "--optimizer.lr": "--lr VALUE",
    "--batch_size": "--batch-size VALUE",
    "--hidden-dim": "--width VALUE",
}
"""Flags of other packages and of other commands; VALUE stands for what follows them."""
METHOD_NAMES = {
    "act": ("regression", "a whole chunk of actions from one network call"),
    "bc": ("regression", "a square loss"),
    "bc_rnn": ("lstm_gmm", "a recurrent mixture policy"),
    "bc_transformer": ("bet", "a transformer"),
    "ddpm": ("diffusion", "Diffusion Policy"),
    "diffusion_policy": ("diffusion", "Diffusion Policy"),
    "dp": ("diffusion", "Diffusion Policy"),
    "flow_matching": ("flow", "Streaming Flow Policy"),
    "vqbet": ("bet", "Behaviour Transformer"),
}
"""The nearest method here by its usual name elsewhere, and what it is."""


def refuse_foreign(args: Sequence[str], command: type, name: str) -> None:
    """Raise `ConfigError` for flags and methods of other packages, with all that is to be typed here."""
    own = {field.name for field in fields(command)}
    translated = {}
    for i, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if not equals:
            value = "" if args[i + 1 : i + 2] == [] or args[i + 1].startswith("-") else args[i + 1]
        instead = FLAGS.get(flag, FLAGS.get(flag.replace("_", "-")))
        if instead and flag.lstrip("-").replace("-", "_") not in own:
            if instead == "--policy VALUE":
                value = METHOD_NAMES.get(value, (value,))[0]
            translated[flag] = instead.replace(" VALUE", f" {value}" if value else "").replace(
                "//VALUE", f"//{value or 'ORG/NAME'}"
            )
        elif flag == "--policy" and "preset" in own and value in {*METHOD_NAMES} - {*METHODS.names()}:
            method, what = METHOD_NAMES[value]
            raise ConfigError(
                f"{name} has no method {value}; the nearest is --policy {method}, {what}. There are "
                f"{', '.join(METHODS.names())}"
            )
    if translated:
        raise ConfigError(f"{name} has no flag {', '.join(translated)}: use {', '.join(translated.values())}")
