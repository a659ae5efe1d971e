"""Control sessions: the state machine of the tests, which checks the contract, with more commands."""

import random
from contextlib import ExitStack
from pathlib import Path

from hypothesis import seed as start_from
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from attacks._attempts import Attack, Attempt
from tests.control.test_session_contract import SessionMachine

EXAMPLES = settings(max_examples=5, stateful_step_count=14, database=None, deadline=None)


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Attack sessions with hostile planners, workers, callbacks, clocks and observations."""

    def attack(rng: random.Random, number: int) -> Attempt:
        seed = rng.randrange(2**32)
        return Attempt("commands", f"seed {seed}", lambda: send_commands(seed))

    return attack


def send_commands(seed: int) -> int:
    """Run the state machine and return the number of commands."""
    before = SessionMachine.commands
    run_state_machine_as_test(start_from(seed)(SessionMachine), settings=EXAMPLES)
    return SessionMachine.commands - before
