"""Tests of training on stores larger than memory."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.targets import Transitions, Windows
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot.writer import write_lerobot
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.training import stream as streaming
from nsde_policy.training.dataset import build_training_data, measure_demonstrations, resolve_first_action
from nsde_policy.training.demos import load_training_demos
from nsde_policy.training.run import TrainOptions, train_run
from nsde_policy.training.stream import StreamSource, stream_rows
from tests.helpers.camera_robot import SIZES, STATE, STEPS, train_camera_run, write_camera_store
from tests.helpers.demo_stores import write_store

BATCH, SEED, COLUMNS = 32, 5, 30
SMALL = RunConfig(
    demos=DemoConfig(window_mb=1),
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2)),
    train=TrainConfig(steps=24, batch_size=BATCH, log_every=8),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of different lengths; with a window of 1 MB, a sample of them is in memory."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(20, 60, 60))
    state = np.cumsum(rng.normal(size=(ends[-1], COLUMNS)), axis=0).astype(np.float32)
    state[:, 3] %= 2 * np.pi
    arrays = {"data/state": state, "data/action": state[:, :3] + 1, "meta/episode_ends": ends}
    others = {"data/keypoint": None, "data/img": None}
    return write_store(
        tmp_path_factory.mktemp("stream") / "demos.zarr", {**others, **arrays}, attributes={"rate_hz": 10.0}
    )


@pytest.fixture(scope="module")
def lerobot(store: Path) -> Path:
    """The same episodes as a LeRobot data set."""
    with open_source(store) as source:
        write_lerobot(source, store.parent / "lerobot")
    return store.parent / "lerobot"


def open_rows(path: Path, config: RunConfig, left_out: int = 0) -> tuple[StreamSource, Transitions | Windows]:
    """Stream a store without the first episodes of its sample; return also the rows of the whole store."""
    demos = load_training_demos(config.demos, path)
    assert demos.stream is not None
    everything = load_training_demos(replace(config.demos, window_mb=0), path)
    assert everything.stream is None
    config = resolve_first_action(everything, config)
    skipped = demos.stream.sample[:left_out]
    kept = everything.select([i for i in range(len(everything)) if i not in skipped])
    spec = measure_demonstrations(demos, config)
    record = RunRecord(config, spec, "none", SEED, DemoRecord("", "", 0, 0))
    known = demos.select(range(left_out, len(demos)))
    source = stream_rows(record, known, None, "cpu")
    assert source is not None
    return source, build_training_data(kept, config)


def draw_rows(source: StreamSource, steps: range) -> list[bytes]:
    """Return the rows of some batches, all fields of each as bytes."""
    found = []
    for step in steps:
        source.prepare(step)
        found += list_rows(source.draw(torch.Generator()))
    return found


def list_rows(table: Transitions | Windows) -> list[bytes]:
    """Return rows as bytes."""
    flat = torch.cat([tensor.flatten(1) for tensor in vars(table).values()], dim=1)
    return [row.numpy().tobytes() for row in flat]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "lerobot"])
@pytest.mark.parametrize("method", ["neural_sde", "regression"])
def test_every_row_of_a_store_is_drawn_equally_often(kind, method, request):
    model = SMALL.model if method == "neural_sde" else get_method(method).presets["fast"].model
    config = replace(SMALL, model=model, chunk=4)
    source, table = open_rows(request.getfixturevalue(kind), config, left_out=2)
    expected, epochs = list_rows(table), 4
    drawn = draw_rows(source, range(epochs * len(expected) // BATCH))
    source.close()
    assert len({*expected}) == len(expected)
    counts = dict.fromkeys(expected, 0)
    for row in drawn:
        counts[row] += 1  # a KeyError: a row that is not in memory either, or that is held out
    assert epochs - 1 <= min(counts.values()) <= max(counts.values()) <= epochs + 1


def test_a_real_lerobot_data_set_gives_the_rows_that_it_gives_in_memory(shared_demos: Path):
    config = replace(SMALL, demos=DemoConfig(window_mb=4))
    source, table = open_rows(shared_demos / "formats/lerobot_v21_g1", config)
    drawn = draw_rows(source, range(-(-len(table) // BATCH)))
    source.close()
    assert {*drawn} <= {*list_rows(table)}
    assert len({*drawn}) > 0.8 * len(table)  # lanes begin within a shard, which comes again at the end


@pytest.mark.slow
def test_rows_depend_on_the_seed_and_the_step_alone(store, monkeypatch):
    whole, _ = open_rows(store, SMALL)
    rows = draw_rows(whole, range(150))
    whole.close()
    resumed, _ = open_rows(store, SMALL)
    assert draw_rows(resumed, range(97, 100)) == rows[97 * BATCH : 100 * BATCH]
    assert draw_rows(resumed, range(1)) == rows[:BATCH]
    resumed.close()
    assert rows[:BATCH] != rows[BATCH : 2 * BATCH]
    for ranks, rank in ((2, 1), (16, 5)):
        size = BATCH // ranks
        own = range(rank * size, (rank + 1) * size)
        monkeypatch.setattr(streaming, "find_own_rows", lambda _, own=own: own)
        part, _ = open_rows(store, SMALL)
        assert draw_rows(part, range(90, 92))[:size] == rows[90 * BATCH :][own.start : own.stop]
        loaded = [lane for lane in part._lanes if lane._shards]
        assert len(loaded) == max(1, streaming.MAX_LANES // ranks)  # a process reads its part of the store
        part.close()


def test_a_batch_mixes_many_episodes(store):
    source, table = open_rows(store, SMALL)
    places = {row: i for i, row in enumerate(list_rows(table))}
    drawn = [places[row] for row in draw_rows(source, range(20, 21))]
    source.close()
    assert len({place * streaming.MAX_LANES // len(table) for place in drawn}) == streaming.MAX_LANES


def train_streamed(path: Path, out: Path, *, steps: int = SMALL.train.steps, stop: bool = False, **options):
    """Train on a streamed store, and stop half-way."""

    def interrupt(progress) -> None:
        if stop and progress.step == SMALL.train.steps // 3:
            raise KeyboardInterrupt

    demos = load_training_demos(SMALL.demos, path)
    return train_run(demos, SMALL, out, seed=SEED, monitor=interrupt, options=TrainOptions(**options))


def test_a_resumed_run_has_the_weights_of_one_that_was_not_interrupted(store, tmp_path):
    split = {"validation": 0.2, "scale_std": 0.2}
    whole = train_streamed(store, tmp_path / "whole", **split)
    with pytest.raises(KeyboardInterrupt):
        train_streamed(store, tmp_path / "parts", stop=True, **split)
    parts = train_streamed(store, tmp_path / "parts", resume=True, **split)
    assert parts.model.read_bytes() == whole.model.read_bytes()
    record = whole.read_record()
    assert (record.demos.episodes, len(record.demos.held_out)) == (60, 1)
    assert main(["score", str(whole.path), "--demos", str(store), "--samples", "2"]) == 0


def test_a_fault_names_the_frame_of_the_store(store, tmp_path):
    demos = load_training_demos(SMALL.demos, store)
    state = zarr.open_array(store / "data/state", mode="r+")
    episode = next(i for i in range(5, 60) if i not in demos.stream.sample)
    frame = int(demos.stream.episode_ends[episode - 1]) + 4
    before = float(state[frame, 2])
    state[frame, 2] = np.nan
    try:
        with pytest.raises(DemoError, match=rf"\[2\] at frame {frame} \(episode {episode}, step 4\)"):
            demos.stream.load([episode - 1, episode])
    finally:
        state[frame, 2] = before


def test_settings_that_need_all_demonstrations_are_refused(store, tmp_path, capsys):
    flags = ["train", "--demos", str(store), "--device", "cpu", "--window-mb", "1", "--out"]
    assert main([*flags, str(tmp_path / "knn"), "--policy", "knn"]) == 2
    assert "choose another --policy, or a larger --window-mb" in capsys.readouterr().err
    assert main([*flags, str(tmp_path / "aligned"), "--demos.align-ends"]) == 2
    assert "use --demos.no-align-ends, or a larger --window-mb" in capsys.readouterr().err
    demos = load_training_demos(SMALL.demos, store)
    long = replace(demos.stream, episode_ends=demos.stream.episode_ends[[0, 50, -1]], sample=(0, 2))
    with pytest.raises(ConfigError, match=r"too small for episode 1, which .* set --window-mb to"):
        train_run(replace(demos, stream=long), SMALL, tmp_path / "long", seed=0)
    assert main([*flags, str(tmp_path / "few"), "--demos.episodes", "99"]) == 2
    assert "cannot take the first 99" in capsys.readouterr().err


@pytest.mark.slow
def test_features_of_streamed_frames_are_those_of_the_policy(tmp_path):
    path = write_camera_store(tmp_path / "cameras.zarr")
    config = replace(
        SMALL,
        demos=DemoConfig(images=tuple(SIZES), encoder="keypoints", window_mb=3),
        encoder=KeypointConfig(
            train=TrainConfig(steps=4, batch_size=4), size=32, keypoints=2, width=8, anchors=1
        ),
    )
    run = train_camera_run(path, tmp_path / "run", config, validation=0.2)
    policy = Policy.from_pretrained(run.path)
    with open_source(path) as source:
        arrays = {name: source.open_array(name)[:] for name in ("state", *SIZES)}
    files = [*(run.encoder.path / "stream").iterdir()]
    assert files
    for file in files:
        first, last = (int(number) for number in file.stem.split("-"))
        rows = slice(first * STEPS, (last + 1) * STEPS)
        given = {
            camera.name: arrays[name][rows] for camera, name in zip(policy.spec.cameras, SIZES, strict=True)
        }
        expected = policy.encode({STATE: arrays["state"][rows], **given})[:, policy.spec.plain_dim :]
        np.testing.assert_allclose(run.encoder.read_tensors(file)["codes"], expected, atol=1e-5)
    before = run.model.read_bytes()
    run.training.unlink()
    assert train_camera_run(path, run.path, config, validation=0.2, resume=True).model.read_bytes() == before


def write_sparse(path: Path, frames: int, length: int, columns: int, size: int = 0) -> Path:
    """Write a store of which few chunks exist; the others read as 0."""
    group = zarr.open_group(path, mode="w", zarr_format=2, attributes={"rate_hz": 10.0})
    rng, ends = np.random.default_rng(0), np.arange(length, frames + 1, length)
    shapes = {"state": (columns,), "action": (4,)} | ({"img": (size, size, 3)} if size else {})
    rows = 200 if size else 10_000
    for name, shape in shapes.items():
        dtype = "u1" if name == "img" else "f4"
        array = group.create_array(
            f"data/{name}", shape=(frames, *shape), chunks=(rows, *shape), dtype=dtype, fill_value=0
        )
        for first in range(0, frames, frames // 20 // rows * rows):
            array[first : first + rows] = rng.uniform(0, 255, (rows, *shape)).astype(dtype)
    group.create_array("meta/episode_ends", shape=ends.shape, chunks=ends.shape, dtype="i8")[:] = ends
    return path


MEASURE = """
import sys
from pathlib import Path
from nsde_policy.cli.main import main
code = main(sys.argv[1:])
print("peak", int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024)
raise SystemExit(code)
"""
"""`getrusage` would return the peak of the test process if that is larger."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("cameras", [False, True])
def test_a_store_of_50_gb_is_trained_in_1_gb(cameras, tmp_path):
    sizes = (1_800_000, 100, 4, 96) if cameras else (125_000_000, 500, 96)
    path = write_sparse(tmp_path / "demos.zarr", *sizes)
    with open_source(path) as source:
        arrays = [source.open_array(name) for name in source.find_arrays()]
    assert sum(array.width * array.dtype.itemsize * array.shape[0] for array in arrays) > 49e9
    flags = ["--accept-omitted-chunks", "--device", "cpu", "--preset", "auto", "--validation", "0.1"]
    flags += ["--steps", "100", "--batch-size", "64", "--width", "32", "--out", str(tmp_path / "run")]
    window = 128 if cameras else 512  # which is the default; encoding a whole window of frames takes minutes
    flags += ["--images", "img", "--encoder.train.steps", "20", "--window-mb", "128"] if cameras else []
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, "train", "--demos", str(path), *flags], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"read from disk into a window of {window} MB" in done.stderr
    assert int(done.stdout.split()[-1]) <= 1000
