"""Tests for deploy/protocol.py: exact round trips, and rejection of everything else."""

import contextlib
import json
import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nsde_policy.deploy.protocol import (
    MAX_MESSAGE_BYTES,
    MAX_PLAN_SEED,
    Array,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    check_plan,
    decode,
    encode,
)
from nsde_policy.errors import RemoteError
from nsde_policy.planner.calibration import Calibration
from nsde_policy.planner.spec import Plan, PolicySpec

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
WELCOME = Welcome.build(
    SPEC, CALIBRATION, protocol=1, version="0.1.0", max_message=65_536, max_steps=16, deadline_s=1.0
)
REQUEST = PlanRequest(id=1, states=Array.pack(np.ones((2, 3), np.float32)), steps=8, seed=3, deadline_s=0.5)
TWO = struct.pack("<2d", 1.0, 2.0)
KINDS = (Hello, Welcome, PlanRequest, PlanReply)

ids = st.integers(0, MAX_PLAN_SEED)
finite = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=np.dtype(dtype).itemsize * 8),
    )
)


@given(ids, finite, st.integers(1, 1000), ids, st.floats(1e-6, 1e6))
def test_request_round_trip_is_exact(number, states, steps, seed, deadline_s):
    sent = PlanRequest(number, Array.pack(states), steps, seed, deadline_s)
    got = decode(encode(sent), PlanRequest)
    assert (got.id, got.steps, got.seed, got.deadline_s) == (number, steps, seed, deadline_s)
    found = got.states.unpack()
    assert found.dtype == states.dtype
    assert found.tobytes() == states.tobytes()
    assert found.flags.writeable


@given(ids, finite, st.none() | finite, st.none() | finite)
def test_plan_round_trip_is_exact(number, actions, states, std):
    reply = decode(encode(PlanReply.pack(number, Plan(actions, states, std))), PlanReply | Refusal)
    assert isinstance(reply, PlanReply)
    got = reply.unpack()
    assert got.actions.tobytes() == actions.tobytes()
    for sent, found in ((states, got.states), (std, got.std)):
        assert (found is None) == (sent is None)
        assert sent is None or found.tobytes() == sent.tobytes()


def test_greeting_holds_spec_and_calibration():
    assert decode(encode(WELCOME), Welcome) == WELCOME
    assert WELCOME.parse() == (SPEC, CALIBRATION)
    assert decode(encode(Hello(1, "0.1.0")), Hello) == Hello(1, "0.1.0")
    refusal = Refusal(None, "late", "too late")
    assert decode(encode(refusal), PlanReply | Refusal) == refusal


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(KINDS))
def test_random_bytes_raise_protocol_error(data, kind):
    for kinds in (kind, kind | Refusal):
        with pytest.raises(RemoteError):
            decode(data, kinds)


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-5, 5), inner),
    max_leaves=12,
)
MESSAGES = {
    "hello": encode(Hello(1, "0.1.0")),
    "welcome": encode(WELCOME),
    "plan": encode(REQUEST),
    "planned": encode(PlanReply.pack(1, Plan(np.ones((2, 1)), np.ones((3, 3)), np.ones((2, 1))))),
    "refusal": encode(Refusal(1, "late", "too late")),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_message_with_one_changed_field_is_rejected_or_valid(name, data):
    """Every changed field must be validated, at every depth."""
    values = msgspec.msgpack.decode(MESSAGES[name])
    field = data.draw(st.sampled_from(sorted(values)))
    inside = values[field]
    if isinstance(inside, dict) and data.draw(st.booleans()):
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(trees)
    else:
        values[field] = data.draw(trees)
    packed = msgspec.msgpack.encode(values)
    for kind in KINDS:
        try:
            message = decode(packed, kind | Refusal)
        except RemoteError:
            continue
        assert decode(encode(message), kind | Refusal) is not None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_damaged_messages_raise_only_protocol_error(name, data):
    damaged = bytearray(MESSAGES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for kind in KINDS:
        with contextlib.suppress(RemoteError):
            decode(cut, kind | Refusal)


def changed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(MESSAGES["plan"]), **fields})


