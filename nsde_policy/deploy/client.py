"""Client of a policy server; it imports numpy, websockets and msgspec, not torch."""

import contextlib
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from nsde_policy.errors import (
    ConfigError,
    NsdePolicyError,
    PlanError,
    PolicyInputError,
    RemoteError,
    summarize_error,
)
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, PolicySpec, check_plan
from nsde_policy.policy.base_policy import BasePolicy, require_int, require_seed
from nsde_policy.version import __version__

from .protocol import (
    PROTOCOL,
    Array,
    EncodeReply,
    EncodeRequest,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    decode,
    encode,
    pack_frame,
)
from .tokens import fits_header

_websockets_logger = logging.getLogger(__name__)
_websockets_logger.addHandler(logging.NullHandler())  # connection errors are raised, not logged
MAX_REPLY_BYTES = 2**23
"""Size limit of a message; the greeting holds a calibration, of 512 features up to 5 MB."""
Reply = TypeVar("Reply", PlanReply, EncodeReply)
_REASONS = {"late": "timeout", "failed": "failed", "stopping": "connection"}
"""Reason of a `RemoteError` by the code of a refusal; "refused" for all others."""


class RemotePolicy(BasePolicy):
    """A policy behind `nsde-policy serve`, with the methods of `Policy`.

        with RemotePolicy.connect("ws://127.0.0.1:8765") as policy:
            policy.reset(seed=0)
            action = policy.select_action(obs)        # once per policy period

    Each request reconnects once if the connection is lost; its answer does not depend on earlier ones. A plan
    arrives within `timeout_s`, and features of frames within twice `deadline_s`. Threads may share a
    policy; their calls wait for each other. `spec` is that of the policy, with the longest plan of
    the server as `longest_chunk`.

    Args:
        url: ws://HOST:PORT, or wss:// for a reverse proxy with TLS.
        token: The server's token, if it has one.
        deadline_s: Time limit of the server for a plan, seconds.
        timeout_s: Time limit of a call, reconnecting included, seconds.
    """

    def __init__(
        self, url: str, *, token: str | None = None, deadline_s: float = 0.5, timeout_s: float = 2.0
    ) -> None:
        if not 0 < deadline_s <= timeout_s:
            raise ConfigError(f"need 0 < deadline_s <= timeout_s, got {deadline_s} and {timeout_s}")
        if token is not None and not fits_header(token):
            raise ConfigError(
                "the token has blanks or characters that are not ASCII: check its file or variable"
            )
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._deadline_s = float(deadline_s)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._connection: ClientConnection | None
        self._connection, self._identity = self._open(time.monotonic() + timeout_s)
        spec, calibration, self._candidates = self._identity
        super().__init__(spec, calibration)

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """Connect to a server; the options are the arguments of the class."""
        return cls(url, **options)

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def candidates(self) -> int:
        """Most plans that the server compares before one is executed; 1 without plan selection."""
        return self._candidates

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the server's plan, up to rounding.

        Raises:
            RemoteError: If the server returns no plan.
            PolicyInputError: If the states, steps or seed are invalid.
        """
        array = Array.pack(self._check_states(states))
        if (steps := require_int(steps, "steps")) < 1:
            raise PolicyInputError(f"need steps >= 1, got {steps}")
        count = self._candidates if candidates is None else candidates
        request = PlanRequest(array, steps, require_seed(seed), count, self._deadline_s)
        reply = self._request(request, PlanReply, self._timeout_s)
        try:
            return check_plan(reply.unpack(), self.spec, steps=steps)
        except PlanError as error:
            raise RemoteError(str(error)) from None

    def encode_frames(
        self, values: np.ndarray, frames: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Let the server encode each row; the time for it is short, because a control loop waits for it."""
        replies, limit_s = [], min(2 * self._deadline_s, self._timeout_s)
        expected = (1, self.spec.obs_dim - values.shape[1])
        for row, *pictures in zip(values, *frames, strict=True):
            packed = tuple(map(pack_frame, pictures))
            request = EncodeRequest(Array.pack(row[None]), packed, self._deadline_s)
            replies.append(self._request(request, EncodeReply, limit_s))
            if (shape := replies[-1].features.shape) != expected:
                raise RemoteError(f"{self._url} sent features of shape {shape}, expected {expected}")
        features = np.concatenate([reply.features.unpack() for reply in replies]).astype(np.float64)
        visible = [reply.visible for reply in replies if reply.visible is not None]
        return features, np.array(visible) if visible else None

    # --- Connection ---

    def _request(self, request: PlanRequest | EncodeRequest, kind: type[Reply], limit_s: float) -> Reply:
        """Send a request, and return the reply of a kind within a time limit; reconnect once."""
        ends = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):
            raise RemoteError(f"another thread has used the connection for {limit_s} s", "timeout")
        try:
            if self._closed:
                raise RemoteError("the connection was closed by this client; connect again", "connection")
            if self._connection is not None:
                try:
                    return self._send(self._connection, request, kind, ends)
                except RemoteError as error:
                    if error.reason != "connection":
                        raise
            self._connection, identity = self._open(ends)
            if identity != self._identity:
                self._abort()
                raise RemoteError(f"{self._url} now serves a different policy; connect again", "refused")
            return self._send(self._connection, request, kind, ends)
        finally:
            self._lock.release()

    def _send(
        self,
        connection: ClientConnection,
        request: PlanRequest | EncodeRequest,
        kind: type[Reply],
        ends: float,
    ) -> Reply:
        try:
            connection.send(encode(request))
            reply: Reply | Refusal = self._receive(connection, kind | Refusal, ends)
        except BaseException as error:
            self._abort()  # a late reply on this connection must not answer the next request
            if isinstance(error, NsdePolicyError) or not isinstance(error, Exception):
                raise
            problem = f"{self._url} lost the connection: {summarize_error(error)}"
            raise RemoteError(problem, "connection") from None
        if isinstance(reply, Refusal):
            raise self._build_error(reply)
        return reply

    def _open(self, ends: float) -> tuple[ClientConnection, tuple[PolicySpec, Calibration, int]]:
        """Connect and exchange greetings; return what identifies the policy of the server too."""
        try:
            with contextlib.ExitStack() as closing:
                connection = connect(
                    self._url,
                    additional_headers=self._headers,
                    compression=None,
                    proxy=None,
                    open_timeout=_compute_remaining(ends),
                    close_timeout=0.2,
                    ping_interval=None,
                    max_size=MAX_REPLY_BYTES,
                    logger=_websockets_logger,
                )
                closing.enter_context(connection)
                # Sending raises `OSError` if the server does not read: frames may not fit into its buffer.
                limit = struct.pack("ll", math.ceil(self._timeout_s), 0)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                connection.send(encode(Hello(PROTOCOL, __version__)))
                welcome: Welcome | Refusal = self._receive(connection, Welcome | Refusal, ends)
                if isinstance(welcome, Refusal):
                    raise self._build_error(welcome)
                identity = welcome.parse()
                closing.pop_all()  # without an error the connection stays open
                return connection, identity
        except NsdePolicyError:
            raise
        except InvalidStatus as error:
            reason = error.response.body.decode(errors="replace").strip() or error.response.reason_phrase
            raise RemoteError(f"{self._url} refuses the connection: {reason:.200}", "refused") from None
        except Exception as error:  # of any type, if another kind of server replies
            if isinstance(error, InvalidURI | ValueError) and not isinstance(error, OSError):
                problem = f"{self._url!r} is not an address like ws://127.0.0.1:8765: {error}"
                raise ConfigError(problem) from None
            problem = f"cannot connect to {self._url}: {summarize_error(error)}"
            raise RemoteError(problem, "connection") from None

    def _receive(self, connection: ClientConnection, kinds: object, ends: float) -> Any:
        """Return a message of one of the kinds."""
        try:
            data = connection.recv(timeout=_compute_remaining(ends))
        except TimeoutError:
            raise RemoteError(f"{self._url} sent no reply in time", "timeout") from None
        return decode(data, kinds)

    def _abort(self) -> None:
        """Drop the connection at once, without a closing handshake that the server may not answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            connection.close()
            # Its thread must not read from the next connection, which may get the same file descriptor.
            connection.recv_events_thread.join(0.2)

    def _build_error(self, refusal: Refusal) -> RemoteError:
        reason = _REASONS.get(refusal.code, "refused")
        message = f"{self._url}: {refusal.message}"
        return RemoteError(f"{message} ({refusal.code})" if reason == "refused" else message, reason)


def _compute_remaining(ends: float) -> float:
    return max(ends - time.monotonic(), 1e-3)
