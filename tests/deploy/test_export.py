"""Tests for deploy/export: a graph that differs from its policy is not written."""

from pathlib import Path

import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.export.plan_module import trace_plan
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.errors import CheckpointError, ConfigError, NsdePolicyError
from nsde_policy.methods.baselines.diffusion import DiffusionConfig
from nsde_policy.methods.baselines.regression import RegressionConfig
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.run_directory import RunDirectory
from tests.helpers.exported_policies import DDIM, LAYOUT, SMALL, build_policy, make_neural_sde_config


def test_export_traces_the_solver_if_the_equation_cannot_be_folded(tmp_path):
    network = NetworkConfig(width=16, depth=2, kind="separate")
    sampling = SamplingConfig(substeps=2)
    policy = build_policy(make_neural_sde_config(network=network, sampling=sampling), chunk=1)
    (whole,) = export_policy(policy, tmp_path / "policy.onnx", cases=5)
    assert whole.difference < 1e-5
    assert whole.record.inputs[1].shape == (2, LAYOUT.dim)


def test_exported_file_names_no_path_of_this_machine(small_graph):
    content = small_graph.read_bytes()
    assert b"/nsde_policy/" not in content
    assert b".py" not in content


def test_outputs_of_another_policy_fail_the_parity_check(small_graph):
    asked = trace_plan(build_policy(make_neural_sde_config(), seed=1), steps=4)
    with pytest.raises(NsdePolicyError, match="the graph of 4 actions differs from the policy by"):
        asked.check_parity(Graph.load(small_graph), cases=5)


def test_failed_export_writes_no_file_and_keeps_an_earlier_one(tmp_path):
    policy, out = build_policy(RegressionConfig(network=SMALL)), tmp_path / "policy.onnx"
    with torch.no_grad():
        policy.model.network.output.bias.fill_(3e38)  # overflows once it is scaled to the actions' range
    out.write_bytes(b"an earlier export")
    with pytest.raises((NsdePolicyError, CheckpointError)):
        export_policy(policy, out, cases=3)
    assert out.read_bytes() == b"an earlier export"
    assert [*tmp_path.iterdir()] == [out]


def test_export_rejects_unsupported_settings(tmp_path):
    out = tmp_path / "policy.onnx"
    ddpm = build_policy(DiffusionConfig(unet=DDIM.unet))
    with pytest.raises(NsdePolicyError, match=r"100 network calls.*scheduler=ddim"):
        export_policy(ddpm, out)
    with pytest.raises(ConfigError, match="from 1 to 8 actions"):
        export_policy(build_policy(RegressionConfig(network=SMALL)), out, steps=9)
    for name in ("policy.txt", "policy", "policy.pt2"):
        with pytest.raises(ConfigError, match=f"must be NAME.onnx, got .*/{name}$"):
            export_policy(build_policy(RegressionConfig(network=SMALL)), tmp_path / name)
    with pytest.raises(ConfigError, match="at least 1 actions, got steps 0"):
        export_policy(build_policy(make_neural_sde_config()), out, steps=0)
    with pytest.raises(NsdePolicyError, match="folder"):
        export_policy(build_policy(make_neural_sde_config()), tmp_path)
    assert not list(tmp_path.iterdir())


def test_export_command_writes_into_the_run_directory_and_prints_the_parity(tmp_path: Path, capsys):
    policy, run = build_policy(RegressionConfig(network=SMALL)), RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.save_record(policy.record)
    run.save_weights(policy.model.state_dict())
    assert main(["export", str(run.path), "--cases", "5"]) == 0
    assert "ranges in 5 cases" in capsys.readouterr().out
    assert (run.path / "policy.onnx").is_file()
    assert main(["export", str(tmp_path / "nowhere")]) == 2
    assert "nsde-policy: " in capsys.readouterr().err
