"""A policy that runs on another machine: numpy, websockets and msgpack, no torch."""

import contextlib
import logging
import socket
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import numpy as np
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from nsde_policy import __version__
from nsde_policy.deploy.protocol import (
    MAX_SEED,
    PROTOCOL,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    check_plan,
    decode_answer,
    encode,
)
from nsde_policy.errors import (
    CheckpointError,
    ConfigError,
    NsdePolicyError,
    PolicyInputError,
    ProtocolError,
    RemoteConnectionError,
    RemotePlanningError,
    RemoteRefusedError,
    RemoteTimeoutError,
)
from nsde_policy.inference.base import NumpyPolicy, require_int, require_seed
from nsde_policy.inference.history import History
from nsde_policy.inference.spec import Plan

M = TypeVar("M", Welcome, PlanReply)
_LOGGER = logging.getLogger(__name__)
_LOGGER.addHandler(logging.NullHandler())  # what goes wrong is raised
_REFUSED_AT_THE_DOOR = {
    401: "it wants a token, and the one shown (or none) is not it",
    403: "it lets no web page in",
    404: "there is no policy at this path",
    503: "it has as many clients as it lets in, or is being stopped",
}


class _Line(NamedTuple):
    """An open connection, after the greeting."""

    connection: ClientConnection
    closing: contextlib.ExitStack
    welcome: Welcome


