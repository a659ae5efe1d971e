"""Tests that the package does what the golden files record; `make.py` says when to write them again.

Weights, actions and evaluated episodes must be the same to the last bit on machines that round as the
recorded machine did. Elsewhere, weights and actions may differ by rounding. Contacts amplify rounding, so
elsewhere only the mean scores of evaluated episodes are compared, with a wide tolerance.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsde_policy import Policy
from nsde_policy.deploy.runtime import RuntimePolicy
from tests.golden import behaviour
from tests.golden.behaviour import DATA
from tests.golden.sessions import SCRIPTS, run_script

ROUNDING = 1e-4
"""Relative difference that other arithmetic may make, also relative to the largest value."""


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def is_exact() -> bool:
    """Return whether this machine rounds as the recorded one did."""
    return read("machine")["arithmetic"] == behaviour.hash_arithmetic()


def assert_same(found: Any, expected: Any, *, exact: bool) -> None:
    """Compare numbers: bit by bit, or up to rounding."""
    found, expected = np.asarray(found), np.asarray(expected)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING * abs(expected).max())


def assert_contains(found: Any, expected: Any) -> None:
    """Compare JSON values; objects may have new names."""
    if isinstance(expected, dict):
        assert {*expected} <= {*found}
        for name, value in expected.items():
            assert_contains(found[name], value)
    else:
        assert found == expected


def test_training_gives_the_same_weights(tmp_path: Path, is_exact: bool):
    found = behaviour.read_weights(behaviour.train(tmp_path / "run"))
    expected = behaviour.read_weights(DATA / "run")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert_same(found[name].double(), weight.double(), exact=is_exact)


def test_training_from_camera_frames_gives_the_same_policy(tmp_path: Path, is_exact: bool):
    run = behaviour.train_camera(tmp_path / "run")
    found, expected = behaviour.read_weights(run), behaviour.read_weights(DATA / "camera_run")
    added = {name for name in found if name.startswith("encoder/visibility.safetensors")}
    assert found.keys() - added == expected.keys()
    if is_exact:  # Adam turns rounding into whole steps of biases that a normalisation cancels
        for name, weight in expected.items():
            assert_same(found[name].double(), weight.double(), exact=True)
    assert_same(behaviour.act(run), read("actions")["camera_run"], exact=is_exact)


@pytest.mark.parametrize("name", ["state", "pixels", "camera_run"])
def test_policies_act_the_same(name: str, is_exact: bool):
    run = behaviour.SHIPPED.get(name, DATA / name)
    exact = is_exact and name != "pixels"  # recorded on another machine
    assert_same(behaviour.act(run), read("actions")[name], exact=exact)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_session_sends_the_same_commands_under_faults(name: str):
    found, expected = run_script(SCRIPTS[name], Policy.from_pretrained(DATA / "run")), read("sessions")[name]
    assert [step[1:] for step in found] == [step[1:] for step in expected]
    for step, recorded in zip(found, expected, strict=True):
        assert (
            step[0] == recorded[0] if len(recorded) == 1 else step[0] == pytest.approx(recorded[0], rel=1e-7)
        )


def test_a_run_and_its_exported_graph_plan_the_same(is_exact: bool):
    expected = read("plans")
    assert_same(behaviour.plan(Policy.from_pretrained(DATA / "run")), expected["torch"], exact=is_exact)
    assert_same(behaviour.plan(RuntimePolicy.load(DATA / "policy.onnx")), expected["onnx"], exact=False)


@pytest.mark.slow
def test_a_new_export_agrees_with_torch(tmp_path: Path, onnx_operators: None):
    run = behaviour.remove_noise(DATA / "run", tmp_path / "run")
    graph = behaviour.export(run, tmp_path / "policy.onnx")
    assert_same(behaviour.plan(graph), behaviour.plan(Policy.from_pretrained(run)), exact=False)


@pytest.mark.slow
def test_ten_seeds_evaluate_the_same(tmp_path: Path, is_exact: bool):
    found, expected = behaviour.evaluate(tmp_path / "evaluation.json"), read("evaluation")
    if is_exact:
        assert_contains(found, expected)
    assert [episode["seed"] for episode in found["episodes"]] == list(range(100_000, 100_010))
    for name in ("mean_max_reward", "success_rate", "final_coverage"):
        assert found[name]["value"] == pytest.approx(expected[name]["value"], abs=0.2)


def test_recorded_episodes_score_the_same(tmp_path: Path):
    found, expected = behaviour.score(DATA / "run", tmp_path / "score.json"), read("score")
    assert found["episodes"] == expected["episodes"]
    assert found["scored_frames"] == expected["scored_frames"]
    assert found["action_mean"] == pytest.approx(expected["action_mean"])
    for part, estimate in expected["log_prob"].items():
        assert found["log_prob"][part] == pytest.approx(estimate, rel=1e-3)


def test_a_comparison_file_loads_and_is_written_unchanged(tmp_path: Path):
    file = behaviour.compare([], tmp_path, "--from-json", DATA / "comparison.json")
    assert_contains(behaviour.read_stable(file), behaviour.read_stable(DATA / "comparison.json"))
