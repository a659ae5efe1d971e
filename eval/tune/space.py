"""Settings that a search may change, and the range of each."""

import typing
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from nsde_policy.run_config import RunConfig

Values = Mapping[str, float]
"""Settings by their path in a `RunConfig`, such as "model.noise"."""
Space = dict[str, tuple[float, BaseDistribution]]
"""Starting value and range of settings, by their paths."""
FACTORS, LONGEST_CHUNK = (0.5, 1, 2), 16
"""Factors on whole numbers; chunks up to this one are tried, or up to twice the starting one."""


def make_sampling_space(config: RunConfig) -> Space:
    """Return the chunk, and the settings of sampling that are not whole numbers.

    Whole numbers, such as solver steps, choose the cost of a plan, which a score does not show.
    """
    space = {}
    for name, hint in typing.get_type_hints(type(config.model.sampling), include_extras=True).items():
        base, *bounds = typing.get_args(hint) or (hint,)
        if base is float:
            now = getattr(config.model.sampling, name)
            high = min([max(2.0, 2 * now), *(bound.le for bound in bounds if bound.le is not None)])
            space[f"model.sampling.{name}"] = now, FloatDistribution(0.0, high)
    chunk = max(LONGEST_CHUNK, 2 * config.chunk)
    longest = min(chunk, config.model.longest_chunk or chunk)
    return {**space, "chunk": (config.chunk, IntDistribution(1, longest, log=True))}


def make_training_space(config: RunConfig) -> Space:
    """Return history, steps and what the method declares as tunable; nothing if it is not trained."""
    history = config.model.history
    space: Space = {"model.history": (history, IntDistribution(1, max(3, history + 1)))}
    for path in ("train.steps", *(f"model.{name}" for name in config.model.tunable)):
        now = attrgetter(path)(config)
        if isinstance(now, int):
            choices = [max(1, round(now * factor)) for factor in FACTORS]
            space[path] = now, CategoricalDistribution(choices)
        elif now > 0:
            space[path] = now, FloatDistribution(now / 4, 4 * now, log=True)
    return space if config.train.steps > 1 else {}


def list_first_trials(space: Space) -> list[Values]:
    """Return the starting values, then the same with the largest sizes."""
    start = {path: value for path, (value, _) in space.items()}
    largest = {path: max(range_.choices) for path, (_, range_) in space.items() if hasattr(range_, "choices")}
    return [start, {**start, **largest}] if largest else [start]


def apply_values(config: Any, values: Values) -> Any:
    """Return settings, some changed by their path; raise `ConfigError` if they do not fit together."""
    for path, value in values.items():
        name, _, rest = path.partition(".")
        config = replace(
            config, **{name: apply_values(getattr(config, name), {rest: value}) if rest else value}
        )
    return config


def format_values(values: Values) -> str:
    """Return settings in one line: "noise 0.7, history 2"."""
    return ", ".join(f"{path.rpartition('.')[2]} {value:.4g}" for path, value in values.items())