class RemotePolicy(NumpyPolicy):
    """A policy behind `nsde-policy serve`, asked as if it were here.

        with RemotePolicy.connect("ws://127.0.0.1:8765") as policy:
            policy.reset(seed=0)
            action = policy.select_action(obs)        # once per control period

    A connection that breaks is made again, once per call: nothing is lost, because a request carries all
    that its plan depends on. Every call ends within `timeout_s`. Safe to use from several threads; their
    calls take turns.
    """

    def __init__(
        self, url: str, *, token: str | None, deadline_s: float, timeout_s: float, max_message: int
    ) -> None:
        if not 0 < deadline_s <= timeout_s:
            raise ConfigError(f"need 0 < deadline_s <= timeout_s, got {deadline_s} and {timeout_s}")
        self._url, self._token, self._max_message = url, token, max_message
        self._deadline_s, self._timeout_s = deadline_s, timeout_s
        self._lock, self._asked, self._closed = threading.Lock(), 0, False
        self._known: Welcome | None = None
        self._line: _Line | None = self._open(time.monotonic() + timeout_s)
        self._known = self._line.welcome
        super().__init__(self._known.spec, self._known.calibration)
        self._reseed(0)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        token: str | None = None,
        deadline_s: float = 0.5,
        timeout_s: float = 2.0,
        max_message: int = 2**20,
    ) -> Self:
        """Connect to ws://HOST:PORT (wss:// through TLS).

        `deadline_s` is what the server may take for a plan; `timeout_s` what a call may take in all,
        connecting again included; `max_message` the largest answer taken, bytes.
        """
        return cls(url, token=token, deadline_s=deadline_s, timeout_s=timeout_s, max_message=max_message)

    def _plan_with(self, memory: History, rng: np.random.Generator) -> np.ndarray:
        seed = int(rng.integers(MAX_SEED))
        return self.plan_from(memory.states(), steps=self.spec.chunk, seed=seed).actions

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the answer there, bit for bit.

        Raises a `RemoteError` where no plan comes, `PolicyInputError` for states it cannot take.
        """
        request = self._request(states, steps, seed)
        ends = time.monotonic() + self._timeout_s
        if not self._lock.acquire(timeout=self._timeout_s):
            raise RemoteTimeoutError(f"no turn within {self._timeout_s} s: another thread is asking")
        try:
            return self._ask(request, ends)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up for good."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
            if line is not None:
                line.closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, states: np.ndarray, steps: int, seed: int) -> PlanRequest:
        array = self._check_states(states)
        if (steps := require_int(steps, "steps")) < 1:
            raise PolicyInputError(f"need steps >= 1, got {steps}")
        seed = require_seed(seed)
        self._asked += 1
        return PlanRequest(self._asked, array, steps, seed, self._deadline_s)

    def _ask(self, request: PlanRequest, ends: float) -> Plan:
        """Ask on the open line; where it has broken, once more on a new one."""
        if self._closed:
            raise RemoteConnectionError(f"the connection to {self._url} was closed here: connect anew")
        fresh = self._line is None
        try:
            return self._ask_once(request, ends)
        except RemoteConnectionError:
            if fresh:
                raise
        return self._ask_once(request, ends)

    def _ask_once(self, request: PlanRequest, ends: float) -> Plan:
        line = self._line = self._line or self._open(ends)
        packed = encode(request)
        try:
            line.connection.send(packed)
            answer = self._receive(line.connection, PlanReply, ends)
            if answer.id != request.id and not isinstance(answer, Refusal):
                raise ProtocolError(f"asked {request.id}, was answered {answer.id}")
        except BaseException as error:
            self._hang_up()  # whatever may still come on this line answers nothing that will be asked
            if isinstance(error, NsdePolicyError) or not isinstance(error, Exception):
                raise
            raise RemoteConnectionError(f"{self._url} is gone: {_words(error)}") from None
        if isinstance(answer, Refusal):
            raise _error(answer, self._url)
        return check_plan(Plan(answer.actions, answer.states, answer.std), self._spec, request.steps)

    def _open(self, ends: float) -> _Line:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        with contextlib.ExitStack() as closing:
            try:
                connection = closing.enter_context(
                    connect(
                        self._url,
                        additional_headers=headers,
                        compression=None,
                        proxy=None,
                        open_timeout=_left(ends),
                        close_timeout=0.2,
                        ping_interval=None,
                        max_size=self._max_message,
                        logger=_LOGGER,
                    )
                )
                connection.send(encode(Hello(PROTOCOL, __version__)))
                welcome = self._receive(connection, Welcome, ends)
            except NsdePolicyError:
                raise
            except InvalidStatus as error:
                status = error.response.status_code
                why = _REFUSED_AT_THE_DOOR.get(status, f"it answers with HTTP status {status}")
                raise RemoteRefusedError(f"{self._url} refuses: {why}") from None
            except (InvalidURI, ValueError) as error:
                raise ConfigError(f"{self._url!r} is no address like ws://127.0.0.1:8765: {error}") from None
            except Exception as error:  # of any kind, where something other than a policy server answers
                raise RemoteConnectionError(f"{self._url} cannot be reached: {_words(error)}") from None
            checked = self._checked(welcome)
            return _Line(connection, closing.pop_all(), checked)

    def _checked(self, welcome: Welcome | Refusal) -> Welcome:
        if isinstance(welcome, Refusal):
            raise _error(welcome, self._url)
        if welcome.protocol != PROTOCOL:
            raise ProtocolError(f"{self._url} speaks protocol {welcome.protocol}, this client {PROTOCOL}")
        try:
            welcome.calibration.check(welcome.spec)
        except CheckpointError as error:
            raise ProtocolError(f"{self._url} greets with what cannot be right: {error}") from None
        known = self._known or welcome
        if (welcome.spec, welcome.calibration) != (known.spec, known.calibration):
            raise RemoteRefusedError(f"{self._url} serves another policy than before: connect anew")
        return welcome

    def _receive(self, connection: ClientConnection, wanted: type[M], ends: float) -> M | Refusal:
        try:
            data = connection.recv(timeout=_left(ends))
        except TimeoutError:
            raise RemoteTimeoutError(f"{self._url} gave no answer within {self._timeout_s} s") from None
        return decode_answer(data, wanted, limit=self._max_message)

    def _hang_up(self) -> None:
        """Drop the line at once, without the parting words that nobody may answer."""
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError):
                line.connection.socket.shutdown(socket.SHUT_RDWR)
            line.closing.close()


def _left(ends: float) -> float:
    return max(ends - time.monotonic(), 1e-3)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _error(refusal: Refusal, url: str) -> Exception:
    said = f"{url}: {refusal.message}"
    match refusal.code:
        case "late":
            return RemoteTimeoutError(said)
        case "failed":
            return RemotePlanningError(said)
        case "stopping":
            return RemoteConnectionError(said)
    return RemoteRefusedError(f"{said} ({refusal.code})")
