"""Tests for nsde_policy/viewer/messages.py and controls.py."""

import contextlib
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.errors import RemoteError
from nsde_policy.viewer.controls import RANGES, Controls
from nsde_policy.viewer.messages import (
    ClientMessage,
    Drag,
    MoveAgent,
    Pause,
    Reset,
    SelectMethods,
    SetControl,
    Step,
    parse_message,
)

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = PLAIN | st.lists(PLAIN, max_size=3)
TAGS = st.sampled_from(
    [
        "pause",
        "reset",
        "scrub",
        "keep_episode",
        "set_control",
        "select_methods",
        "drag",
        "move_agent",
        "refresh",
        "x",
    ]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"do": "pause", "on": true}', Pause(True)),
        ('{"do": "step"}', Step()),
        ('{"do": "reset", "seed": 7}', Reset(7)),
        ('{"do": "set_control", "name": "alpha", "value": 1}', SetControl("alpha", 1.0)),
        ('{"do": "select_methods", "methods": ["a", "b"]}', SelectMethods(("a", "b"))),
        ('{"do": "drag", "panel": 0, "what": "block", "x": 1, "y": 2.5}', Drag(0, "block", 1.0, 2.5)),
        (b'{"do": "move_agent", "x": 3, "y": 4}', MoveAgent(3.0, 4.0)),
    ],
)
def test_valid_messages_are_parsed(text, expected):
    assert parse_message(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "truncated"),
        ("[" * 500, "`object`, got `array`"),
        ("[1]", "`object`, got `array`"),
        ('"step"', "`object`, got `str`"),
        ("{}", "missing required field `do`"),
        ('{"do": 3}', "do"),
        ('{"do": "refresh"}', "'refresh'"),
        ('{"do": "step", "more": ' + "[" * 5000, "`more`"),
        ('{"do": "reset", "seed": -1}', "`int` >= 0 - at `$.seed`"),
        ('{"do": "reset", "seed": 4294967296}', "`int` <= 4294967295"),
        ('{"do": "reset", "seed": 1.5}', "int"),
        ('{"do": "reset"}', "seed"),
        ('{"do": "step", "twice": true}', "twice"),
        ('{"do": "pause", "on": 1}', "bool"),
        ('{"do": "move_agent", "x": NaN, "y": 0}', "malformed"),
        ('{"do": "move_agent", "x": 1e999, "y": 0}', "out of range"),
        ('{"do": "move_agent", "x": 1e5, "y": 0}', "<= 10000.0 - at `$.x`"),
        ('{"do": "move_agent", "x": 1' + "0" * 400 + ', "y": 0}', "out of range"),
        ('{"do": "drag", "panel": 0, "what": "wall", "x": 1, "y": 2}', "'wall' - at `$.what`"),
        ('{"do": "select_methods", "methods": ["a", "b", "c"]}', "length <= 2"),
        ('{"do": "select_methods", "methods": []}', "length >= 1"),
        (
            '{"do": "set_control", "name": "gravity", "value": 1}',
            "unknown control 'gravity'; expected one of alpha",
        ),
        ('{"do": "set_control", "name": "__class__", "value": 1}', "unknown control"),
        ('{"do": "drag", "panel": -1, "what": "block", "x": 1, "y": 2}', ">= 0 - at `$.panel`"),
        ('{"do": "drag", "panel": 2, "what": "block", "x": 1, "y": 2}', "<= 1 - at `$.panel`"),
        (b"\xff\xfe\x00", "malformed"),
    ],
)
def test_invalid_messages_raise_an_error_that_says_why(text, expected):
    with pytest.raises(RemoteError, match=re.escape(expected)):
        parse_message(text)


FIELDS = st.sampled_from(["seed", "on", "x", "y", "panel", "what", "methods", "name"])


@given(st.dictionaries(FIELDS, VALUES, max_size=5), TAGS)
def test_any_json_object_is_parsed_or_raises_protocol_error(values, verb):
    with contextlib.suppress(RemoteError):  # anything else fails
        assert isinstance(parse_message(json.dumps({**values, "do": verb})), ClientMessage)


@given(st.binary(max_size=200))
def test_random_bytes_raise_protocol_error(data):
    with pytest.raises(RemoteError):
        parse_message(data)


def test_queue_key_differs_between_controls():
    assert (
        SetControl("alpha", 1).queue_key
        == SetControl("alpha", 2).queue_key
        != SetControl("speed", 1).queue_key
    )


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
