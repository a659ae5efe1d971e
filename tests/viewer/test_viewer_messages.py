"""Tests for nsde_policy/viewer/messages.py and controls.py."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.errors import ProtocolError
from nsde_policy.viewer.controls import RANGES, Controls
from nsde_policy.viewer.messages import Aim, Choose, Command, Hold, Pause, Reset, Set, Step, parse

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = PLAIN | st.lists(PLAIN, max_size=3)
VERBS = st.sampled_from(["pause", "reset", "scrub", "set", "choose", "hold", "aim", "greet", "keep", "x"])


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"do": "pause", "on": true}', Pause(True)),
        ('{"do": "step"}', Step()),
        ('{"do": "reset", "seed": 7}', Reset(7)),
        ('{"do": "set", "name": "alpha", "value": 1}', Set("alpha", 1.0)),
        ('{"do": "choose", "lanes": ["a", "b"]}', Choose(("a", "b"))),
        ('{"do": "hold", "lane": 0, "what": "block", "x": 1, "y": 2.5}', Hold(0, "block", 1.0, 2.5)),
        (b'{"do": "aim", "x": 3, "y": 4}', Aim(3.0, 4.0)),
    ],
)
def test_what_pages_say_is_understood(text, meant):
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON object"),
        ("[" * 500, "JSON object"),
        ("[1]", "JSON object"),
        ('"step"', "JSON object"),
        ('{"do": 3}', '"do"'),
        ('{"do": "greet"}', "can ask for"),
        ('{"do": "reset", "seed": -1}', "from 0 to"),
        ('{"do": "reset", "seed": 4294967296}', "from 0 to"),
        ('{"do": "reset", "seed": 1.5}', "int"),
        ('{"do": "reset"}', "seed"),
        ('{"do": "step", "twice": true}', "twice"),
        ('{"do": "pause", "on": 1}', "bool"),
        ('{"do": "aim", "x": NaN, "y": 0}', "NaN"),
        ('{"do": "aim", "x": 1e999, "y": 0}', "number of the table"),
        ('{"do": "aim", "x": 1' + "0" * 400 + ', "y": 0}', "too large"),
        ('{"do": "hold", "lane": 0, "what": "wall", "x": 1, "y": 2}', "one of"),
        ('{"do": "choose", "lanes": ["a", "b", "c"]}', "one method or two"),
        ('{"do": "choose", "lanes": []}', "one method or two"),
        ('{"do": "set", "name": "gravity", "value": 1}', "no control 'gravity'; there are: alpha, diffusion"),
        ('{"do": "set", "name": "__class__", "value": 1}', "no control"),
        ('{"do": "hold", "lane": -1, "what": "block", "x": 1, "y": 2}', "number -1"),
        ('{"do": "hold", "lane": 2, "what": "block", "x": 1, "y": 2}', "at most 2 tables"),
        (b"\xff\xfe\x00", "JSON object"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text, said):
    with pytest.raises(ProtocolError, match=said):
        parse(text)


FIELDS = st.sampled_from(["seed", "on", "x", "y", "lane", "what", "lanes", "name"])


@given(st.dictionaries(FIELDS, VALUES, max_size=5), VERBS)
def test_nothing_a_page_sends_breaks_the_reader(values, verb):
    with contextlib.suppress(ProtocolError):  # anything else fails
        assert isinstance(parse(json.dumps({**values, "do": verb})), Command)


@given(st.binary(max_size=200))
def test_nor_do_bytes(data):
    with pytest.raises(ProtocolError):
        parse(data)


def test_of_two_sliders_both_count_and_of_two_turns_of_one_only_the_last():
    assert Set("alpha", 1).kind == Set("alpha", 2).kind != Set("speed", 1).kind


@pytest.mark.parametrize("name", list(RANGES))
def test_a_control_keeps_its_type_and_its_range(name):
    low, high, _ = RANGES[name]
    for value in (low, high):
        turned = Controls().turned(name, float(value))
        assert getattr(turned, name) == value
        assert type(getattr(turned, name)) is type(getattr(Controls(), name))
    for value in (low - 1, high + 1, math.nan, math.inf):
        with pytest.raises(ProtocolError, match=name):
            Controls().turned(name, value)
