"""Tests of plan selection in exported graphs and behind a server."""

import shutil

import numpy as np
import onnx
import pytest
import torch

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.errors import CheckpointError, NsdePolicyError
from nsde_policy.methods.baselines.flow import StreamingFlowConfig, StreamingFlowSampling
from nsde_policy.policy.graphs import BufferedNoise
from tests.helpers.exported_policies import (
    GOAL,
    SMALL,
    build_selecting_policy,
    draw_states,
    make_neural_sde_config,
    sign_graph,
)
from tests.helpers.policy_servers import serve_in_thread

STEPS = 2
NEAR, FAR = draw_states(2), draw_states(2)
NEAR[:, :2] = GOAL[0], GOAL[1] - 2 * np.pi + 0.1  # near the goal on the circle
FAR[:, :2] = GOAL[0], GOAL[1] - 3.0


@pytest.fixture(scope="module")
def exported(tmp_path_factory, onnx_operators):
    out = tmp_path_factory.mktemp("selection") / "policy.onnx"
    files = export_policy(build_selecting_policy(make_neural_sde_config()), out, cases=4)
    assert [file.path.name for file in files] == ["policy.onnx", "policy.select.onnx"]
    return out


def test_graph_selects_the_plan_nearest_to_the_goal(exported):
    policy = build_selecting_policy(make_neural_sde_config())
    assert_equal_plans(policy, Graph.load(exported.with_name("policy.select.onnx")))


def test_graph_of_another_method_selects_a_supported_plan(tmp_path, onnx_operators):
    flow = StreamingFlowConfig(network=SMALL, sampling=StreamingFlowSampling(start=1.0))
    policy = build_selecting_policy(flow, kind="support")
    export_policy(policy, tmp_path / "policy.onnx", cases=4)
    runtime = RuntimePolicy.load(tmp_path / "policy.onnx")
    assert runtime.plan_from(FAR, steps=STEPS, seed=0).candidates.shape == (8, STEPS + 1, 5)
    assert_equal_plans(policy, Graph.load(tmp_path / "policy.select.onnx"))


def assert_equal_plans(policy, graph):
    """Compare plans of a graph and of the policy for the same noise."""
    chosen = set()
    for seed in range(20):
        inputs = graph.make_inputs(draw_states(2, seed=seed), np.random.default_rng(seed))
        states, *noise = (torch.from_numpy(values) for values in inputs.values())
        with torch.no_grad():
            expected = policy._plan_tensors(
                [states[None]],
                BufferedNoise(1, "cpu", noise),
                steps=STEPS,
                sampling=policy.sampling,
                count=policy.candidates,
                with_std=policy.model.reports_std,
            )
        outputs = graph.run(inputs)
        for name, values in expected.items():
            output = outputs["path" if name == "states" else name]
            np.testing.assert_allclose(output, values[0], rtol=1e-3, atol=1e-3)
        ends = expected["candidates"][0, :, 1:, 3:] - expected["actions"]
        chosen.add(int(ends.abs().sum((1, 2)).argmin()))
    assert len(chosen) > 2, "not always the same candidate"


def test_plans_that_do_not_differ_are_not_exported(tmp_path):
    policy = build_selecting_policy(StreamingFlowConfig(network=SMALL))
    with pytest.raises(NsdePolicyError, match="nothing to select: use --sampling with more noise"):
        export_policy(policy, tmp_path / "policy.onnx", cases=1)
    assert not [*tmp_path.iterdir()]


def test_the_goal_decides_which_graph_runs(exported):
    runtime, policy = RuntimePolicy.load(exported), build_selecting_policy(make_neural_sde_config())
    assert runtime.candidates == policy.candidates == 16
    assert runtime.plan_from(NEAR, steps=STEPS, seed=0).candidates.shape == (16, STEPS + 1, 5)
    assert runtime.plan_from(NEAR, steps=1, seed=0).candidates.shape == (16, 2, 5)
    assert runtime.plan_from(FAR, steps=STEPS, seed=0).candidates is None
    assert runtime.plan_from(NEAR, steps=STEPS, seed=0, candidates=15).candidates is None
    assert runtime.plan_from(NEAR, steps=STEPS, seed=0, candidates=16).candidates is not None
    states = np.stack([draw_states(2, seed=seed) for seed in range(200)])
    expected = policy.selector.compares(torch.from_numpy(states)).tolist()
    assert [runtime.record.selection.compares(each[0]) for each in states] == expected
    assert 10 < sum(expected) < 190


def test_a_selected_plan_reports_the_standard_deviation_along_its_own_path():
    policy = build_selecting_policy(make_neural_sde_config())
    plan = policy.plan_from(NEAR, steps=STEPS, seed=0)
    assert plan.candidates is not None
    past, path = (torch.from_numpy(values)[None].float() for values in (NEAR, plan.states))
    std = policy.model.futures_std(past, path, sampling=policy.sampling)[0, :, 3:]
    np.testing.assert_allclose(plan.std, std.detach(), rtol=1e-5)


def test_a_policy_that_selects_nothing_is_exported_as_one_graph(tmp_path, onnx_operators):
    policy = build_selecting_policy(make_neural_sde_config(), chunk=4).use_selection("none")
    (file,) = export_policy(policy, tmp_path / "policy.onnx", cases=1)
    assert file.record.candidates == 1
    assert RuntimePolicy.load(file.path).candidates == 1


def test_missing_or_foreign_files_are_rejected(exported, small_graph, tmp_path):
    shutil.copy(exported, tmp_path)
    select = tmp_path / "policy.select.onnx"
    with pytest.raises(CheckpointError, match=r"no .*policy.select.onnx: copy it to the folder"):
        RuntimePolicy.load(tmp_path / "policy.onnx")
    original = exported.with_name("policy.select.onnx")
    model = onnx.load(original)
    forged = sign_graph(model, lambda record: record.update(fingerprint="0" * 64))
    for content in (exported.read_bytes(), small_graph.read_bytes(), forged):
        select.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"does not belong to policy.onnx; export both again"):
            RuntimePolicy.load(tmp_path / "policy.onnx")
    with pytest.raises(CheckpointError, match=r"compares plans of a policy; load the policy, NAME.onnx"):
        RuntimePolicy.load(original)


def test_a_server_sends_the_candidates():
    policy = build_selecting_policy(make_neural_sde_config())
    expected = policy.plan_from(NEAR, steps=STEPS, seed=3)
    with (
        serve_in_thread(policy, calibration=policy.calibration) as server,
        RemotePolicy.connect(server.url, timeout_s=20, deadline_s=5) as remote,
    ):
        near, far = (remote.plan_from(states, steps=STEPS, seed=3) for states in (NEAR, FAR))
    assert expected.candidates is not None
    assert all(np.array_equal(*parts) for parts in zip(near, expected, strict=True))
    assert far.candidates is None
