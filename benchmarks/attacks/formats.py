"""Inputs of every format, how a user reads them, and the damage that the format itself reveals."""

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import h5py
import numpy as np
from numcodecs import Blosc

from nsde_policy.cli.main import main
from nsde_policy.data import DemoWriter, load_demonstrations
from nsde_policy.data.readers import open_source
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import NsdePolicyError
from nsde_policy.policy.policy import Policy
from tests.data.test_minari import write_minari
from tests.data.test_tables import write_csv, write_npz
from tests.data.test_umi import LOW, write_umi
from tests.helpers.demo_stores import write_store, zip_store
from tests.helpers.hdf5_files import LENGTHS, example, write_aloha, write_d4rl, write_robomimic
from tests.helpers.lerobot_sets import WRIST, edit_info, write_v2, write_v3
from tests.helpers.numbered_episodes import make_episode, make_images
from tests.helpers.ros2_bags import SETTINGS, Message, draw_time, make_image, make_small, write_small

GOLDEN = Path(__file__).parents[2] / "tests/golden/data"


class FaultError(Exception):
    """A fault of the package."""


@dataclass
class Reading:
    """What a user gets from an input."""

    numbers: dict[str, str] = field(default_factory=dict)
    """Fingerprints of what was read, by name."""
    refusals: list[str] = field(default_factory=list)

    def take(self, name: str, read: Callable[[], Any]) -> None:
        """Record what a function returns, or that it refuses; raise `FaultError` for any other exception."""
        try:
            value = read()
        except FaultError:
            raise
        except NsdePolicyError as error:
            if "\n" in str(error):
                raise FaultError(f"{name}: an error of several lines: {error!r:.300}") from error
            self.refusals.append(f"{name}: {error}")
        except (Exception, SystemExit) as error:
            raise FaultError(f"{name}: {type(error).__name__}: {error!s:.300}") from error
        else:
            content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            self.numbers[name] = hashlib.sha256(content).hexdigest()


def run_command(*words: str) -> None:
    """Run a command as in a shell; raise its refusal, or `FaultError`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(words)
    text = " ".join(output.getvalue().split())
    if code not in (0, 2) or re.search("a bug|Traceback|out of memory|left out: the reader", text):
        raise FaultError(f"{' '.join(words[:2])} ends with {code}: {text[-300:]}")
    if code:
        raise NsdePolicyError(text)


def read_demos(path: Path, **keys: Any) -> Reading:
    """Read demonstrations as `data info`, `data check`, training and a loader of camera frames do."""
    reading = Reading()
    for command in ("info", "check"):
        reading.take(command, partial(run_command, "data", command, str(path)))

    def load() -> Any:
        demos = load_demonstrations(path, **keys)
        reading.take("settings", lambda: (demos.rate_hz, demos.act_limits, demos.angles, demos.obs_names))
        return demos.fingerprint

    def read_arrays() -> None:
        with open_source(path) as source:
            ends = source.read_ends()
            for name in source.find_arrays():
                reading.take(name, lambda name=name: source.open_array(name).read_checked(int(ends.flat[-1])))

    reading.take("demonstrations", load)
    reading.take("arrays", read_arrays)
    return reading


def read_policy(path: Path, load: Callable[[Path], Any]) -> Reading:
    """Load a policy and plan."""
    reading = Reading()

    def plan() -> np.ndarray:
        policy = load(path)
        states = np.zeros((policy.spec.history, policy.spec.obs_dim + policy.spec.act_dim))
        return policy.plan_from(states, steps=2, seed=0).actions

    reading.take("plan", plan)
    return reading


read_run = partial(read_policy, load=Policy.from_pretrained)
read_graph = partial(read_policy, load=RuntimePolicy.load)
read_robosuite = partial(read_demos, obs_keys=("states",), act_key="actions")
read_umi = partial(read_demos, obs_keys=LOW[:2], act_key=LOW[2])


def write_umi_zip(path: Path) -> None:
    """Write UMI's replay buffer as a zip."""
    zip_store(write_umi(path.with_suffix("")))


