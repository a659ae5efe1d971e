"""Tests for exports of policies with cameras: encoder and chunk as two graphs, loaded as one policy."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.export.encoder import trace_encoder
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import EncoderGraph
from nsde_policy.encoders.encoder_model import VisibilityHead
from nsde_policy.errors import CheckpointError, NsdePolicyError
from nsde_policy.policy.policy import Policy
from tests.helpers.exported_policies import build_camera_policy, observe_robot


@pytest.fixture(scope="module")
def policy() -> Policy:
    made = build_camera_policy("top", "wrist", anchors=2, level=True)
    made.encoder.visibility = VisibilityHead(2 * 6 * 8)
    return made


@pytest.fixture(scope="module")
def exported(policy: Policy, tmp_path_factory: pytest.TempPathFactory, onnx_operators: None) -> Path:
    out = tmp_path_factory.mktemp("cameras") / "policy.onnx"
    files = export_policy(policy, out, cases=4)
    assert [file.path.name for file in files] == ["policy.onnx", "policy.encoder.onnx"]
    assert "features of 2 cameras" in files[1].as_text()
    return out


@pytest.mark.slow
def test_shift_of_two_cameras_is_undone_as_in_the_policy(
    policy: Policy, exported: Path, monkeypatch: pytest.MonkeyPatch
):
    graph = EncoderGraph.load(exported.with_name("policy.encoder.onnx"))
    run, runs, features = graph.run, list[int](), []
    monkeypatch.setattr(graph, "run", lambda inputs: runs.append(1) or run(inputs))
    for seed in range(20):
        state, *frames = observe_robot(policy, seed).values()
        found, visible = graph.encode(state, frames)
        features.append(found)
        expected = policy.encode_frames(state[None], [frame[None] for frame in frames])
        np.testing.assert_allclose(found, expected[0][0], rtol=0, atol=5e-5)
        np.testing.assert_allclose(visible, expected[1], rtol=0, atol=5e-5)
        assert 0 <= visible <= 1
    assert np.ptp(features, axis=0).max() > 0.01, "features do not depend on the frames"
    assert 22 <= len(runs) <= 38, "the network looks twice at a shifted picture only"


def test_runtime_plans_from_frames_as_the_policy(policy: Policy, exported: Path):
    runtime = RuntimePolicy.load(exported)
    rows = [observe_robot(policy, seed) for seed in range(3)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.testing.assert_allclose(runtime.encode(batch), policy.encode(batch), rtol=0, atol=1e-5)
    for row in rows:
        np.testing.assert_allclose(runtime.select_action(row), policy.select_action(row), rtol=0, atol=1e-5)


def test_outputs_of_another_encoder_fail_the_parity_check(exported: Path):
    other = build_camera_policy("top", "wrist", anchors=2)
    other.encoder.visibility = VisibilityHead(2 * 6 * 8)
    graph = EncoderGraph.load(exported.with_name("policy.encoder.onnx"))
    with pytest.raises(
        NsdePolicyError, match="the graph of features of 2 cameras differs from the policy by"
    ):
        trace_encoder(other.encoder, other.spec).check_parity(graph, cases=4)


# Hostile and incomplete files


def test_missing_or_damaged_encoder_is_rejected(exported: Path, tmp_path: Path):
    folder = Path(shutil.copytree(exported.parent, tmp_path / "copy"))
    path, chunk = folder / "policy.encoder.onnx", folder / "policy.onnx"
    content = path.read_bytes()
    with pytest.raises(CheckpointError, match="it is the encoder of a policy; load the policy"):
        RuntimePolicy.load(path)
    rng = np.random.default_rng(0)
    for _ in range(20):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"policy\.encoder\.onnx"):
            RuntimePolicy.load(chunk)
    path.write_bytes(chunk.read_bytes())  # a plan instead of an encoder
    with pytest.raises(CheckpointError, match="its metadata is invalid"):
        RuntimePolicy.load(chunk)
    path.unlink()
    with pytest.raises(
        CheckpointError, match=r"no .*policy\.encoder\.onnx: copy it to the folder of policy\.onnx"
    ):
        RuntimePolicy.load(chunk)
