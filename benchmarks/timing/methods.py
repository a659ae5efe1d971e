"""Eight actions of every method, with untrained weights of the default size.

"selected" is the --run, or the shipped policy, where it compares plans.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsde_policy.assets import EMBEDDED_DEMOS, SHIPPED_POLICY
from nsde_policy.methods.registry import METHODS
from nsde_policy.policy.loading import build_model
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task_of_run
from nsde_policy.training.dataset import TrainingSet, build_training_data
from nsde_policy.training.demos import find_mirror, load_training_demos
from timing.common import Options
from timing.contenders import Contender, measure_latency

BUDGET_S = 12.0
"""Seconds for each method; slow ones take fewer turns."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "diffusion": {
        "diffusion, DDPM-100": {"scheduler": "ddpm", "steps": 100},
        "diffusion, DDIM-10": {"scheduler": "ddim", "steps": 10},
    }
}


def build_contenders(device: str) -> Iterator[Contender]:
    """Build models of the default preset for the task and the demonstrations of the package."""
    shipped = RunDirectory(SHIPPED_POLICY).read_record()
    task = get_task_of_run(shipped)
    for method in METHODS.load_all():
        record = replace(shipped, config=task.preset("default", method))
        model = build_model(record)
        demos = load_training_demos(record.config.demos, EMBEDDED_DEMOS)
        mirror = find_mirror(record.config.demos, task.name)
        model.prepare(build_training_data(TrainingSet(demos, mirror), record.config))
        own = model.config.sampling
        for name, changes in VARIANTS.get(method, {method: {}}).items():
            sampling = type(own).from_dict({**own.to_dict(), **changes})
            yield Contender(name, Policy(record, model), sampling, device)


def measure_methods(options: Options) -> list[dict[str, Any]]:
    """Time all methods in turns on one thread."""
    contenders = [*build_contenders(options.device)]
    contenders.append(Contender("neural_sde, selected", Policy.from_pretrained(options.run)))
    rounds, budget_s = (3, 0.1) if options.smoke else (options.rounds, BUDGET_S)
    rows = measure_latency(contenders, rounds=rounds, budget_s=budget_s)
    ours = next(row["median_ms"] for row in rows if row["method"] == "neural_sde")
    return [{**row, "ratio": float(f"{row['median_ms'] / ours:.5g}")} for row in rows]
