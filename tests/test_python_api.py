"""Tests of what Python offers in addition to the command line: train, evaluate, representations."""

from pathlib import Path

import pytest

import nsde_policy
from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from tests.helpers.robot_arm import make_arm_demos, write_arm_store
from tests.helpers.toy_problems import make_robot_demos

FEW = {"steps": 30, "width": 16, "select": "none", "device": "cpu", "validation": 0.5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = {"columns": {"action": [*(f"joint_{i}" for i in range(7)), "gripper"]}}
    return write_arm_store(tmp_path_factory.mktemp("arm") / "arm.zarr", make_arm_demos(), attributes=names)


@pytest.mark.slow
def test_python_trains_what_the_command_trains_and_resumes_it(store: Path, tmp_path: Path):
    policy = nsde_policy.train(store, out=tmp_path / "python", **FEW)
    flags = [part for name, value in FEW.items() for part in (f"--{name}", str(value))]
    assert main(["train", "--demos", str(store), "--out", str(tmp_path / "command"), *flags]) == 0
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("python", "command")}
    assert len(weights) == 1
    again = nsde_policy.train(store, out=tmp_path / "python", resume=True, **FEW)
    assert again.record == policy.record


@pytest.mark.slow
def test_score_gives_the_verdict_of_the_command(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy = nsde_policy.train(store, out=tmp_path / "run", **FEW)
    assert repr(policy) == "Policy(neural_sde, 8 → 8, 20 Hz, chunk 4)"
    found = nsde_policy.score(policy, store, samples=5, stride=9)
    capsys.readouterr()
    assert main(["score", str(tmp_path / "run"), "--demos", str(store), "--samples=5", "--stride=9"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert repr(found).splitlines()[:-1] == printed[:-1]
    assert "the 6 of 12 episodes" in repr(found)
    assert found.scale.names[-1] == "gripper"
    assert found.scale.binary == (False,) * 7 + (True,)


def test_python_takes_demonstrations_and_settings(tmp_path: Path):
    config = RunConfig(
        demos=DemoConfig(first_action_from=()),
        model=NeuralSDEConfig(network=NetworkConfig(width=8, depth=1)),
        train=TrainConfig(steps=9, batch_size=4),
    )
    steps: list[int] = []
    policy = nsde_policy.train(
        make_robot_demos(4),
        config,
        out=tmp_path / "run",
        device="cpu",
        monitor=lambda progress: steps.append(progress.step),
        **{"train.steps": 3, "model.noise": 0.5},
    )
    changed = config.change({"train.steps": 3, "model.noise": 0.5})
    assert policy.record.config == changed != config
    assert (steps, policy.record.task) == ([3], "none")
    with pytest.raises(ConfigError, match=r"there is no setting 'model.noises'; did you mean noise\?"):
        config.change({"model.noises": 0.5})
    with pytest.raises(ConfigError, match="need steps >= 1"):
        config.change({"train.steps": 0})


def test_wrong_arguments_are_errors_that_name_the_remedy(store: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no setting 'epochs'"):
        nsde_policy.train(store, out=tmp_path / "run", epochs=3)
    with pytest.raises(ConfigError, match=r"no setting 'colour'; .*--help-all"):
        nsde_policy.train(store, out=tmp_path / "run", colour="red")
    config = RunConfig(model=NeuralSDEConfig())
    for other in ({"policy": "diffusion"}, {"preset": "fast"}):
        with pytest.raises(ConfigError, match="settings of neural_sde: leave out preset and policy"):
            nsde_policy.train(store, config, out=tmp_path / "run", **other)
    with pytest.raises(nsde_policy.errors.DemoError, match="does not exist"):
        nsde_policy.train(tmp_path / "nothing.zarr")
    assert not (tmp_path / "run").exists()
