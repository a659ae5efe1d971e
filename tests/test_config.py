"""Tests for nsde_policy/config.py."""

import dataclasses
import math

import pytest

from nsde_policy.config import NetworkConfig, TrainConfig, WindowConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig


def test_settings_survive_json():
    config = NeuralSDEConfig(
        history=1, network=NetworkConfig(kind="separate", width=64), sampling=SamplingConfig(substeps=4)
    )
    assert NeuralSDEConfig.from_json(config.to_json()) == config
    assert TrainConfig.from_json(TrainConfig(steps=7).to_json()) == TrainConfig(steps=7)
    assert WindowConfig.from_json(WindowConfig(horizon=3).to_json()) == WindowConfig(horizon=3)


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
        ({"denoiser": 1}, "denoiser must be bool, got 1"),
        ({"objective": "jiont"}, "must be one of"),
        ({"network": 3}, "network must be NetworkConfig"),
    ],
)
def test_value_of_the_wrong_type_raises(values: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        NeuralSDEConfig.from_dict(values)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_text_other_than_a_json_object_raises(text: str):
    with pytest.raises(ConfigError, match="JSON"):
        TrainConfig.from_json(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"history": 0}, "history >= 1"),
        ({"noise": 0.0}, "needs noise > 0"),
        ({"denoiser": False}, "the denoiser is not trained"),
        ({"sampling": SamplingConfig(denoiser="learned")}, "needs learned_strength"),
        ({"objective": "joint", "schedule": "sequential"}, "joint objective"),
        ({"schedule": "sequential"}, "needs network.kind = 'separate'"),
        ({"delta": 0.0}, "delta >= 1e-12"),
        ({"dt": math.nan}, "dt > 0"),
    ],
)
def test_invalid_combinations_raise(changes: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        NeuralSDEConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["steps", "batch_size", "learning_rate", "clip"])
def test_zero_training_settings_raise(name: str):
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(TrainConfig(), **{name: 0})
