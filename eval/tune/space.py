"""Settings that a search may change, and how Optuna draws them."""

import typing
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import import_optional
from nsde_policy.run_config import RunConfig

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = dict[str, tuple[float, "BaseDistribution"]]
"""Present values and possible ones of settings, by their paths."""
AT_ONCE = 8
"""Most candidates that are tried at the same time, once scores decide what is drawn."""
RANDOM_TRIALS = 2 * AT_ONCE - 1
"""First candidates, which need not wait: with fewer than AT_ONCE scores, Optuna draws at random."""
FACTORS, LONGEST_CHUNK = (0.5, 1, 2), 16
"""Factors on width and steps; chunks up to this one are tried, or up to twice the given one."""


def make_sampling_space(config: RunConfig) -> Space:
    """Return what needs no training: the chunk, and the settings of sampling that are not whole numbers.

    Whole numbers, such as solver steps, choose the cost of a plan, which a score does not show.
    """
    distributions = import_optional("optuna.distributions", "tune")
    space = {}
    for name, hint in typing.get_type_hints(type(config.model.sampling), include_extras=True).items():
        base, *bounds = typing.get_args(hint) or (hint,)
        if base is float:
            now = getattr(config.model.sampling, name)
            high = min([max(2.0, 2 * now), *(each.le for each in bounds if each.le is not None)])
            space[f"model.sampling.{name}"] = now, distributions.FloatDistribution(0.0, high)
    chunk = max(LONGEST_CHUNK, 2 * config.chunk)
    longest = min(chunk, config.model.longest_chunk or chunk)
    return {**space, "chunk": (config.chunk, distributions.IntDistribution(1, longest, log=True))}


def make_training_space(config: RunConfig) -> Space:
    """Return blur, history, width and steps, if the method has them; nothing if it is not trained."""
    distributions = import_optional("optuna.distributions", "tune")
    model, steps = config.model, config.train.steps
    space: Space = {
        "model.history": (model.history, distributions.IntDistribution(1, max(3, model.history + 1)))
    }
    if blur := getattr(model, "noise", 0.0):
        space["model.noise"] = blur, distributions.FloatDistribution(blur / 4, 4 * blur, log=True)
    network = getattr(model, "network", None)
    sizes = {"train.steps": steps} | ({"model.network.width": network.width} if network else {})
    for path, size in sizes.items():
        choices = [max(1, round(size * factor)) for factor in FACTORS]
        space[path] = size, distributions.CategoricalDistribution(choices)
    return space if steps > 1 else {}


def start_study(space: Space, *, seed: int) -> tuple[Any, dict[str, "BaseDistribution"]]:
    """Return a study of Optuna, and what it may draw after the present values and the largest sizes."""
    optuna = import_optional("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=AT_ONCE)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    given = {path: now for path, (now, _) in space.items()}
    distributions = {path: distribution for path, (_, distribution) in space.items()}
    sizes = {path: max(each.choices) for path, each in distributions.items() if hasattr(each, "choices")}
    study.enqueue_trial(given)
    if sizes:
        study.enqueue_trial({**given, **sizes})
    return study, distributions
