"""Tests for nsde_policy/viewer/messages.py and controls.py."""

import math
import re

import pytest

from nsde_policy.errors import RemoteError
from nsde_policy.viewer.controls import RANGES, Controls
from nsde_policy.viewer.messages import parse_message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 5000, "`object`, got `array`"),
        ("{}", "missing required field `do`"),
        ('{"do": "jump"}', "'jump'"),
        ('{"do": "reset", "seed": -1}', "`int` >= 0 - at `$.seed`"),
        ('{"do": "reset", "seed": 4294967296}', "`int` <= 4294967295"),
        ('{"do": "release", "twice": true}', "twice"),
        ('{"do": "move_agent", "x": NaN, "y": 0}', "malformed"),
        ('{"do": "move_agent", "x": 1e5, "y": 0}', "<= 10000.0 - at `$.x`"),
        ('{"do": "select_methods", "methods": ["a", "b", "c"]}', "length <= 2"),
    ],
)
def test_invalid_messages_raise_an_error_that_says_why(text, expected):
    with pytest.raises(RemoteError, match=re.escape(expected)):
        parse_message(text)


@pytest.mark.parametrize("name", list(RANGES))
def test_controls_keep_their_type_and_range(name):
    low, high, _ = RANGES[name]
    for value in (low, high):
        changed = Controls().with_value(name, float(value))
        assert getattr(changed, name) == value
        assert type(getattr(changed, name)) is type(getattr(Controls(), name))
    for value in (low - 1, high + 1, math.nan, math.inf):
        with pytest.raises(RemoteError, match=name):
            Controls().with_value(name, value)
