"""Tests for envs/pusht/geometry.py, with shapely as the oracle."""

import math

import numpy as np
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import affinity

from nsde_policy.envs.pusht import geometry

TEE = shapely.unary_union([shapely.box(*part) for part in geometry.PARTS])


def placed(pose):
    x, y, angle = pose
    turned = affinity.rotate(TEE, angle, origin=(0, 0), use_radians=True)
    return affinity.translate(turned, x, y)


def oracle(pose):
    return placed(pose).intersection(placed(geometry.GOAL_POSE)).area / TEE.area


def test_outline_is_the_union_of_both_parts():
    assert shapely.Polygon(geometry.OUTLINE).equals(TEE)
    assert TEE.area == geometry.AREA


def test_coverage_agrees_with_shapely_everywhere():
    rng = np.random.default_rng(0)
    random = np.column_stack([rng.uniform(100, 412, (2000, 2)), rng.uniform(-10, 10, 2000)])
    x, y, angle = geometry.GOAL_POSE
    parallel = [(x, y, angle + quarter * math.pi / 2) for quarter in range(5)]
    near = np.array(geometry.GOAL_POSE) + rng.normal(size=(1000, 3)) * [2.0, 2.0, 0.03]
    poses = [*near.tolist(), *random.tolist(), *parallel, (-200.0, 700.0, 1.0)]
    ours = np.array([geometry.coverage(p) for p in poses])
    theirs = np.array([oracle(p) for p in poses])
    assert np.abs(ours - theirs).max() < 1e-12
    assert (theirs > 0).mean() > 0.2  # or the test would compare zeros with zeros
    assert 0.1 < (theirs[:1000] > geometry.SUCCESS_COVERAGE).mean() < 0.9  # both sides of the threshold


@given(x=st.floats(-1e4, 1e4), y=st.floats(-1e4, 1e4), angle=st.floats(-100, 100))
def test_a_block_is_moved_inside_the_walls(x, y, angle):
    left, top, right, bottom = placed(geometry.move_inside((x, y, angle), 7.0, 504.0)).bounds
    assert min(left, top) > 7.0 - 1e-6
    assert max(right, bottom) < 504.0 + 1e-6
