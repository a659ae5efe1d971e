"""Tests for nsde_policy/config.py."""

import dataclasses
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy.config import BaseConfig, TrainConfig, WindowConfig
from nsde_policy.encoders import ENCODERS, get_encoder
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.registry import METHODS, get_method
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import RunDirectory
from tests.golden.behaviour import DATA


def test_missing_settings_take_defaults_and_integers_become_floats():
    assert NeuralSDEConfig.from_dict({"dt": 2}) == NeuralSDEConfig(dt=2.0)


def test_unknown_setting_raises_and_names_the_closest():
    with pytest.raises(ConfigError, match="NetworkConfig has no setting 'widht'; the closest is 'width'"):
        NeuralSDEConfig.from_dict({"network": {"widht": 3}})
    with pytest.raises(ConfigError, match="Sampling has no setting 'alpha'; it has no settings"):
        WindowConfig.from_dict({"sampling": {"alpha": 0.5}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"history": "2"}, "history must be int, got '2'"),
        ({"flow_loss": "squrae"}, "must be one of"),
        ({"network": 3}, "NetworkConfig must be a JSON object, got 3"),
        ({"history": 0}, "history >= 1"),
        ({"noise": 0.0}, "needs noise > 0"),
        ({"denoiser": False}, "the denoiser is not trained"),
        ({"delta": 0.0}, "delta >= 1e-12"),
        ({"dt": math.nan}, "dt > 0"),
    ],
)
def test_values_of_the_wrong_type_and_invalid_combinations_raise(values: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        NeuralSDEConfig.from_dict(values)


def test_settings_of_earlier_versions_are_read():
    assert KeypointConfig.from_dict({"masked_steps": 5}) == KeypointConfig(occlusion_steps=5)
    assert DemoConfig.from_dict({"window_mb": 64}) == DemoConfig()


def test_a_run_of_a_much_earlier_version_is_refused_with_what_to_do(tmp_path: Path):
    record = json.loads((DATA / "run/config.json").read_text())
    record["layout"]["codes"] = record["layout"].pop("image_features")
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"no setting 'codes'.*: train again, or use the version of "):
        RunDirectory(tmp_path).read_record()


def find_unbounded(hint: Any) -> bool:
    """Return whether a type is a number without both bounds, or holds one."""
    if metas := getattr(hint, "__metadata__", ()):
        return sum(getattr(meta, key) is not None for meta in metas for key in ("ge", "gt", "le", "lt")) != 2
    return hint in (int, float) or any(map(find_unbounded, typing.get_args(hint)))


def list_configs(config: BaseConfig) -> Iterator[BaseConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, BaseConfig):
            yield from list_configs(value)


TRAINED = [
    *(get_method(name).config() for name in METHODS.names()),
    *(get_encoder(name).config() for name in ENCODERS.names()),
    DemoConfig(),
    TrainConfig(),
    RunConfig(model=NeuralSDEConfig()),
]


@pytest.mark.parametrize("config", TRAINED, ids=lambda config: type(config).__name__)
def test_every_number_has_bounds(config: BaseConfig):
    for part in list_configs(config):
        hints = typing.get_type_hints(type(part), include_extras=True)
        assert not [name for name, hint in hints.items() if find_unbounded(hint)]
        for name, hint in hints.items():
            if getattr(hint, "__origin__", None) in (int, float):
                with pytest.raises(ConfigError, match=f"need {name} <=? "):
                    dataclasses.replace(part, **{name: 10**40})  # type: ignore[type-var]


def test_numbers_of_numpy_are_accepted():
    assert TrainConfig(learning_rate=np.float32(0.5), steps=np.int64(3)).to_dict()["steps"] == 3
    with pytest.raises(ConfigError, match="need learning_rate > 0"):
        TrainConfig(learning_rate=np.float64(0))


def test_elements_of_tuples_have_bounds():
    with pytest.raises(ConfigError, match="need betas < 1"):
        TrainConfig(betas=(0.9, 2))
    with pytest.raises(ConfigError, match=r"need angles >= 0 .* got \(3, -1\)"):
        DemoConfig(angles=(3, -1))
