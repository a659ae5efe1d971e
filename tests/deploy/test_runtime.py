"""Tests for deploy/runtime: small_graph policies without torch, and rejection of hostile files."""

import pickle

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import NO_CHECKSUM, add_checksum
from nsde_policy.errors import CheckpointError, ConfigError, PlanError
from tests.helpers.exported_policies import draw_states, sign_graph


def test_plan_is_reproducible_with_a_seed(small_graph):
    policy, states = RuntimePolicy.load(small_graph), draw_states(2)
    plan = policy.plan_from(states, steps=4, seed=7)
    shorter, other = (policy.plan_from(states, steps=3, seed=seed) for seed in (7, 8))
    assert plan.actions.shape == (4, 2), "not overwritten by the next one"
    assert np.array_equal(plan.actions[:3], shorter.actions)
    assert not np.array_equal(plan.actions[:3], other.actions)
    assert np.array_equal(plan.states[1:, 3:], plan.actions)
    assert np.array_equal(plan.states[0], states[0].astype(np.float64))
    with pytest.raises(ConfigError, match=r"need steps from 1 to 4 .* got 5; export more --steps"):
        policy.plan_from(states, steps=5, seed=0)


def test_plan_that_is_not_finite_is_an_error(small_graph, monkeypatch):
    policy = RuntimePolicy.load(small_graph)
    outputs = {name: np.full(shape, np.nan) for name, shape in policy.record.outputs.items()}
    monkeypatch.setattr(policy._graph, "run", lambda inputs: outputs)
    with pytest.raises(PlanError, match="planned actions are not finite"):
        policy.plan_from(draw_states(2), steps=4, seed=0)


# Hostile files


@pytest.fixture
def model(small_graph) -> onnx.ModelProto:
    return onnx.load(small_graph)


def assert_rejected(content: bytes, match: str | None = None) -> None:
    with pytest.raises(CheckpointError, match=match):
        Graph(content)


@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_truncated_or_changed_file_is_rejected(small_graph, at, bits):
    content = bytearray(small_graph.read_bytes())
    if not bits:
        assert_rejected(bytes(content[: int(at * len(content))]))
        return
    content[int(at * len(content))] ^= bits
    assert_rejected(bytes(content))


def test_other_files_are_rejected():
    noise = (np.random.default_rng(0).bytes(size) for size in (0, 1, 10, 100_000))
    for content in (*noise, pickle.dumps(print), b"PK\x03\x04" + bytes(100)):
        assert_rejected(content)


def test_graph_that_refers_to_another_file_is_rejected(model):
    Graph(sign_graph(onnx.ModelProto.FromString(model.SerializeToString())))  # unchanged, it loads
    weight = next(each for each in model.graph.initializer if "trunk.layers.1.weight" in each.name)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../../etc/passwd")
    assert_rejected(sign_graph(model), "onnxruntime cannot load the graph")


def test_file_without_record_or_with_a_deeply_nested_one_is_rejected(model):
    model.metadata_props[0].value = "[" * 100_000 + '"sha256": "' + NO_CHECKSUM + '"'
    assert_rejected(add_checksum(model.SerializeToString()), "metadata is invalid")
    del model.metadata_props[:]
    assert_rejected(model.SerializeToString(), "no graph of format 3, or it is damaged; write it with")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda r: r.update(format=2), "format 2, this version reads 3; export it again"),
        (lambda r: r["calibration"].update(step=[1.0], acceleration=[1.0]), "belongs to another run"),
        (lambda r: r["calibration"].update(threshold=float("nan")), "not valid JSON"),
        (lambda r: r.update(steps=3), "metadata says"),
        (lambda r: r["spec"].update(obs_dim=4), "low must hold 6"),
        (lambda r: r["spec"].update(surprise=1), "no setting 'surprise'"),
        (lambda r: r["inputs"][1].update(shape=[10**6, 10**6]), "metadata says"),
        (lambda r: r.clear(), "no graph of format 3"),
    ],
)
def test_invalid_record_is_rejected(model, change, match):
    assert_rejected(sign_graph(model, change), match)
