"""Tests for deploy/protocol.py: exact round trips, and rejection of everything else."""

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nsde_policy.bounds import MAX_INTEGER
from nsde_policy.deploy.protocol import (
    Array,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    decode,
    encode,
)
from nsde_policy.errors import RemoteError
from nsde_policy.interface.planner import Plan
from tests.helpers.policy_servers import SPEC, WELCOME, encode_request

TWO = struct.pack("<2d", 1.0, 2.0)

finite = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=np.dtype(dtype).itemsize * 8),
    )
)


@given(finite, st.integers(1, 1000), st.integers(0, MAX_INTEGER), st.floats(1e-6, 1e6))
def test_request_round_trip_is_exact(states, steps, seed, deadline_s):
    sent = PlanRequest(Array.pack(states), steps, seed, 1, deadline_s)
    got = decode(encode(sent), PlanRequest)
    assert (got.steps, got.seed, got.deadline_s) == (steps, seed, deadline_s)
    found = got.states.unpack()
    assert found.dtype == states.dtype
    assert found.tobytes() == states.tobytes()
    assert found.flags.writeable


@given(finite, st.none() | finite, st.none() | finite, st.none() | st.integers(1, 5))
def test_plan_round_trip_is_exact(actions, states, std, count):
    compared = None if count is None else np.ones((count, len(actions) + 1, 3)).cumsum(axis=0)
    plan = Plan(actions, states, std, compared)
    got = decode(encode(PlanReply.pack(plan)), PlanReply | Refusal).unpack()
    for sent, found in zip(plan, got, strict=True):
        assert (found is None) == (sent is None)
        assert sent is None or (found.shape, found.tobytes()) == (sent.shape, sent.tobytes())


def changed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_request()), **fields})


def array(shape: Any = (1, 2), data: Any = TWO) -> dict[str, Any]:
    return {"dtype": "f8", "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "type str, expected bytes"),
        (b"", "truncated"),
        (encode(Hello(1, "0.1.0")), r"Invalid value 'hello' - at `\$.kind`"),
        (changed(steps=0), r"Expected `int` >= 1 - at `\$.steps`"),
        (changed(deadline_s=float("nan")), r"> 0.0 - at `\$.deadline_s`"),
        (changed(states=array(shape=[2**40, 2**40])), "data has 16 bytes, expected"),
        (changed(states=array(data=struct.pack("<2d", 1.0, -np.inf))), r"must be finite - at `\$.states`"),
    ],
)
def test_invalid_request_error_names_the_problem(data, message):
    with pytest.raises(RemoteError, match=message):
        decode(data, PlanRequest)


@pytest.mark.parametrize("text", ["", "[]", "[" * 50_000, json.dumps(SPEC.to_dict() | {"obs_dim": 0})])
@pytest.mark.parametrize("field", ["spec", "calibration"])
def test_invalid_spec_or_calibration_is_rejected(field, text):
    with pytest.raises(RemoteError, match="the server's greeting is not valid"):
        msgspec.structs.replace(WELCOME, **{field: text}).parse()
