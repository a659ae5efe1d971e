"""Tests that the package does what the golden files record; `make.py` says when to write them again.

Machines round differently, so numbers may differ by `TOLERANCE`. Contacts amplify rounding: of evaluated
episodes, only the mean scores are compared.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy import Policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.eval.compare.result import read_comparison
from tests.golden import behaviour
from tests.golden.behaviour import DATA
from tests.golden.sessions import SCRIPTS, run_script

TOLERANCE = 1e-4
"""Largest difference, relative to the number itself or to the largest one next to it."""


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def assert_close(result: Any, expected: Any) -> None:
    """Compare nested numbers up to the tolerance, and everything else exactly; objects may have new names."""
    if isinstance(expected, dict):
        assert {*expected} <= {*result}
        for name, value in expected.items():
            assert_close(result[name], value)
    elif isinstance(expected, list) and expected and isinstance(expected[0], dict):
        for one, two in zip(result, expected, strict=True):
            assert_close(one, two)
    elif isinstance(expected, str) or expected is None:
        assert result == expected
    else:
        expected = np.asarray(expected)
        atol = TOLERANCE * np.abs(expected).max(initial=0)
        np.testing.assert_allclose(result, expected, rtol=TOLERANCE, atol=atol)


def test_training_gives_the_same_weights(tmp_path: Path):
    weights = behaviour.read_weights(behaviour.train(tmp_path / "run"))
    expected = behaviour.read_weights(DATA / "run")
    assert weights.keys() == expected.keys()
    assert_close(weights, expected)


def test_training_from_camera_frames_gives_the_same_policy(tmp_path: Path):
    run = behaviour.train_camera(tmp_path / "run")
    assert behaviour.read_weights(run).keys() == behaviour.read_weights(DATA / "camera_run").keys()
    assert_close(behaviour.act(run), read("actions")["camera_run"])


@pytest.mark.parametrize("name", ["state", "pixels", "camera_run"])
def test_policies_act_the_same(name: str):
    assert_close(behaviour.act(behaviour.SHIPPED.get(name, DATA / name)), read("actions")[name])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_session_sends_the_same_commands_under_faults(name: str):
    steps, expected = run_script(SCRIPTS[name], Policy.from_pretrained(DATA / "run")), read("sessions")[name]
    assert [step[1:] for step in steps] == [step[1:] for step in expected]
    for step, recorded in zip(steps, expected, strict=True):
        assert_close(step[0], recorded[0])


def test_a_run_and_its_exported_graph_plan_the_same():
    expected = read("plans")
    assert_close(behaviour.plan(Policy.from_pretrained(DATA / "run")), expected["torch"])
    assert_close(behaviour.plan(RuntimePolicy.load(DATA / "policy.onnx")), expected["onnx"])


@pytest.mark.slow
def test_a_new_export_agrees_with_torch(tmp_path: Path, onnx_operators: None):
    run = behaviour.remove_noise(DATA / "run", tmp_path / "run")
    graph = behaviour.export(run, tmp_path / "policy.onnx")
    assert_close(behaviour.plan(graph), behaviour.plan(Policy.from_pretrained(run)))


@pytest.mark.slow
def test_twenty_seeds_score_the_same(tmp_path: Path):
    assert behaviour.evaluate(tmp_path / "scores.json") == pytest.approx(read("evaluation"), abs=0.1)


def test_recorded_episodes_score_the_same(tmp_path: Path):
    assert_close(behaviour.score(DATA / "run", tmp_path / "score.json"), read("score"))


def test_a_comparison_file_of_version_0_2_loads_and_keeps_its_figures(tmp_path: Path):
    file = tmp_path / "comparison.json"
    file.write_text(read_comparison(DATA / "comparison.json").to_json())
    expected = behaviour.read_stable(DATA / "comparison.json")
    for entry in expected["entries"]:
        del entry["preset"]  # which later versions do not write
    assert_close(behaviour.read_stable(file), expected)
