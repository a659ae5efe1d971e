"""Tests of where `DemoWriter` may write: existing recordings, and stores with links inside."""

from pathlib import Path

import pytest

from nsde_policy.data import DemoWriter, load_demonstrations
from nsde_policy.errors import DemoError
from nsde_policy.files import replace_file
from tests.helpers.demo_stores import read_files
from tests.helpers.numbered_episodes import make_episode


def record(path: Path, number: int = 0, **options: bool) -> None:
    with DemoWriter(path, **options) as writer:
        writer.append(make_episode(number))


def test_a_script_that_runs_twice_does_not_double_its_episodes(tmp_path: Path) -> None:
    path = tmp_path / "demos.zarr"
    DemoWriter(path).close()
    record(path)  # a recording without episodes is started again
    before = read_files(path)
    with pytest.raises(DemoError, match=r"already holds episodes; append .* resume=True, or choose a new"):
        record(path)
    assert read_files(path) == before
    record(path, 1, resume=True)
    assert len(load_demonstrations(path)) == 2


def test_a_recording_that_was_killed_in_its_first_episode_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(target: Path, content: bytes) -> None:
        if len(list(tmp_path.rglob("0.0"))) == 2:
            raise KeyboardInterrupt
        replace_file(target, content)

    path = tmp_path / "demos.zarr"
    with monkeypatch.context() as patch:
        patch.setattr("nsde_policy.data.zarr_store.writer.replace_file", crash)
        with pytest.raises(KeyboardInterrupt):
            record(path)
    record(path)
    assert len(load_demonstrations(path)) == 1


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("episodes", [0, 1])
@pytest.mark.parametrize("linked", ["data", "meta", "data/other", "meta/episode_ends"])
def test_nothing_behind_a_link_is_changed(tmp_path: Path, linked: str, episodes: int, resume: bool) -> None:
    path, outside = tmp_path / "demos.zarr", tmp_path / "outside"
    DemoWriter(path).close()
    if episodes:
        record(path)
    (path / linked).parent.mkdir(exist_ok=True)
    if (path / linked).exists():
        (path / linked).rename(outside)
    (outside / "photos").mkdir(parents=True)
    (outside / "photos/holiday.jpg").write_text("sun")
    (outside / "photos/film.partial").write_text("half")
    (path / linked).symlink_to(outside)
    before = read_files(outside)
    with pytest.raises(DemoError, match=f"{linked} is a link; recording needs real folders"):
        record(path, 1, resume=resume)
    assert read_files(outside) == before


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "demos.zarr").symlink_to(tmp_path / "disk")
    record(tmp_path / "demos.zarr")
    assert len(load_demonstrations(tmp_path / "disk")) == 1
