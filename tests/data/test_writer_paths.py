"""Tests of where `DemoWriter` may write: never behind a link inside the store."""

from pathlib import Path

import pytest

from nsde_policy.data import DemoWriter, load_demonstrations
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import read_files
from tests.helpers.numbered_episodes import make_episode


def record(path: Path, number: int = 0, **options: bool) -> None:
    with DemoWriter(path, **options) as writer:
        writer.append(make_episode(number))


@pytest.mark.parametrize("linked", ["data", "meta", "data/other", "meta/episode_ends"])
def test_nothing_behind_a_link_is_changed(tmp_path: Path, linked: str) -> None:
    path, outside = tmp_path / "demos.zarr", tmp_path / "outside"
    record(path)
    if (path / linked).exists():
        (path / linked).rename(outside)
    (outside / "photos").mkdir(parents=True)
    (outside / "photos/holiday.jpg").write_text("sun")
    (outside / "photos/film.partial").write_text("half")
    (path / linked).symlink_to(outside)
    before = read_files(outside)
    for resume in (False, True):
        with pytest.raises(DemoError, match=f"{linked} is a link; recording needs real folders"):
            record(path, 1, resume=resume)
    assert read_files(outside) == before


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "demos.zarr").symlink_to(tmp_path / "disk")
    record(tmp_path / "demos.zarr")
    assert len(load_demonstrations(tmp_path / "disk")) == 1