def array(dtype: Any = "f8", shape: Any = (1, 2), data: Any = TWO) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "type str, expected bytes"),
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (MESSAGES["plan"] + b"\x00", "trailing"),
        (MESSAGES["plan"][:-1], "truncated"),
        (msgspec.msgpack.encode([1, 2]), "Expected `object`, got `array`"),
        (MESSAGES["hello"], r"Invalid value 'hello' - at `\$.kind`"),
        (changed(more=1), "unknown field `more`"),
        (msgspec.msgpack.encode({"kind": "plan"}), "missing required field `id`"),
        (changed(steps=0), r"Expected `int` >= 1 - at `\$.steps`"),
        (changed(steps=True), r"Expected `int`, got `bool` - at `\$.steps`"),
        (changed(steps=2.5), r"Expected `int`, got `float` - at `\$.steps`"),
        (changed(seed=-1), r"Expected `int` >= 0 - at `\$.seed`"),
        (changed(seed=2**63), r"Expected `int` <= 9223372036854775807 - at `\$.seed`"),
        (changed(deadline_s=float("nan")), r"> 0.0 - at `\$.deadline_s`"),
        (changed(deadline_s=float("inf")), r"<= 1000000000.0 - at `\$.deadline_s`"),
        (changed(deadline_s="1"), r"Expected `float`, got `str` - at `\$.deadline_s`"),
        (changed(states=[[1.0, 2.0]]), r"Expected `object`, got `array` - at `\$.states`"),
        (changed(states=array(dtype="O")), r"Invalid enum value 'O' - at `\$.states.dtype`"),
        (changed(states=array(dtype=[1])), r"got `array` - at `\$.states.dtype`"),
        (changed(states=array(shape=[2])), r"`array` of length 2.* at `\$.states.shape`"),
        (changed(states=array(shape=[0, 2], data=b"")), r"Expected `int` >= 1 - at `\$.states.shape"),
        (changed(states=array(shape=[-1, -2])), "Expected `int` >= 1"),
        (changed(states=array(shape=[2**40, 2**40])), "data has 16 bytes, expected"),
        (changed(states=array(data="1234567890123456")), "Expected `bytes`, got `str`"),
        (
            changed(states=array(data=struct.pack("<2d", 1.0, float("nan")))),
            r"must be finite - at `\$.states`",
        ),
        (
            changed(states=array(data=struct.pack("<2d", 1.0, -float("inf")))),
            r"must be finite - at `\$.states`",
        ),
        (changed(states=msgspec.msgpack.Ext(5, b"1234")), "got `ext`"),
        (b"\x91" * 60_000, "got `array`"),
        (b"\xdd\xff\xff\xff\xff" + b"\x00" * 100, "got `array`"),
        (b"\x00" * (MAX_MESSAGE_BYTES + 1), "has 65537 bytes, the limit is 65536"),
    ],
)
def test_invalid_request_error_names_the_problem(data, message):
    with pytest.raises(RemoteError, match=message):
        decode(data, PlanRequest)


def test_announced_sizes_are_not_allocated():
    """Nested lists that announce 65 000 members each would take half a gigabyte."""
    bomb = b"\xdc\xff\xff" * 21_000
    tracemalloc.start()
    for data in (bomb, b"\x82\xa4kind\xa4plan\xa6states" + bomb, b"\x82\xa4kind\xa4plan\xa4more" + bomb):
        with pytest.raises(RemoteError):
            decode(data, PlanRequest)
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
def test_contradictory_spec_is_rejected(change):
    values = msgspec.msgpack.decode(MESSAGES["welcome"])
    values["spec"] = json.dumps(SPEC.to_dict() | change)
    with pytest.raises(RemoteError, match="the server's greeting is not valid"):
        decode(msgspec.msgpack.encode(values), Welcome).parse()


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
def test_invalid_spec_or_calibration_is_rejected(field, spec):
    values = msgspec.msgpack.decode(MESSAGES["welcome"]) | {field: spec}
    with pytest.raises(RemoteError, match=r"greeting is not valid: .*(PolicySpec|Calibration)"):
        decode(msgspec.msgpack.encode(values), Welcome).parse()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(np.zeros((3, 1))), r"actions of the plan have shape \(3, 1\), expected \(2, 1\)"),
        (
            Plan(np.zeros((2, 1)), np.zeros((2, 3))),
            r"states of the plan have shape \(2, 3\), expected \(3, 3\)",
        ),
        (Plan(np.full((2, 1), np.nan)), "actions of the plan are not finite"),
        (Plan(np.zeros((2, 1)), np.full((3, 3), np.inf)), "states of the plan are not finite"),
        (
            Plan(np.zeros((2, 1)), std=np.zeros((3, 1))),
            r"std of the plan have shape \(3, 1\), expected \(2, 1\)",
        ),
        (Plan(np.zeros((2, 1)), std=np.full((2, 1), np.inf)), "std of the plan are not finite"),
    ],
)
def test_plan_with_wrong_shapes_or_values_is_rejected(plan, message):
    with pytest.raises(RemoteError, match=message):
        check_plan(plan, SPEC, 2)
