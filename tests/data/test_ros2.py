"""Tests of ROS 2 bags: a made-up arm whose bags `rosbags` writes, sampled at one rate."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.ros2_bags import (
    JOINTS,
    SETTINGS,
    SPEED,
    START,
    Message,
    draw_time,
    make,
    make_image,
    make_joints,
    make_small,
    move,
    press,
    send,
    write_bag,
    write_small,
)

CAMERAS = """\
images = ["/front/image_raw", "/wrist/image_raw/compressed"]
on_change = ["/gripper"]
"""


def read_time(picture: np.ndarray) -> float:
    return float(picture[0, 0] @ 256 ** np.arange(3)) / 1e4


def film(stamp: int):
    return make_image(stamp, draw_time(stamp)[..., ::-1], encoding="bgr8", padding=5)


def press_time(stamp: int):
    return press(stamp, draw_time(stamp))


def record_arm(seed: int) -> list[Message]:
    """Record 6 s with jitter, dropped messages and two cameras at other rates that start later."""
    rng, end = np.random.default_rng(seed), 6.0
    gripper = [Message("/gripper", int(t * 1e9), make("std_msgs/Float64", data=t)) for t in (0.1, 2.05, 4.4)]
    return [
        *send(rng, "/joint_states", 125, (0, end), lambda t: make_joints(t, move(t / 1e9))),
        *send(rng, "/command", 60, (0.3, end), lambda t: make_joints(t, move(t / 1e9))),
        *send(rng, "/front/image_raw", 60, (0.2, end), film, jitter=0.1),
        *send(rng, "/wrist/image_raw/compressed", 24, (0.5, end - 0.4), press_time, jitter=0.05, dropped=0),
        *gripper,
    ]


def write_arm(folder: Path, *, storage: str = "mcap", pack: bool = False) -> Path:
    """Write a data set of three bags."""
    folder.mkdir()
    for seed in (10, 2, 1):
        write_bag(folder / f"demo_{seed}", record_arm(seed), storage=storage, pack=pack)
    settings = SETTINGS.replace('"/joint_states"', '"/joint_states", "/gripper"') + CAMERAS
    (folder / "dataset.toml").write_text(settings)
    return folder


def get_times(values: np.ndarray) -> np.ndarray:
    """Return when the arm was in a state."""
    return values[:, 0] / SPEED


@pytest.mark.parametrize(("storage", "pack"), [("mcap", False), ("mcap", True), ("sqlite3", False)])
def test_sampled_messages_are_within_half_a_period_of_their_tick(tmp_path: Path, storage: str, pack: bool):
    folder = write_arm(tmp_path / "arm", storage=storage, pack=pack)
    demos = load_demonstrations(folder)
    cameras = {
        name: open_images(folder, key=name) for name in ("front.image_raw", "wrist.image_raw.compressed")
    }
    assert (len(demos), demos.rate_hz) == (3, 10)
    for seed, start, end in zip((1, 2, 10), demos.starts, demos.episode_ends, strict=True):
        stamps = [m.content.header.stamp for m in record_arm(seed) if m.topic == "/joint_states"]
        times = np.array([(stamp.sec * 10**9 + stamp.nanosec - START) / 1e9 for stamp in stamps])
        ticks = get_times(demos.obs[start:end])
        assert np.abs(ticks[:, None] - times).min(1).max() < 1e-5
        assert np.abs(np.diff(ticks) - 0.1).max() < 0.02
        assert end - start >= 49
        late = get_times(demos.act[start:end]) - ticks
        assert late.min() > -1e-5
        assert late.max() < 0.05
        ages = [ticks - [read_time(each) for each in frames[start:end]] for frames in cameras.values()]
        for age in ages:
            assert age.min() > -2e-4  # images tell tenths of a millisecond
            assert age.max() < 0.05
        gripper = np.where(ticks < 2.05, 0.1, np.where(ticks < 4.4, 2.05, 4.4))
        np.testing.assert_allclose(demos.obs[start:end, 6], gripper, rtol=1e-6)


def test_data_set_describes_itself(tmp_path: Path):
    folder = write_arm(tmp_path / "arm")
    summary = summarize(folder)
    assert summary.format == "ROS 2 bags"
    assert summary.positions == (*range(6),)
    assert summary.videos == ("front.image_raw", "wrist.image_raw.compressed")
    assert summary.oddities[0].startswith("sampled at 10 Hz; largest misalignment: /joint_")
    alignment = summary.attributes["alignment"]
    assert isinstance(alignment, dict)
    assert set(alignment) == {"/joint_states", "/command", "/front/image_raw", "/wrist/image_raw/compressed"}
    assert 0.02 < alignment["/wrist/image_raw/compressed"] < 0.05
    demos = load_demonstrations(folder)
    assert demos.act_names == tuple(f"command.{joint}" for joint in JOINTS)
    assert demos.obs_names[-1] == "gripper.data"
    assert check_store(folder) == []


def test_action_is_commanded_after_the_observation_was_seen(tmp_path: Path):
    demos = load_demonstrations(write_small(tmp_path / "bag", storage="sqlite3"))
    ticks = 0.1 + np.arange(19) / 10
    np.testing.assert_allclose(get_times(demos.obs), ticks, atol=1e-5)
    np.testing.assert_allclose(get_times(demos.act), ticks + 0.004, atol=1e-5)


def test_bag_without_metadata_in_a_folder_of_bags_is_refused(tmp_path: Path):
    for name in ("demo_1", "demo_2"):
        write_bag(tmp_path / name, make_small())
    (tmp_path / "dataset.toml").write_text(SETTINGS)
    assert len(load_demonstrations(tmp_path)) == 2
    (tmp_path / "demo_2" / "metadata.yaml").unlink()
    with pytest.raises(DemoError, match=r"demo_2 cannot be read: .*metadata.*`ros2 bag reindex`"):
        load_demonstrations(tmp_path)


def test_joints_are_ordered_by_name(tmp_path: Path):
    messages = make_small()
    for number, (_, _, content) in enumerate(messages):
        order = np.random.default_rng(number).permutation(6)
        content.name, content.position = [JOINTS[i] for i in order], content.position[order]
    mixed = load_demonstrations(write_small(tmp_path / "mixed", messages))
    plain = load_demonstrations(write_small(tmp_path / "plain"))
    places = [mixed.obs_names.index(name) for name in plain.obs_names]
    np.testing.assert_array_equal(mixed.obs[:, places], plain.obs)
    np.testing.assert_array_equal(
        mixed.act[:, [mixed.act_names.index(n) for n in plain.act_names]], plain.act
    )


def make_pose():
    point = make("geometry_msgs/Point", x=1.0, y=2.0, z=3.0)
    turn = make("geometry_msgs/Quaternion", x=4.0, y=5.0, z=6.0, w=7.0)
    return make("geometry_msgs/Pose", position=point, orientation=turn)


def make_list(kind: str, numbers: np.ndarray):
    layout = make("std_msgs/MultiArrayLayout", dim=[], data_offset=0)
    return make(f"std_msgs/{kind}MultiArray", layout=layout, data=numbers)


def make_trajectory(stamp: int):
    point = make(
        "trajectory_msgs/JointTrajectoryPoint",
        positions=np.array([1.0, 2.0]),
        velocities=np.empty(0),
        accelerations=np.empty(0),
        effort=np.empty(0),
        time_from_start=make("builtin_interfaces/Duration", sec=0, nanosec=0),
    )
    return make("trajectory_msgs/JointTrajectory", stamp=stamp, joint_names=["a", "b"], points=[point])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (make("geometry_msgs/PoseStamped", stamp=0, pose=make_pose()), [1, 2, 3, 4, 5, 6, 7]),
        (make_list("Float64", np.array([1.0, 2.0])), [1, 2]),
        (make("std_msgs/Int32", data=-3), [-3]),
        (make("std_msgs/Bool", data=True), [1]),
        (make_trajectory(0), [1, 2]),
    ],
    ids=lambda content: getattr(content, "__msgtype__", ""),
)
def test_numbers_of_a_message(tmp_path: Path, content, expected: list[float]):
    settings = SETTINGS.replace('"/joint_states"', '"/joint_states", "/other"') + 'on_change = ["/other"]\n'
    messages = [*make_small(), Message("/other", 0, content)]
    demos = load_demonstrations(write_small(tmp_path / "bag", messages, settings))
    np.testing.assert_array_equal(demos.obs[:, 6:], np.tile(np.float32(expected), (len(demos.obs), 1)))


def test_fields_can_be_chosen(tmp_path: Path):
    messages = make_small()
    for message in messages:
        message.content.velocity = 10 * message.content.position
    settings = SETTINGS + '[fields]\n"/joint_states" = ["position", "velocity"]\n'
    demos = load_demonstrations(write_small(tmp_path / "bag", messages, settings))
    np.testing.assert_allclose(demos.obs[:, 6:], 10 * demos.obs[:, :6], rtol=1e-6)
    assert demos.obs_names[6] == "joint_states.base.velocity"


@pytest.mark.parametrize(
    ("make_content", "tolerance"),
    [
        (lambda t, p: make_image(t, p, padding=3), 0),
        (lambda t, p: make_image(t, p[..., ::-1], encoding="bgr8"), 0),
        (lambda t, p: make_image(t, p[..., :1], encoding="mono8", padding=2), 0),
        (lambda t, p: press(t, p), 0),
        (lambda t, p: press(t, p, "JPEG"), 20),
    ],
    ids=["rgb8", "bgr8", "mono8", "png", "jpeg"],
)
def test_images_are_red_green_blue(tmp_path: Path, make_content: Callable, tolerance: int):
    picture = np.zeros((16, 24, 3), np.uint8)
    picture[:, 8:] = 200
    if "mono8" not in str(getattr(make_content(0, picture), "encoding", "")):
        picture[:, :8] = (200, 100, 50)
    messages = make_small()
    messages += [Message("/cam", t, make_content(t, picture)) for t in range(0, 2 * 10**9, 10**8)]
    frames = open_images(write_small(tmp_path / "bag", messages, SETTINGS + 'images = ["/cam"]\n'), key="cam")
    assert np.abs(frames[5].astype(int) - picture).max() <= tolerance


def test_without_settings_the_error_suggests_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_arm(tmp_path / "arm")
    declared = {"/said": "std_msgs/msg/String", "/rosout": "rcl_interfaces/msg/Log"}
    unused = [Message(topic, 0, kind) for topic, kind in declared.items()]
    write_bag(folder / "demo_0", [*record_arm(0), *unused])
    written = tomllib.loads((folder / "dataset.toml").read_text())
    (folder / "dataset.toml").unlink()
    assert main(["data", "info", str(folder)]) == 2
    text = capsys.readouterr().err
    assert "/wrist/image_raw/compressed (sensor_msgs/msg/CompressedImage, 123 messages)" in text
    suggested = tomllib.loads("\n".join(re.findall("`(.*?)`", text)))
    suggested["observations"].reverse()  # in alphabetical order
    assert {**suggested, "rate_hz": 10, "on_change": ["/gripper"]} == written
