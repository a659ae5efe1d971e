"""Tests for the preset `auto`: rules by statistics of the demonstrations."""

import logging
import runpy
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import find_demos
from nsde_policy.cli.train import Train
from nsde_policy.data import Episode, load_demonstrations
from nsde_policy.data.statistics import DemoStatistics, choose_chunk, measure_statistics
from nsde_policy.methods.registry import METHODS, get_method
from nsde_policy.tasks import get_task
from nsde_policy.training.presets import resolve_preset
from tests.helpers.episodes import join_episodes
from tests.helpers.robot_arm import write_arm_store

ROOT = Path(__file__).parents[2]
SCRIPTED = DemoStatistics(
    frames=10_000, dim=67, rate_hz=100.0, median_length=200,
    unexplained_fraction=0.04, branching_fraction=0.02,
)  # fmt: skip
UNKNOWN = replace(SCRIPTED, unexplained_fraction=0.35)
HUMAN = replace(UNKNOWN, goal_frames=20.0)
BRANCHING = replace(UNKNOWN, branching_fraction=0.1)


@pytest.mark.parametrize(
    ("statistics", "diffusion", "alpha", "dropout", "noise"),
    [(SCRIPTED, 0.0, 1.0, 0.1, 0.7), (UNKNOWN, 0.0, 1.0, 0.1, 0.7), (HUMAN, 0.5, 1.0, 0.1, 0.7),
     (replace(SCRIPTED, goal_frames=20.0), 0.0, 1.0, 0.1, 0.7),
     (BRANCHING, 2.5, 1.5, 0.0, 1.5), (replace(BRANCHING, goal_frames=20.0), 0.5, 1.0, 0.1, 0.7),
     (replace(UNKNOWN, branching_fraction=0.04), 0.0, 1.0, 0.1, 0.7)],
)  # fmt: skip
def test_policies_are_sampled_without_noise_unless_demonstrations_branch_or_share_a_goal(
    statistics, diffusion, alpha, dropout, noise
):
    model = get_method("neural_sde").auto_preset(statistics).model
    chosen = model.sampling.diffusion, model.sampling.alpha, model.network.dropout, model.noise
    assert chosen == pytest.approx((diffusion, alpha, dropout, noise))


@pytest.mark.parametrize(
    ("statistics", "setting", "value"),
    [(replace(SCRIPTED, dim=32), "model.network.width", 256),
     (replace(SCRIPTED, dim=54), "model.network.width", 512),
     (replace(SCRIPTED, dim=428), "model.network.width", 1024),
     (replace(SCRIPTED, frames=100), "train.steps", 2_000),
     (replace(SCRIPTED, frames=10_000), "train.steps", 31_200),
     (replace(SCRIPTED, frames=1_000_000), "train.steps", 40_000)],
)  # fmt: skip
def test_width_and_steps_follow_the_demonstrations(statistics, setting, value):
    assert attrgetter(setting)(get_method("neural_sde").auto_preset(statistics)) == value


@pytest.mark.parametrize(
    ("movement", "noise"), [(0.1, 0.7), (0.033, 1.5), (0.025, 2.0), (0.001, 3.0), (0.0, 0.7)]
)
def test_slower_movements_get_more_noise_augmentation(movement, noise):
    statistics = replace(UNKNOWN, movement=movement)
    assert get_method("neural_sde").auto_preset(statistics).model.noise == noise


def test_movement_is_measured_in_spreads_of_the_states_per_frame():
    angle = np.linspace(0, np.pi, 101)  # a cosine: its changes are π / 100 / √2 and its spread is 1 / √2
    paths = [np.stack([np.cos(angle), 5 * np.cos(angle), *[np.full(101, goal)] * 3], 1) for goal in range(3)]
    demos = join_episodes([Episode(path, np.zeros((101, 1))) for path in paths])
    assert measure_statistics(demos).movement == pytest.approx(np.pi / 100, rel=0.02)


def test_frames_are_not_compared_by_columns_alone_where_a_policy_sees_pictures():
    task = get_task("none")
    columns = task.training.demos
    pictures = replace(columns, images=("top",), encoder="keypoints")
    demos = load_demonstrations(find_demos("avoiding"))
    plain, seeing = (
        resolve_preset(task, "auto", "neural_sde", demos=demos, demo_settings=settings)[1].model
        for settings in (columns, pictures)
    )
    assert (plain.sampling.diffusion, seeing.sampling.diffusion) == (2.5, 0)


