"""Tests for protocol.py: what is sent arrives to the bit, and nothing else is believed."""

import contextlib
import json
import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nsde_policy.deploy.protocol import (
    MAX_MESSAGE,
    MAX_SEED,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    check_plan,
    decode,
    decode_answer,
    encode,
)
from nsde_policy.errors import ProtocolError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, PolicySpec

SPEC = PolicySpec(
    obs_dim=2,
    act_dim=1,
    history=2,
    chunk=8,
    longest_chunk=16,
    first_action_from=(1,),
    circular=(0,),
    low=(0.1, -1 / 3, 1e-17),
    high=(1.0, 2.0, 3.0),
    increment_std=(0.1, 0.2, 0.3),
)
CALIBRATION = Calibration(
    rate_hz=10.0,
    step=(0.1,),
    acceleration=(1 / 3,),
    mean=(0.1, 0.2, 0.3, 1e-17),
    precision=((1.5, 0.0, -0.25, 0.0),) * 4,
    threshold=4.5,
)
WELCOME = Welcome(1, "0.1.0", SPEC, CALIBRATION, max_message=65_536, max_steps=16, deadline_s=1.0)
REQUEST = PlanRequest(id=1, states=np.ones((2, 3), np.float32), steps=8, seed=3, deadline_s=0.5)
TWO = struct.pack("<2d", 1.0, 2.0)
KINDS = (Hello, Welcome, PlanRequest, PlanReply)

ids = st.integers(0, MAX_SEED)
finite = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=np.dtype(dtype).itemsize * 8),
    )
)


@given(ids, finite, st.integers(1, 1000), ids, st.floats(1e-6, 1e6))
def test_a_request_arrives_to_the_bit(number, states, steps, seed, deadline_s):
    sent = PlanRequest(number, states, steps, seed, deadline_s)
    got = decode(encode(sent), PlanRequest)
    assert (got.id, got.steps, got.seed, got.deadline_s) == (number, steps, seed, deadline_s)
    assert got.states.dtype == states.dtype
    assert got.states.tobytes() == states.tobytes()
    assert got.states.flags.writeable


@given(ids, finite, st.none() | finite, st.none() | finite)
def test_a_plan_arrives_to_the_bit(number, actions, states, std):
    got = decode_answer(encode(PlanReply(number, actions, states, std)), PlanReply)
    assert isinstance(got, PlanReply)
    assert got.actions.tobytes() == actions.tobytes()
    for sent, found in ((states, got.states), (std, got.std)):
        assert (found is None) == (sent is None)
        assert sent is None or found.tobytes() == sent.tobytes()


