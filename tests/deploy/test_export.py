"""Tests for export: a graph answers as its policy does, or is not there."""

from pathlib import Path

import onnx
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.export.folded import FoldedSDE
from nsde_policy.deploy.export.parity import measure
from nsde_policy.deploy.export.plan_module import Chunk
from nsde_policy.errors import ConfigError, ExportError, GraphError, OutputError
from nsde_policy.methods.diffusion.model import DiffusionConfig
from nsde_policy.methods.ibc import ImplicitBCConfig, ImplicitBCSampling
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.methods.regression import RegressionConfig
from nsde_policy.run_directory import RunDirectory
from tests.helpers.exported_policies import DDIM, LAYOUT, SMALL, STRAIGHT, fresh, neural_sde


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({"history": 1}, LAYOUT),
        ({"history": 3, "dt": 0.1}, LAYOUT),
        ({"history": 2}, STRAIGHT),
        ({"history": 1, "sampling": SamplingConfig(substeps=3, diffusion=0.5)}, LAYOUT),
        ({"sampling": SamplingConfig(denoiser="off")}, LAYOUT),
        ({"network": NetworkConfig(width=16, depth=3, residual=True, activation="silu")}, LAYOUT),
        ({"network": NetworkConfig(width=16, depth=2, layer_norm=False, activation="tanh")}, STRAIGHT),
        ({"noise_kind": "absolute", "noise": 0.05, "variance_floor": 0.3}, LAYOUT),
    ],
)
def test_folding_constants_into_weights_changes_nothing(changes, layout):
    chunk = Chunk(fresh(neural_sde(**changes), layout=layout), steps=6)
    assert isinstance(chunk.fast, FoldedSDE)
    assert_same(chunk)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingConfig(denoiser="cancelling")},
        {"sampling": SamplingConfig(denoiser="learned"), "learned_strength": True},
        {"network": NetworkConfig(width=16, depth=2, kind="separate")},
        {"sampling": SamplingConfig(substeps=2)},
        {"sampling": SamplingConfig(diffusion=0.0)},
    ],
)
def test_what_cannot_be_folded_is_left_as_it_is(changes):
    chunk = Chunk(fresh(neural_sde(**changes)), steps=2)
    assert chunk.fast is chunk.reference


def test_a_neural_sde_that_cannot_be_folded_is_traced_with_its_own_networks(tmp_path):
    network = NetworkConfig(width=16, depth=2, kind="separate")
    sampling = SamplingConfig(denoiser="learned", substeps=2)
    policy = fresh(neural_sde(network=network, sampling=sampling, learned_strength=True), chunk=1)
    (whole,) = export_policy(policy, tmp_path / "policy.onnx", cases=5)
    assert whole.parity.worst < 1e-5
    assert whole.record.inputs[1].shape == (2, LAYOUT.dim)


def assert_same(chunk: Chunk) -> None:
    def answer(inputs):
        out = chunk.fast(*(torch.from_numpy(values) for values in inputs))
        return dict(zip(("actions", "path", "std"), (tensor.numpy() for tensor in out), strict=True))

    assert measure(chunk, answer, n=50).worst < 2e-6


def test_another_policys_answers_fail_the_comparison():
    asked, other = (Chunk(fresh(neural_sde(), seed=seed), steps=2) for seed in (0, 1))

    def answer(inputs):
        out = other.fast(*(torch.from_numpy(values) for values in inputs))
        return dict(zip(("actions", "path", "std"), (tensor.numpy() for tensor in out), strict=True))

    with pytest.raises(ExportError, match="differs from the policy by"):
        measure(asked, answer, n=5)


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_a_graph_that_fails_leaves_no_file_and_an_earlier_one_as_it_was(format, tmp_path):
    policy, out = fresh(RegressionConfig(network=SMALL)), tmp_path / f"policy.{format}"
    with torch.no_grad():
        policy.model.network.output.bias.fill_(3e38)  # overflows once it is scaled to the actions' range
    out.write_bytes(b"an earlier export")
    with pytest.raises((ExportError, GraphError)):
        export_policy(policy, out, format=format, cases=3)
    assert out.read_bytes() == b"an earlier export"
    with pytest.raises((ExportError, GraphError)):
        export_policy(policy, tmp_path / "new" / out.name, format=format, cases=3)
    assert not any((tmp_path / "new").iterdir())


def test_a_first_action_graph_of_another_policy_does_not_stay(tmp_path):
    out = tmp_path / "policy.onnx"
    (tmp_path / "policy.first.onnx").write_bytes(b"of another policy")
    assert len(export_policy(fresh(RegressionConfig(network=SMALL)), out, cases=3)) == 1
    assert not (tmp_path / "policy.first.onnx").exists()


def test_older_operators_are_written_when_asked_for(tmp_path):
    policy = fresh(RegressionConfig(network=SMALL))
    export_policy(policy, tmp_path / "policy.onnx", opset=18, cases=3)
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {entry.version for entry in model.opset_import if entry.domain == ""} == {18}
    assert "Gelu" not in {node.op_type for node in model.graph.node}


def test_what_cannot_be_exported_is_refused(tmp_path):
    out = tmp_path / "policy.onnx"
    ddpm = fresh(DiffusionConfig(unet=DDIM.unet))
    with pytest.raises(ExportError, match=r"100 network calls.*scheduler=ddim"):
        export_policy(ddpm, out)
    langevin = ImplicitBCSampling(inference="langevin", samples=8, iterations=2)
    with pytest.raises(ExportError):
        export_policy(fresh(ImplicitBCConfig(width=8, sampling=langevin), chunk=1), out)
    with pytest.raises(ConfigError, match="from 1 to 8 actions"):
        export_policy(fresh(RegressionConfig(network=SMALL)), out, steps=9)
    for name, format in (("policy.txt", "onnx"), ("policy", "onnx"), ("policy.onnx", "pt2")):
        with pytest.raises(
            ConfigError, match=f"in the format {format} is a file NAME.{format}, got .*/{name}$"
        ):
            export_policy(fresh(RegressionConfig(network=SMALL)), tmp_path / name, format=format)
    with pytest.raises(ConfigError, match="at least 1 actions, 0 were"):
        export_policy(fresh(neural_sde()), out, steps=0)
    with pytest.raises(ConfigError, match="seed >= 0"):
        export_policy(fresh(neural_sde()), out, seed=-1)
    with pytest.raises(ConfigError, match="opset"):
        export_policy(fresh(neural_sde()), out, opset=12)
    with pytest.raises(OutputError, match="folder"):
        export_policy(fresh(neural_sde()), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_where_the_run_is_and_says_how_well(tmp_path: Path, capsys):
    policy, run = fresh(RegressionConfig(network=SMALL)), RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.save_record(policy.record)
    run.save_weights(policy.model.state_dict())
    assert main(["export", str(run.path), "--cases", "5"]) == 0
    assert "ranges in 5 cases" in capsys.readouterr().out
    assert (run.path / "policy.onnx").is_file()
    assert main(["export", str(run.path), "--opset", "3"]) == 2
    assert main(["export", str(tmp_path / "nowhere")]) == 2
    assert "nsde-policy: " in capsys.readouterr().err