@pytest.mark.parametrize("task", ["avoiding", "avoiding_varied"])
def test_demonstrations_of_obstacle_avoidance_get_the_settings_for_branches(task):
    _, config = resolve_preset(get_task(task), "auto", "neural_sde", demos=None)
    assert config.model == replace(
        get_method("neural_sde").auto_preset(BRANCHING).model, network=config.model.network
    )


@pytest.mark.parametrize(
    ("statistics", "rate", "chunk"),
    [(HUMAN, 10.0, 8), (HUMAN, 30.0, 16), (HUMAN, 1.0, 4), (HUMAN, None, 8),
     (replace(HUMAN, median_length=12), 30.0, 2), (BRANCHING, 30.0, 16), (SCRIPTED, 30.0, 8),
     (UNKNOWN, 30.0, 8), (replace(UNKNOWN, median_length=88), 30.0, 4),
     (replace(UNKNOWN, median_length=101), 30.0, 4), (replace(UNKNOWN, median_length=12), 30.0, 1)],
)  # fmt: skip
def test_chunk_is_a_time_within_bounds(statistics, rate, chunk):
    assert choose_chunk(replace(statistics, rate_hz=rate)) == chunk


@pytest.mark.parametrize(
    ("statistics", "movement", "chunk"),
    [(HUMAN, 0.1, 16), (BRANCHING, 0.1, 16), (UNKNOWN, 0.5, 1), (UNKNOWN, 0.1, 1), (SCRIPTED, 0.05, 2),
     (UNKNOWN, 0.03, 4), (UNKNOWN, 0.001, 8), (UNKNOWN, 0.0, 1)],
)  # fmt: skip
def test_a_neural_sde_replans_before_it_has_moved_far_unless_demonstrators_commit_themselves(
    statistics, movement, chunk
):
    moving = replace(statistics, rate_hz=30.0, robot_movement=movement)
    assert get_method("neural_sde").auto_preset(moving).chunk == chunk


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_has_the_preset(method):
    preset = get_method(method).auto_preset(HUMAN)
    longest = preset.model.longest_chunk
    assert preset.chunk == (16 if longest is None else min(16, longest))


@pytest.fixture(scope="module")
def circles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 20 episodes on a circle."""
    turns = np.linspace(0, 4, 60, dtype=np.float32) + np.arange(20)[:, None]
    circles = np.stack([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
    demos = join_episodes((Episode(circle[:-1], circle[1:]) for circle in circles), rate_hz=20)
    return write_arm_store(tmp_path_factory.mktemp("demos") / "circles.zarr", demos)


def test_the_log_shows_the_settings_with_those_of_flags(caplog, circles):
    settings = {"train.steps": 500, "model.sampling.alpha": 0.5}
    with caplog.at_level(logging.INFO):
        Train(demos=circles, task="none", settings=settings).resolve()
    lines = [record.message for record in caplog.records]
    assert any(line.endswith(", without branches or a common goal") for line in lines)
    (line,) = [line for line in lines if line.startswith("settings: ")]
    assert line.startswith("settings: train.steps 500, chunk 2, model.network.width 256, ")
    assert line.endswith("model.noise 0.7, model.sampling.diffusion 0, model.sampling.alpha 0.5")


def test_held_out_episodes_do_not_change_the_settings(circles, tmp_path):
    demos = load_demonstrations(find_demos("avoiding")).take(20)
    twenty = write_arm_store(tmp_path / "avoiding.zarr", demos)
    for store, fraction in ((circles, 0.5), (twenty, 0.2)):
        whole, held_out = (
            Train(demos=store, task="none", validation=each).resolve().config for each in (0.0, fraction)
        )
        assert whole == held_out


def assert_steady(path: Path) -> None:
    """Require the same settings for 19 of 20 random subsets of 15 of the first 20 episodes."""
    script = runpy.run_path(str(ROOT / "benchmarks/auto_choice.py"), run_name="auto_choice")
    task, demos = script["load_first"](path, 20)
    choices = script["count_choices"](task, demos, 15, 20)
    assert choices.total() == 20
    assert choices.most_common(1)[0][1] >= 19, [
        (count, script["describe"](each)) for each, count in choices.items()
    ]


@pytest.mark.parametrize("task", ["avoiding", "avoiding_varied", "pusht"])
def test_random_subsets_of_episodes_get_the_same_settings(task):
    assert_steady(find_demos(task))


@pytest.mark.parametrize(
    "store", ["pusht_cchi_v7_replay", "adroit_door_human", "adroit_pen_expert", "g1_real"]
)
def test_random_subsets_of_recordings_of_other_tasks_get_the_same_settings(store, shared_demos):
    assert_steady(shared_demos / f"{store}.zarr")
