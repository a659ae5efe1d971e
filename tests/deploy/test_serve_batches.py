"""Tests of batched serving: bits, turns, deadlines and failing rows, over real websockets."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from websockets.sync.client import ClientConnection

from nsde_policy.core.spec import CameraSpec
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.deploy.protocol import Array, EncodeRequest, PlanReply, Refusal, encode, pack_frame
from nsde_policy.interface.planner import Plan
from nsde_policy.policy.policy import Policy
from tests.helpers.exported_policies import build_camera_policy, observe_robot
from tests.helpers.policy_servers import (
    SPEC,
    STATES,
    BatchPlanner,
    LinearPlanner,
    RunningServer,
    encode_request,
    receive_reply,
    serve_in_thread,
)
from tests.helpers.server_threads import wait_until

FIRST = 99
"""Seed of the request during which the others wait."""


class Crowd:
    """Clients of a server whose planner is busy with the request of another client."""

    def __init__(self, running: RunningServer, planner: BatchPlanner, lines: list[ClientConnection]) -> None:
        self.running, self.planner, self.lines = running, planner, lines
        self.go = threading.Event()
        self._others, planner.before = planner.before, self._wait

    def _wait(self, seed: int) -> Plan | None:
        if seed == FIRST:
            self.go.wait(10)
        return self._others(seed)

    def keep_busy(self) -> None:
        self.lines[0].send(encode_request(seed=FIRST, deadline_s=20.0))
        wait_until(lambda: FIRST in self.planner.seeds, "the planner is busy")

    def ask(self, client: int, *, waiting: int, **changes: float) -> None:
        """Send a request whose seed is the number of the client, and wait until it is in the queue."""
        self.lines[client].send(encode_request(**{"seed": client, "deadline_s": 20.0, **changes}))
        wait_until(lambda: self.running.server._in_flight == waiting + 1, "the request waits")


@contextmanager
def gather(planner: BatchPlanner, clients: int) -> Iterator[Crowd]:
    with serve_in_thread(planner, deadline_s=20.0) as running, ExitStack() as stack:
        lines = [stack.enter_context(running.connect_and_greet()) for _ in range(clients + 1)]
        crowd = Crowd(running, planner, lines)
        crowd.keep_busy()
        yield crowd


def find_seed(reply: PlanReply | Refusal) -> int:
    """Return the seed, up to `FIRST`, of the request that a plan answers."""
    actions = read_actions(reply)
    plans = (LinearPlanner().plan_from(STATES, steps=4, seed=seed).actions for seed in range(FIRST + 1))
    return next(seed for seed, plan in enumerate(plans) if np.array_equal(plan, actions))


def read_actions(reply: PlanReply | Refusal) -> np.ndarray:
    assert isinstance(reply, PlanReply), reply
    return reply.unpack().actions


def test_what_waits_is_one_batch_and_each_client_gets_its_own_plan():
    with gather(BatchPlanner(), clients=5) as crowd:
        for client in range(1, 6):
            crowd.ask(client, waiting=client)
        crowd.go.set()
        assert [find_seed(receive_reply(line)) for line in crowd.lines] == [FIRST, 1, 2, 3, 4, 5]
        assert crowd.planner.batches == [[FIRST], [1, 2, 3, 4, 5]]
    assert crowd.running.find_events("stopped: 2 batches, 6 planned")


def test_plans_of_another_length_are_another_batch_and_a_limit_splits_batches():
    planner = BatchPlanner()
    planner.largest_batch = 2
    with gather(planner, clients=5) as crowd:
        for client, steps in enumerate((4, 4, 6, 4, 6), start=1):
            crowd.ask(client, waiting=client, steps=steps)
        crowd.go.set()
        lengths = [len(read_actions(receive_reply(line))) for line in crowd.lines]
    assert lengths == [4, 4, 4, 6, 4, 6]
    assert planner.batches == [[FIRST], [1, 2], [3, 5], [4]]


def test_client_that_asks_without_pause_has_one_row_per_batch():
    planner = BatchPlanner()
    with gather(planner, clients=3) as crowd:
        for number in (7, 8, 9):
            crowd.lines[0].send(encode_request(seed=number, deadline_s=20.0))
        for client in (1, 2, 3):
            crowd.ask(client, waiting=client)
        crowd.go.set()
        assert [find_seed(receive_reply(line)) for line in crowd.lines[1:]] == [1, 2, 3]
        assert [find_seed(receive_reply(crowd.lines[0])) for _ in range(4)] == [FIRST, 7, 8, 9]
    assert planner.batches[0] == [FIRST]
    assert planner.batches[1][:3] == [1, 2, 3]
    assert [sorted({7, 8, 9} & {*batch}) for batch in planner.batches[-3:]] == [[7], [8], [9]]


@pytest.mark.parametrize("failure", [ValueError("x"), SystemExit(3), Plan(np.full((4, 2), np.nan))], ids=repr)
def test_one_failing_row_does_not_fail_the_others(failure: BaseException | Plan):
    def fail(seed: int) -> Plan | None:
        if seed == 2 and isinstance(failure, BaseException):
            raise failure
        return failure if seed == 2 else None

    with gather(BatchPlanner(fail), clients=3) as crowd:
        for client in (1, 2, 3):
            crowd.ask(client, waiting=client)
        crowd.go.set()
        refusal = receive_reply(crowd.lines[2])
        assert isinstance(refusal, Refusal)
        assert refusal.code == "failed"
        assert [find_seed(receive_reply(crowd.lines[client])) for client in (1, 3)] == [1, 3]
        assert len(crowd.running.find_events("the policy failed")) == 1
    alone = [[1], [2], [3]] if isinstance(failure, BaseException) else []  # a plan is checked by itself
    assert crowd.planner.batches == [[FIRST], [1, 2, 3], *alone]


class MiscountingPlanner(BatchPlanner):
    """A planner with a camera that returns a row more than it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(SPEC, image_features=1, cameras=(CameraSpec("top", 4, 4),), encoder="keypoints")

    def plan_rows(self, states, *, steps, seeds, candidates=None):  # type: ignore[no-untyped-def, override]
        return 2 * super().plan_rows(states, steps=steps, seeds=seeds)

    def encode_frames(self, values, frames):  # type: ignore[no-untyped-def, override]
        return np.zeros((len(values) + 1, 1)), np.zeros(len(values) + 1)


