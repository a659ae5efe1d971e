"""Which methods are compared on a task, and their trainings."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunRecord
from nsde_policy.tasks import get_task
from nsde_policy.training.progress import train

SUITES: dict[str, tuple[tuple[str, str], ...]] = {
    "pusht": (*((method, "default") for method in METHODS.names()), ("diffusion", "transformer_pusht"))
}
"""Methods and presets by task."""
RESAMPLED: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("diffusion", "default"): {"DDIM-10": ("scheduler=ddim", "steps=10")}
}
"""Other ways to sample a trained method, played as well: what is added to its name, and changes to make."""


def members(suite: str, preset: str = "default") -> tuple[tuple[str, str], ...]:
    """Methods and presets of a suite; with another preset, every method at that."""
    if suite not in SUITES:
        raise ConfigError(f"no suite {suite!r}; there are: {', '.join(SUITES)}")
    if preset == "default":
        return SUITES[suite]
    return tuple(dict.fromkeys((method, preset) for method, _ in SUITES[suite]))


def train_suite(
    suite: str, out: Path, *, preset: str, seeds: range, demos: Path | None, device: str
) -> Iterator[tuple[tuple[str, str], Path]]:
    """Train what is not trained yet into OUT/METHOD-PRESET-SEED; what was interrupted goes on."""
    for method, name in members(suite, preset):
        for seed in seeds:
            run = train(
                demos,
                get_task(suite).preset(name, method),
                out / f"{method}-{name}-{seed}",
                task=suite,
                seed=seed,
                device=device,
                resume=True,
                eval_every=0,
                tensorboard=False,
            )
            yield (method, name), run.path


def preset_of(record: RunRecord) -> str:
    """The preset a run was trained with, on however many demonstrations; empty for settings of its own."""
    task, method = get_task(record.task), record.config.method
    names = task.presets(method)
    settings = less_demonstrations(record.config)
    return next((name for name in names if task.preset(name, method) == settings), "")


def less_demonstrations(config: RunConfig) -> RunConfig:
    """The same settings, whatever the number of demonstrations."""
    return replace(config, demos=replace(config.demos, episodes=0))
