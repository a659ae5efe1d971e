"""Tests for deploy/server/fair_queue.py: counts of plans per client, without threads or clocks."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from nsde_policy.core.pause import pause_point
from nsde_policy.deploy.server.fair_queue import ClientKey, FairQueue
from nsde_policy.inference.policy import Policy

CHUNK = 8
HERE, THERE = "127.0.0.1", "192.0.2.7"
ROBOT = ClientKey(HERE, 0)


class Clients:
    """Clients of one queue; `served` lists them in the order in which their plans began."""

    def __init__(self, credit: int = CHUNK) -> None:
        self.now, self.served = 0.0, list[ClientKey]()
        self.queue = FairQueue(credit, clock=lambda: self.now)

    def ask(self, client: ClientKey, cost: int = CHUNK, within: Callable[[], None] = lambda: None) -> None:
        def plan() -> None:
            self.served.append(client)
            within()

        self.queue.submit(client, plan, cost=cost, expires=self.now + 1.0)

    def serve_greedy(self, costs: dict[ClientKey, int], plans: int) -> None:
        """Serve clients that ask again as soon as they are served."""
        for client, cost in costs.items():
            self.ask(client, cost)
        for _ in range(plans):
            self.queue.run_next()
            self.ask(self.served[-1], costs[self.served[-1]])


def greedy(count: int, address: str = HERE) -> list[ClientKey]:
    return [ClientKey(address, number) for number in range(1, count + 1)]


def waits(served: Iterable[ClientKey], client: ClientKey) -> list[int]:
    """Return how many plans of others came before each plan of a client, since the one before."""
    found, count = [], 0
    for each in served:
        count = 0 if each == client else count + 1
        if each == client:
            found.append(count)
    return found


@pytest.mark.parametrize("cost", [CHUNK, 16 * CHUNK])
def test_client_below_its_share_waits_for_one_plan_of_greedy_clients(cost: int):
    clients, costs = Clients(), dict.fromkeys(greedy(4), cost)
    clients.serve_greedy(costs, 40)
    clients.ask(ROBOT)
    while ROBOT not in clients.served:  # a newcomer waits for its turn once
        clients.queue.run_next()
    later = []
    for _ in range(30):
        clients.serve_greedy(costs, 6)  # the robot asks once per six plans of the others: less than a fifth
        first = len(clients.served)
        clients.ask(ROBOT)
        clients.queue.run_next()
        later += clients.served[first:]
    assert later == [ROBOT] * 30


def test_shares_are_measured_in_cost():
    clients, (cheap, dear) = Clients(), greedy(2)
    clients.serve_greedy({cheap: 10, dear: 40}, 500)
    assert Counter(clients.served) == {cheap: 400, dear: 100}


def test_connections_of_one_address_divide_its_share():
    clients, crowd = Clients(), greedy(9, THERE)
    clients.serve_greedy(dict.fromkeys([ROBOT, *crowd], CHUNK), 900)
    counts = Counter(clients.served)
    assert counts[ROBOT] == pytest.approx(450, abs=2)
    assert all(counts[client] == pytest.approx(50, abs=2) for client in crowd)


@pytest.mark.parametrize("address", [HERE, THERE])
def test_reconnecting_gains_nothing(address: str):
    clients, costs = Clients(), dict.fromkeys(greedy(3), CHUNK)
    clients.serve_greedy(costs, 10)
    number, reconnecting = 100, ClientKey(address, 100)
    clients.ask(reconnecting)
    for _ in range(400):
        clients.queue.run_next()
        if clients.served[-1] == reconnecting:
            clients.queue.forget(reconnecting)
            number += 1
            reconnecting = ClientKey(address, number)
            clients.ask(reconnecting)
        else:
            clients.ask(clients.served[-1])
    share = sum(client.connection >= 100 for client in clients.served) / 400
    assert share <= (1 / 4 if address == HERE else 1 / 2) + 0.01


def test_pause_saves_up_no_more_than_the_credit():
    clients, costs = Clients(credit=CHUNK), dict.fromkeys(greedy(2), CHUNK)
    clients.serve_greedy(costs | {ROBOT: CHUNK}, 30)
    clients.queue.run_next()
    while ROBOT in clients.queue._waiting:
        clients.queue.run_next()
    clients.serve_greedy(costs, 300)  # the robot is away
    first = len(clients.served)
    clients.serve_greedy(costs | {ROBOT: CHUNK}, 12)
    assert clients.served[first:].count(ROBOT) <= 4 + 2


def test_stale_and_withdrawn_requests_are_not_planned():
    clients, (stale, cancelled, gone) = Clients(), greedy(3)
    late = clients.queue.submit(stale, lambda: 1, cost=1, expires=1.0)
    withdrawn = clients.queue.submit(cancelled, lambda: 2, cost=1, expires=9.0)
    left = clients.queue.submit(gone, lambda: 3, cost=1, expires=9.0)
    withdrawn.cancel()
    clients.queue.forget(gone)
    clients.now = 1.0
    clients.ask(ROBOT)
    for _ in range(4):
        clients.queue.run_next()
    assert clients.served == [ROBOT]
    assert late.cancelled()
    assert left.cancelled()
    assert not clients.queue._waiting


def test_errors_belong_to_the_request():
    queue = FairQueue(CHUNK)

    def fail() -> None:
        raise SystemExit(3)

    future = queue.submit(ROBOT, fail, cost=1, expires=float("inf"))
    queue.run_next()
    assert isinstance(future.exception(), SystemExit)


def test_urgent_request_runs_at_a_pause_point_and_equal_ones_wait():
    clients, (one, other) = Clients(), greedy(2)
    clients.ask(ROBOT)
    clients.queue.run_next()
    clients.serve_greedy({one: CHUNK, other: CHUNK}, 21)
    del clients.served[:]
    events = []

    def pause() -> None:
        events.append("begins")
        clients.ask(ROBOT, within=lambda: (events.append("robot"), pause_point()))
        pause_point()
        events.append("ends")

    clients.ask(one, within=pause)
    clients.ask(other, within=lambda: events.append("other"))
    for _ in range(3):
        clients.queue.run_next()
    assert events in (["begins", "robot", "ends", "other"], ["other", "begins", "robot", "ends"])
    pause_point()
    assert len(clients.served) == 3, "no request runs outside of the queue"


def test_long_plan_is_interrupted_each_time_a_robot_asks():
    clients, costs = Clients(), dict.fromkeys(greedy(4), 16 * CHUNK)
    clients.ask(ROBOT)
    clients.queue.run_next()
    clients.serve_greedy(costs, 22)

    def work() -> None:
        for action in range(16 * CHUNK):
            if action % 20 == 0:
                clients.ask(ROBOT)
            pause_point()

    for client in costs:
        clients.ask(client, 16 * CHUNK, work)
    del clients.served[:]
    clients.queue.run_next()
    assert clients.served.count(ROBOT) == 7
    assert len(clients.served) == 8


def test_interrupted_plan_is_bit_identical():
    policy, queue = Policy.from_pretrained(), FairQueue(CHUNK)
    memory = policy.spec.new_history()
    memory.add_observation([235.0, 124.0, 299.6, 145.2, 5.378])
    states, long = memory.states(), ClientKey(HERE, 1)
    wanted = [policy.plan_from(states, steps=steps, seed=steps) for steps in (20, 8)]
    queue.submit(ROBOT, lambda: None, cost=CHUNK, expires=float("inf"))
    queue.run_next()
    order, found = [], {}

    def plan(steps: int) -> None:
        found[steps] = policy.plan_from(states, steps=steps, seed=steps)
        order.append(steps)

    def begin() -> None:
        queue.submit(ROBOT, lambda: plan(8), cost=CHUNK, expires=float("inf"))
        plan(20)

    queue.submit(long, begin, cost=2 * CHUNK, expires=float("inf"))
    queue.run_next()
    assert order == [8, 20]
    for expected, plan_found in zip(wanted, (found[20], found[8]), strict=True):
        for part, part_found in zip(expected, plan_found, strict=True):
            assert np.array_equal(part, part_found)