def test_a_greeting_carries_the_whole_spec_and_calibration():
    assert decode(encode(WELCOME), Welcome) == WELCOME
    assert decode(encode(Hello(1, "0.1.0")), Hello) == Hello(1, "0.1.0")
    refusal = Refusal(None, "late", "too late")
    assert decode_answer(encode(refusal), PlanReply) == refusal


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(KINDS))
def test_bytes_that_are_no_message_raise_the_typed_error_alone(data, kind):
    for read in (decode, decode_answer):
        with pytest.raises(ProtocolError):
            read(data, kind)


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-5, 5), inner),
    max_leaves=12,
)
MESSAGES = {
    "hello": encode(Hello(1, "0.1.0")),
    "welcome": encode(WELCOME),
    "plan": encode(REQUEST),
    "planned": encode(PlanReply(1, np.ones((2, 1)), np.ones((3, 3)), np.ones((2, 1)))),
    "refusal": encode(Refusal(1, "late", "too late")),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_a_message_with_one_field_of_another_kind_is_refused_or_is_that_message(name, data):
    """Near misses: every field that was replaced must be looked at, at every depth."""
    values = msgpack.unpackb(MESSAGES[name])
    field = data.draw(st.sampled_from(sorted(values)))
    inside = values[field]
    if isinstance(inside, dict) and data.draw(st.booleans()):
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(trees)
    else:
        values[field] = data.draw(trees)
    packed = msgpack.packb(values)
    for kind in KINDS:
        try:
            message = decode_answer(packed, kind)
        except ProtocolError:
            continue
        assert decode_answer(encode(message), kind) is not None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_flipped_and_missing_bytes_raise_the_typed_error_alone(name, data):
    damaged = bytearray(MESSAGES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for kind in KINDS:
        with contextlib.suppress(ProtocolError):
            decode_answer(cut, kind)


def changed(**fields: Any) -> bytes:
    return msgpack.packb({**msgpack.unpackb(MESSAGES["plan"]), **fields})


def array(dtype: Any = "f8", shape: Any = (1, 2), data: Any = TWO) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "a message is bytes, got str"),
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (MESSAGES["plan"] + b"\x00", "not msgpack"),
        (MESSAGES["plan"][:-1], "not msgpack"),
        (msgpack.packb([1, 2]), "a message is a map, got list"),
        (MESSAGES["hello"], "expected a message of kind 'plan'"),
        (changed(more=1), "no more and no less"),
        (msgpack.packb({"kind": "plan"}), "no more and no less"),
        (changed(steps=0), "steps must be a whole number from 1"),
        (changed(steps=True), "steps must be a whole number"),
        (changed(steps=2.0), "steps must be a whole number"),
        (changed(seed=-1), "seed must be a whole number from 0"),
        (changed(seed=2**63), "seed must be a whole number"),
        (changed(deadline_s=float("nan")), "deadline_s must be a positive"),
        (changed(deadline_s=float("inf")), "deadline_s must be a positive"),
        (changed(deadline_s=1), "deadline_s must be a positive"),
        (changed(states=[[1.0, 2.0]]), "states must be an array"),
        (changed(states=array(dtype="O")), "dtype must be one of f4, f8"),
        (changed(states=array(dtype=[1])), "dtype must be one of f4, f8"),
        (changed(states=array(shape=[2])), "two positive whole numbers"),
        (changed(states=array(shape=[0, 2], data=b"")), "two positive whole numbers"),
        (changed(states=array(shape=[-1, -2])), "two positive whole numbers"),
        (changed(states=array(shape=[2**40, 2**40])), "as many bytes as its shape says"),
        (changed(states=array(data="1234567890123456")), "as many bytes as its shape says"),
        (changed(states=array(data=struct.pack("<2d", 1.0, float("nan")))), "states must be finite"),
        (changed(states=array(data=struct.pack("<2d", 1.0, -float("inf")))), "states must be finite"),
        (changed(states=msgpack.ExtType(5, b"1234")), "not msgpack"),
        (changed(states=msgpack.Timestamp(1)), "not msgpack"),
        (b"\x82\xa4kind\xa4plan\xa4kind\xa4plan", "not msgpack"),
        (b"\x91" * 60_000, "not msgpack"),
        (b"\xdd\xff\xff\xff\xff" + b"\x00" * 100, "not msgpack"),
        (b"\x00" * (MAX_MESSAGE + 1), "at most 65536 bytes, got 65537"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(data, message):
    with pytest.raises(ProtocolError, match=message):
        decode(data, PlanRequest)


def test_no_room_is_made_for_what_is_only_announced():
    """Lists that announce 65 000 members each, one inside the other, would take half a gigabyte."""
    bomb = b"\xdc\xff\xff" * 21_000
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(bomb, PlanRequest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"obs_dim": 0},
        {"low": (0.0,)},
        {"high": (1.0, 2.0, float("inf"))},
        {"first_action_from": (7,)},
        {"circular": (-1,)},
        {"longest_chunk": -1},
        {"history": 10**30, "chunk": 0},
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(change):
    values = msgpack.unpackb(MESSAGES["welcome"])
    values["spec"] = json.dumps(SPEC.to_dict() | change)
    with pytest.raises(ProtocolError, match="spec is not that of a policy"):
        decode(msgpack.packb(values), Welcome)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "[]",
        "{}",
        "[" * 50_000,
        '{"obs_dim": "two"}',
        '{"obs": 1}',
        '{"obs_dim": ' + "1" * 5000 + "}",
        '{"low": [1' + "0" * 400 + "]}",
    ],
    ids=range(8),
)
@pytest.mark.parametrize("field", ["spec", "calibration"])
def test_a_spec_or_a_calibration_that_is_none_is_refused(field, spec):
    values = msgpack.unpackb(MESSAGES["welcome"]) | {field: spec}
    with pytest.raises(ProtocolError, match=f"{field} is not that of a policy"):
        decode(msgpack.packb(values), Welcome)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(np.zeros((3, 1))), r"actions have shape \(3, 1\), expected \(2, 1\)"),
        (Plan(np.zeros((2, 1)), np.zeros((2, 3))), r"states have shape \(2, 3\), expected \(3, 3\)"),
        (Plan(np.full((2, 1), np.nan)), "actions are not finite"),
        (Plan(np.zeros((2, 1)), np.full((3, 3), np.inf)), "states are not finite"),
        (Plan(np.zeros((2, 1)), std=np.zeros((3, 1))), r"std have shape \(3, 1\), expected \(2, 1\)"),
        (Plan(np.zeros((2, 1)), std=np.full((2, 1), np.inf)), "std are not finite"),
    ],
)
def test_a_plan_that_was_not_asked_for_is_refused(plan, message):
    with pytest.raises(ProtocolError, match=message):
        check_plan(plan, SPEC, 2)
