"""Test that runs of version 0.1 still load: settings, layout, and the names and shapes of weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nsde_policy import Policy

OLD_RUNS = json.loads((Path(__file__).parent / "runs_0_1.json").read_text())
"""Of every method: config.json, and the shapes of model.safetensors, as version 0.1 wrote them."""


@pytest.mark.parametrize("method", sorted(OLD_RUNS))
def test_a_run_of_version_0_1_loads_and_acts(method: str, tmp_path: Path) -> None:
    record = OLD_RUNS[method]
    (tmp_path / "config.json").write_text(json.dumps(record["config"]))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randint(2, shape, generator=generator)
        if "index" in name
        else torch.rand(shape, generator=generator)
        for name, shape in record["weights"].items()
    }
    reference = Policy.from_pretrained().model.state_dict()
    for name in weights:  # buffers of the layout come from config.json in every version
        if name.rpartition(".")[2] in (
            "low",
            "high",
            "increment_std",
            "is_circular",
            "linear_index",
            "circular_index",
        ):
            weights[name] = reference[f"learned.layout.{name.rpartition('.')[2]}"].clone()
    save_file(weights, tmp_path / "model.safetensors")

    policy = Policy.from_pretrained(tmp_path)

    assert policy.spec.method == method
    action = policy.select_action(np.array([235.0, 124.0, 299.6, 145.2, 5.378]))
    assert action.shape == (2,)
    assert np.isfinite(action).all()
