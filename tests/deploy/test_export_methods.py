"""Tests for exports of every method: noise in, plan out."""

import numpy as np
import onnxruntime
import pytest
import torch

from nsde_policy.deploy.export import export_policy
from nsde_policy.methods.baselines.bet import BehaviourTransformerConfig
from nsde_policy.methods.baselines.flow import StreamingFlowConfig, StreamingFlowSampling
from nsde_policy.methods.baselines.gpi import GPIConfig, GPISampling
from nsde_policy.methods.baselines.ibc import ImplicitBCConfig, ImplicitBCSampling
from nsde_policy.methods.baselines.knn import NearestNeighboursConfig, NearestNeighboursSampling
from nsde_policy.methods.baselines.l1_flow import L1FlowConfig
from nsde_policy.methods.baselines.lstm_gmm import LSTMGMMConfig
from nsde_policy.methods.baselines.mip import MIPConfig
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.policy.graphs import BufferedNoise
from nsde_policy.run_directory import fingerprint
from tests.helpers.exported_policies import DDIM, SMALL, build_policy, draw_states, make_neural_sde_config

pytestmark = pytest.mark.slow

METHODS = {
    "neural_sde": (make_neural_sde_config(), 2),
    "regression": (RegressionConfig(network=SMALL), 4),
    "mip": (MIPConfig(network=SMALL), 4),
    "flow": (StreamingFlowConfig(network=SMALL, sampling=StreamingFlowSampling(start=1.0)), 2),
    "l1_flow": (L1FlowConfig(network=SMALL), 4),
    "diffusion": (DDIM, 4),
    "knn": (NearestNeighboursConfig(sampling=NearestNeighboursSampling(actions="relative")), 4),
    "gpi": (GPIConfig(object_pose=(0, 2, 1), sampling=GPISampling(neighbours=3, attraction=0.5)), 4),
    "lstm_gmm": (LSTMGMMConfig(hidden=16), 1),
    "bet": (BehaviourTransformerConfig(width=12, depth=1, heads=2, bins=5), 1),
    "ibc": (ImplicitBCConfig(width=16, depth=2, sampling=ImplicitBCSampling(samples=32, iterations=2)), 1),
}


@pytest.mark.parametrize("method", METHODS)
def test_onnx_graph_equals_the_plan_of_each_method(method, tmp_path, onnx_operators):
    config, chunk = METHODS[method]
    policy = build_policy(config, chunk=chunk)
    exported = export_policy(policy, tmp_path / "policy.onnx", cases=5)
    record = exported[0].record
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    for seed in range(5):
        states, rng = draw_states(config.history, seed=seed), np.random.default_rng(seed)
        draw = {"normal": rng.standard_normal, "uniform": rng.random}
        noise = [draw[given.kind](given.shape, np.float32) for given in record.inputs[1:]]
        names = [given.name for given in record.inputs]
        answer = session.run(["actions"], dict(zip(names, [states, *noise], strict=True)))[0]
        buffered = BufferedNoise(1, "cpu", [torch.from_numpy(values)[None] for values in noise])
        expected = policy.model.plan(torch.from_numpy(states)[None], steps=chunk, rng=buffered)[0]
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-4)
    assert record.spec.method == method
    assert record.fingerprint == fingerprint(policy.model.state_dict())
