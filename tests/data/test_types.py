"""Tests for data/types.py."""

from typing import Any

import numpy as np
import pytest

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.errors import DemoError
from tests.helpers.episodes import join_episodes


def make_demos(**change: Any) -> Demonstrations:
    fields: dict[str, Any] = {
        "obs": np.arange(24, dtype=np.float32).reshape(8, 3),
        "act": np.arange(16, dtype=np.float32).reshape(8, 2),
        "episode_ends": np.array([3, 8]),
    }
    return Demonstrations(**{**fields, **change})


def test_episodes_are_read_only_views() -> None:
    demos = join_episodes(make_demos(), angles=(2,))
    assert [len(e) for e in demos] == demos.lengths.tolist() == [3, 5]
    assert np.shares_memory(demos[1].obs, demos.obs)
    np.testing.assert_array_equal(demos[-1].act, demos.act[3:])
    for array in (demos.obs, demos.act, demos.episode_ends, demos[0].obs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(IndexError):
        demos[2]
    own = np.zeros((4, 1), np.float32)
    Episode(obs=own, act=own)
    own[0] = 1  # the array of the caller stays writable


def test_fingerprint_depends_on_numbers_ends_and_angles_only() -> None:
    first = make_demos()
    assert first.fingerprint == make_demos(rate_hz=10, source="elsewhere").fingerprint
    changed = first.obs.copy()
    changed[7, 2] += 1
    others = [make_demos(obs=changed), make_demos(episode_ends=np.array([4, 8])), make_demos(angles=(2,))]
    assert len({first.fingerprint, *(o.fingerprint for o in others)}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"act": np.zeros((7, 2))}, "obs 8, act 7"),
        ({"obs": np.zeros((8, 0))}, r"shape \(8, 0\)"),
        ({"obs": np.zeros((8, 3), complex)}, "complex128"),
        ({"obs": np.full((8, 3), np.nan)}, r"nan in obs\[0\] at frame 0 \(episode 0, step 0\)"),
        ({"act": np.full((8, 2), 1e30)}, r"1e\+30 in act\[0\] .*, 16 values in total are not within ±1e\+18"),
        ({"act": np.full((8, 2), -2e18)}, "not within"),
        ({"act": np.full((8, 2), 1e39)}, r"inf in act\[0\]"),
        ({"episode_ends": np.array([], int)}, "at least 1 episode"),
        ({"episode_ends": np.array([3, 9])}, "ends at frame 9 of 8"),
        ({"angles": (-1,)}, "columns 0 to 2"),
        ({"act_angles": (2,)}, "act has columns 0 to 1"),
        ({"rate_hz": "fast"}, "rate_hz"),
        ({"rate_hz": 10**400}, "rate_hz"),
    ],
)
def test_invalid_fields_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DemoError, match=message):
        make_demos(**change)


def test_invalid_episodes_are_rejected() -> None:
    with pytest.raises(DemoError, match="too short"):
        Episode(obs=np.zeros((1, 2)), act=np.zeros((1, 2)))
