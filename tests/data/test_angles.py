"""Tests for data/angles.py."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.data import unwrap_angles


@given(st.lists(st.floats(-3.1, 3.1), min_size=1, max_size=30), st.data())
def test_unwrapping_inverts_wrapping_and_keeps_the_anchor(turns: list[float], data: st.DataObject) -> None:
    true = np.cumsum([0.3, *turns])
    wrapped = np.stack([true % math.tau, true], axis=1).astype(np.float32)
    anchor = data.draw(st.integers(0, len(true) - 1))

    path = unwrap_angles(wrapped, (0,), anchor=anchor)

    np.testing.assert_allclose(np.diff(path[:, 0]), turns, atol=1e-4)
    assert path[anchor, 0] == wrapped[anchor, 0]
    np.testing.assert_array_equal(path[:, 1], wrapped[:, 1])
