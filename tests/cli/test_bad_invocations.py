"""Bad invocations: flags, numbers, devices and paths that no command can use."""

import os

import pytest

from nsde_policy.cli.main import main


def refuse(args, capsys):
    """Run a command that must be refused in one line, and return this line."""
    assert main(args) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nsde-policy: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("export --stps", "Perhaps you meant"),
        ("docter", "no command 'docter'; expected play"),
        ("data info", "PATH"),
        ("data info a b", "Unrecognized options: b"),
        ("data", "usage: nsde-policy data"),
        ("", "usage: nsde-policy"),
        ("eval --episodes x", "nsde-policy eval --help"),
        ("score", "--demos"),
        ("train --train.steps 0", "need steps >= 1, got 0"),
        ("train --train.stps 5", "--train.steps"),
        ("train --preset", "--preset"),
        ("train --policy telepathy", "neural_sde"),
        ("tune --telepathy", "nsde-policy tune --help"),
    ],
)
def test_invalid_flags_are_explained_with_exit_code_2(args, expected, capsys):
    assert main(args.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert expected in output.err


@pytest.mark.parametrize("command", ["train", "eval", "compare shipped", "serve"])
def test_a_device_that_torch_cannot_use_is_refused_before_the_work(command, capsys):
    error = refuse([*command.split(), "--device", "cuda:99"], capsys)
    assert "device 'cuda:99' cannot be used here" in error
    assert "--device cpu" in error


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("eval --seed-start -1", "need --seed-start >= 0, got -1"),
        (f"train --seed {2**64}", "need --seed <= 9223372036854775807"),
        ("eval --episodes 0", "need --episodes >= 1"),
        ("eval --push nan", "--push"),
        ("eval --camera-noise inf", "need --camera-noise < 1.0"),
        ("eval --obs-noise 500", "need obs_noise < 100.0, got 500.0"),
        (f"eval --latency-steps {'9' * 400}", "need --latency-steps <= 9223372036854775807"),
        ("eval --device meta", "device 'meta' cannot be used here"),
        ("train --validation nan", "need --validation >= 0.0, got nan"),
        ("data convert x.zarr y.zarr --rate nan", "need --rate >= 0.0"),
        ("serve --max-clients 0", "need --max-clients >= 1, got 0"),
        ("serve --deadline-s inf", "need --deadline-s <= 1e+30"),
        ("tune --epochs 5", "tune has no flag --epochs: use --steps"),
        ("tune --demos nowhere.zarr", "nowhere.zarr does not exist"),
        ("tune --preset lost.json", "lost.json cannot be read"),
        ("tune --trials 0", "--trials"),
        ("play --host no.such.host.invalid", "try --host"),
        ("eval shipped-pixels --camera-occluder bar", "--camera-occluder needs --camera-occlusion"),
        ("eval --workers 1 --camera-shift 2", "no cameras to disturb: leave out the flags --camera-"),
        ("eval --ray localhost:1", "no Ray cluster at localhost:1: Connection refused; expected"),
        ("eval --ray nowhere", "no Ray cluster at nowhere: Invalid address format: nowhere; expected"),
        ("eval --ray local --device cuda:1", "--device cuda:1 does not fit --ray, which chooses the GPU"),
        # what other packages call it
        (
            "train --dataset.repo_id=me/arm --policy.type act --output_dir=o --policy.device cpu",
            "no method act, no flag --output_dir, no flag --policy.device: use --demos hf://NAME, "
            "--policy regression, --out, --device",
        ),
        (
            "train --policy Diffusion --env.type pusht --config_path c.yaml",
            "use --policy diffusion, --env ID, ",
        ),
        ("eval --policy.path=p --env.type=pusht --eval.n_episodes=50", "new weights, --env ID, --episodes"),
        ("train --epochs 3 --batch_size=8", "use --steps (of the optimiser), --batch-size"),
        ("train --dataset.root data/arm", "no flag --dataset.root: use --demos"),
        ("eval --policy.path=me/arm", "`nsde-policy eval RUN`"),
        ("eval shipped --demos arm", "use `nsde-policy score RUN --demos STORE`"),
    ],
)
def test_invalid_values_are_refused_in_one_line(args, expected, capsys):
    assert expected in refuse(args.split(), capsys)


@pytest.mark.parametrize(
    "settings", ['{"widht": 64}', '{"method": "tardis"}', "[]", '{"model": 3}', '{"demos": {"encoder": 3}}']
)
def test_a_preset_file_with_other_settings_is_refused(settings, capsys, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(settings)
    error = refuse(["train", "--preset", str(path), "--dry-run"], capsys)
    assert str(path) in error
    assert "bug" not in error


def test_an_error_is_one_line_without_control_characters(capsys):
    assert "/no/a\\x1b[31m b does not exist" in refuse(["data", "info", "/no/a\x1b[31m\nb"], capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not a regular file"), (b"\xff" * 20, "not a text file"), (b"t" * 5000, "4096")],
)
def test_a_token_file_is_a_small_regular_text_file(content, message, tmp_path, capsys):
    path = tmp_path / "token"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    error = refuse(["serve", "--token-file", str(path)], capsys)
    assert "cannot read the token" in error
    assert message in error