def write_robosuite(path: Path) -> None:
    """Write what robosuite records: states of the simulator and actions, but no observations."""
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_info"] = json.dumps({"env_name": "Lift"})
        for number, (name, frames) in enumerate(LENGTHS.items()):
            demo, arrays = file.create_group(f"data/demo_{number + 1}"), example(name, frames)
            demo.attrs["model_file"] = "<mujoco/>"
            demo["states"], demo["actions"] = arrays["states"], arrays["actions"]


def write_lerobot(write: Callable[[Path], Path], video: bool, path: Path) -> None:
    """Write a LeRobot data set, without its video if need be."""
    write(path)
    if not video:
        shutil.rmtree(path / "videos")
        features = json.loads((path / "meta/info.json").read_text())["features"]
        edit_info(path, features={name: features[name] for name in features if name != WRIST})


def write_bag(storage: str, path: Path) -> None:
    """Write a bag with joints, commands and images."""
    stamps = range(0, 2 * 10**9, 10**8)
    images = [Message("/camera", stamp, make_image(stamp, draw_time(stamp))) for stamp in stamps]
    write_small(path, [*make_small(), *images], f'{SETTINGS}images = ["/camera"]\n', storage=storage)


def write_recording(path: Path) -> None:
    """Record episodes with the package's own writer."""
    settings = {"provenance": {"started": ""}, "made_with": {"env": "pusht"}}
    with DemoWriter(path, rate_hz=10.0, **settings) as writer:
        for number in range(3):
            writer.append(make_episode(number), extras=make_images(number))


def export_graph(path: Path) -> None:
    """Export a policy."""
    run_command("export", str(GOLDEN / "run"), "--out", str(path), "--cases", "4")


class Format(NamedTuple):
    """A kind of input."""

    file: str
    write: Callable[[Path], Any]
    why: str
    """Damage that must be noticed, and what reveals it."""
    kinds: tuple[str, ...] = ()
    """Kinds of damage that must be noticed in some files."""
    files: str = ".*"
    """Regular expression of their names."""
    read: Callable[[Path], Reading] = read_demos


CUT, ANY = ("cut",), ("bytes", "cut")
CHUNKS, LOST = r"(data|meta)/.*/[\d.]+", ("cut", "missing", "renamed", "empty")
FORMATS = {
    "zarr v2": Format("d.zarr", partial(write_store, compressors=Blosc()), "short chunks", LOST, CHUNKS),
    "zarr v3": Format("d.zarr", partial(write_store, zarr_format=3), "short chunks", LOST, CHUNKS),
    "recorded": Format("d.zarr", write_recording, "chunks: checksums", ("bytes", *LOST), CHUNKS),
    "UMI": Format("d.zarr.zip", write_umi_zip, "all: checksums", ANY, read=read_umi),
    **{
        f"LeRobot {write.__name__[-2:]}{' video' * video}": Format(
            "d", partial(write_lerobot, write, video), "short files: rows", CUT, r".*\.(parquet|mp4)"
        )
        for write in (write_v2, write_v3)
        for video in (False, True)
    },
    "robomimic": Format("d.hdf5", write_robomimic, "short files: length", CUT),
    "robosuite": Format("d.hdf5", write_robosuite, "short files: length", CUT, read=read_robosuite),
    "ALOHA": Format("d", partial(write_aloha, compress=True, episodes=3), "short files: length", CUT),
    "D4RL": Format("d.hdf5", write_d4rl, "short files: length", CUT),
    "Minari": Format("d", write_minari, "short files: length", CUT, r".*\.hdf5"),
    "csv": Format("d", write_csv, "nothing: plain text"),
    "npz": Format("d", write_npz, "all: checksums", ANY, r".*\.npz"),
    "mcap": Format("d", partial(write_bag, "mcap"), "short files: counts", CUT, r".*\.mcap"),
    "db3": Format("d", partial(write_bag, "sqlite3"), "short files: counts", CUT, r".*\.db3"),
    "run": Format("d", partial(copytree, GOLDEN / "run"), "short weights: length", CUT, "model.*", read_run),
    "ONNX": Format("d.onnx", export_graph, "all: a checksum", ANY, read=read_graph),
}