def test_a_planner_that_returns_another_number_of_rows_fails_each_request_alone():
    frame = pack_frame(np.zeros((4, 4, 3), np.uint8))
    observed = encode(EncodeRequest(Array.pack(np.zeros((1, 2))), (frame,), 5.0))
    with serve_in_thread(MiscountingPlanner()) as running, running.connect_and_greet() as line:
        for request in (encode_request(), observed, encode_request()):
            line.send(request)
            refusal = receive_reply(line)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "failed"


def test_row_is_the_plan_of_its_seed_up_to_rounding():
    shipped = Policy.from_pretrained()
    spec = shipped.spec
    states = np.random.default_rng(0).uniform(spec.low, spec.high, (6, spec.history, spec.dim))
    states[::3, :, 2:5] = [256.0, 256.0, np.pi / 4]  # close to the goal
    states = [*states.astype(np.float32)]
    for size in (1, 4, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Policy, "largest_batch", size)
            rows = shipped.plan_rows(states, steps=10, seeds=range(6))
        for seed, (row, given) in enumerate(zip(rows, states, strict=True)):
            alone = shipped.plan_from(given, steps=10, seed=seed)
            assert row.actions == pytest.approx(alone.actions, rel=1e-3)
            assert row.std == pytest.approx(alone.std, rel=1e-3)
        assert {plan.candidates is None for plan in rows} == {False, True}, "some plans are compared"


def test_frames_are_encoded_together_where_any_number_of_rows_is(monkeypatch: pytest.MonkeyPatch):
    policy = build_camera_policy("top", "wrist", anchors=2)
    rows = [observe_robot(policy, seed) for seed in range(8)]
    wanted = [policy.encode(row) for row in rows]
    counts = list[int]()
    encode = Policy.encode_frames
    monkeypatch.setattr(Policy, "largest_batch", None)  # as on a GPU
    monkeypatch.setattr(
        Policy,
        "encode_frames",
        lambda self, values, frames: counts.append(len(values)) or encode(self, values, frames),
    )

    def ask(url: str, robot: int) -> bool:
        with RemotePolicy.connect(url, deadline_s=60, timeout_s=60) as remote:
            found = [remote.encode(rows[robot]) for _ in range(10)]
        return bool(np.allclose(found, wanted[robot], atol=1e-5))

    with (
        serve_in_thread(policy, deadline_s=60.0, longest_plan=4) as running,
        ThreadPoolExecutor(8) as threads,
    ):
        assert all(threads.map(ask, [running.url] * 8, range(8)))
    assert sum(counts) == 80
    assert max(counts) > 1


class SelectingPlanner(BatchPlanner):
    """A planner that compares up to 16 plans."""

    candidates = 16

    def plan_rows(self, states, *, steps, seeds, candidates=None):  # type: ignore[no-untyped-def, override]
        plans = super().plan_rows(states, steps=steps, seeds=seeds)
        return [plan._replace(candidates=np.stack([plan.states] * candidates)) for plan in plans]


def test_clients_choose_how_many_plans_are_compared_as_they_do_of_a_local_policy():
    with (
        serve_in_thread(SelectingPlanner()) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
    ):
        assert policy.candidates == 16
        for count, expected in ((None, 16), (4, 4), (1000, 16)):
            plan = policy.plan_from(STATES, steps=4, seed=0, candidates=count)
            assert len(plan.candidates) == expected


def test_deadlines_that_one_client_misses_do_not_change_the_plans_of_others():
    with (
        serve_in_thread(SelectingPlanner(lambda seed: time.sleep(0.02))) as running,
        RemotePolicy.connect(running.url, deadline_s=5, timeout_s=10) as policy,
        running.connect_and_greet() as hurried,
    ):
        for _ in range(5):
            hurried.send(encode_request(deadline_s=0.004, candidates=16))
            assert isinstance(receive_reply(hurried), Refusal)
            assert len(policy.plan_from(STATES, steps=4, seed=0).candidates) == 16
