"""Policy server: websocket clients, one planner thread, and limits on clients, messages and time."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from nsde_policy.control.worker import PlannerThread
from nsde_policy.errors import PlanError, RemoteError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Planner, check_plan
from nsde_policy.version import __version__

from ..protocol import (
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
    unpack_frame,
)
from .settings import ServeSettings, compute_longest_plan, compute_max_message
from .websocket_server import WebsocketServer

logger = logging.getLogger(__name__)
AnyRequest = PlanRequest | EncodeRequest
Answer = PlanReply | EncodeReply | Refusal


class PolicyServer(WebsocketServer):
    """Server that answers plan requests and stores nothing about its clients.

    Each client has one request in the queue at a time, so clients are served in turn. What waits while the
    planner thread computes is its next batch.

        server = PolicyServer(policy, ServeSettings(port=0), calibration=policy.calibration)
        asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    _settings: ServeSettings

    def __init__(
        self, planner: Planner, settings: ServeSettings, *, calibration: Calibration | None = None
    ) -> None:
        super().__init__(settings)
        self._planner = planner
        self._spec = spec = replace(planner.spec, longest_chunk=compute_longest_plan(planner.spec))
        calibration = (calibration or Calibration.from_spec(spec)).check(spec)
        self._welcome = Welcome(
            spec=json.dumps(spec.to_dict()),
            calibration=json.dumps(calibration.to_dict()),
            candidates=planner.candidates,
        )
        self._thread = PlannerThread()
        self._waiting: list[tuple[AnyRequest, asyncio.Future[Answer]]] = []  # in order of arrival
        self._arrived = asyncio.Event()
        self._in_flight = 0
        self._last_client = 0
        self._clients = 0
        self._counts = dict.fromkeys(("batches", "planned", "encoded", "bad_request", "late", "failed"), 0)
        self._stopping = False
        self.hangs = False
        """Whether the planner was still busy when `run` returned."""

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`, then reply to running requests; call `ready` with the port at the start."""
        async with self._listen(
            self._handle_client,
            self._handle_http,
            origins=[None],  # web pages may not connect, not even those on this machine
            max_queue=2,
            max_size=compute_max_message(self._spec),
        ) as port:
            computing = asyncio.create_task(self._compute_batches())
            logger.info("serving %s on %s:%d", self._spec.method, self._settings.host, port)
            ready(port)
            await self._stop.wait()
            self._stopping = True
            logger.info("stopping with %d clients, %d requests in flight", self._clients, self._in_flight)
            while self._in_flight:  # each request ends by its deadline
                await asyncio.sleep(0.01)
            computing.cancel()
        self.hangs = not self._thread.close(self.patience_s)
        if self.hangs:
            logger.error(
                "the policy still plans after %g s; the server does not wait for it", self.patience_s
            )
        logger.info("stopped: %s", ", ".join(f"{count} {name}" for name, count in self._counts.items()))

    # --- Connections ---

    def _handle_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            status = HTTPStatus.SERVICE_UNAVAILABLE if self._stopping else HTTPStatus.OK
            return connection.respond(status, json.dumps({"clients": self._clients, **self._counts}) + "\n")
        if request.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "not found; use / for websockets or /healthz\n")
        headers = request.headers.get_all("Authorization")
        if not self._settings.accepts(headers[0] if len(headers) == 1 else "", scheme="Bearer "):
            logger.warning("%s has no valid token", _format_peer(connection))
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
        if self._stopping or self._clients >= self._settings.max_clients:
            why = "the maximum number of clients is connected, or the server is stopping"
            logger.warning("%s is refused: %s", _format_peer(connection), why)
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, why + "\n")
        return None

    async def _handle_client(self, connection: ServerConnection) -> None:
        """Answer one client, one request at a time, until the connection ends."""
        self._last_client += 1
        client, why = self._last_client, "closed"
        self._clients += 1
        logger.info("client %d connected from %s", client, _format_peer(connection))
        try:
            if await self._greet(connection):
                await self._send(connection, self._welcome)
                async for data in connection:
                    await self._send(connection, await self._answer(data, client))
        except ConnectionClosed as error:
            why = f"closed with {error.rcvd.code if error.rcvd else 'no close frame'}"
        except RemoteError as error:
            why = f"malformed: {error}"
            await self._close_with(connection, Refusal("malformed", str(error)))
        except TimeoutError:
            why = "timeout"
            connection.transport.abort()
        finally:
            self._clients -= 1
            logger.info("client %d disconnected: %s", client, why)

    async def _greet(self, connection: ServerConnection) -> bool:
        """Receive the greeting; return whether the client has the same protocol."""
        async with asyncio.timeout(self.patience_s):
            hello: Hello = decode(await connection.recv(), Hello)
        if hello.protocol != PROTOCOL:
            problem = (
                f"the server has protocol {PROTOCOL} (nsde-policy {__version__}), the client "
                f"{hello.protocol} (nsde-policy {hello.version}); install one version"
            )
            await self._close_with(connection, Refusal("wrong_version", problem))
            return False
        return True

    async def _send(self, connection: ServerConnection, message: Welcome | Answer) -> None:
        async with asyncio.timeout(self.patience_s):
            await connection.send(encode(message))

    async def _close_with(self, connection: ServerConnection, refusal: Refusal) -> None:
        """Send a refusal and close the connection; abort it if the client does not read."""
        try:
            await self._send(connection, refusal)
            await connection.close(1008, refusal.code)
        except (ConnectionClosed, TimeoutError):
            connection.transport.abort()

    # --- Requests ---

    async def _answer(self, data: object, client: int) -> Answer:
        """Answer a message; refuse it if the deadline passes."""
        received = self._loop.time()
        request: AnyRequest = decode(data, AnyRequest if self._spec.cameras else PlanRequest)
        if self._stopping:
            return Refusal("stopping", "the server is stopping")
        if problem := self._find_problem(request):
            self._counts["bad_request"] += 1
            return Refusal("bad_request", problem)
        deadline_s = min(request.deadline_s, self._settings.deadline_s)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append((request, future))
        self._arrived.set()
        self._in_flight += 1
        try:
            async with asyncio.timeout_at(received + deadline_s):
                answer = await future
        except TimeoutError:
            answer = Refusal("late", f"no answer within {deadline_s:.3f} s")
            logger.warning("client %d: %s", client, answer.message)
        finally:
            self._in_flight -= 1
        self._counts[answer.code if isinstance(answer, Refusal) else answer.tag] += 1
        return answer

    def _find_problem(self, request: AnyRequest) -> str | None:
        """Return why a request does not fit the policy, or None."""
        spec = self._spec
        if isinstance(request, EncodeRequest):
            sizes = f"values of shape {request.values.shape} and {len(request.frames)} frames"
            expected = f"values of shape {(1, spec.plain_dim)} and {len(spec.cameras)} frames"
            return None if sizes == expected else f"an observation of this policy has {expected}, got {sizes}"
        if request.states.shape != (spec.history, spec.dim):
            shape = spec.history, spec.dim
            return f"states of this policy have shape {shape}, got {request.states.shape}"
        if request.steps > spec.longest_chunk:
            return f"a plan has from 1 to {spec.longest_chunk} actions, got {request.steps}"
        return None

    async def _compute_batches(self) -> None:
        """Compute what waits in the planner thread, one batch after another."""
        while True:
            batch = self._take_batch()
            if not batch:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            requests = [request for request, _ in batch]
            answers = await asyncio.wrap_future(self._thread.submit(partial(self._compute, requests)))
            self._counts["batches"] += 1
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():  # it may be late by now
                    future.set_result(answer)

    def _take_batch(self) -> list[tuple[AnyRequest, asyncio.Future[Answer]]]:
        """Remove the oldest request, and those that are computed together with it, from the queue."""
        self._waiting = [each for each in self._waiting if not each[1].done()]  # late requests are done
        if not self._waiting:
            return []
        first, _ = self._waiting[0]
        largest = self._planner.largest_batch
        if isinstance(first, EncodeRequest) and largest is not None:
            largest = 1  # on a CPU, encoding takes as long together as one by one
        kind = _get_kind(first)
        batch = [each for each in self._waiting if _get_kind(each[0]) == kind][:largest]
        self._waiting = [each for each in self._waiting if each not in batch]
        return batch

    # --- In the planner thread ---

    def _compute(self, requests: list[AnyRequest]) -> list[Answer]:
        """Answer a batch, and each request alone if that fails."""
        try:
            if isinstance(requests[0], EncodeRequest):
                return self._encode([each for each in requests if isinstance(each, EncodeRequest)])
            return self._plan([each for each in requests if isinstance(each, PlanRequest)])
        except BaseException as error:  # SystemExit too: a planner must not end the server
            if len(requests) > 1:
                return [answer for request in requests for answer in self._compute([request])]
            if isinstance(error, RemoteError):  # a frame that cannot be decompressed
                return [Refusal("bad_request", str(error))]
            return [self._report_failure(error)]

    def _plan(self, requests: list[PlanRequest]) -> list[Answer]:
        """Plan for one or several robots; a plan that is not finite fails alone."""
        plans = self._planner.plan_rows(
            [each.states.unpack() for each in requests],
            steps=requests[0].steps,
            seeds=[each.seed for each in requests],
            candidates=min(requests[0].candidates, self._planner.candidates),
        )
        answers: list[Answer] = []
        for request, plan in zip(requests, plans, strict=True):
            try:
                answers.append(PlanReply.pack(check_plan(plan, self._spec, steps=request.steps)))
            except PlanError as error:
                answers.append(self._report_failure(error))
        return answers

    def _report_failure(self, error: BaseException) -> Refusal:
        """Log an error of the policy; its details are not for clients."""
        logger.error("the policy failed", exc_info=error)
        return Refusal("failed", "the policy failed; see the server's log")

    def _encode(self, requests: list[EncodeRequest]) -> list[Answer]:
        """Encode the frames of one or several robots."""
        values = np.concatenate([each.values.unpack() for each in requests])
        frames = [
            np.stack([unpack_frame(each.frames[i], camera) for each in requests])
            for i, camera in enumerate(self._spec.cameras)
        ]
        features, visible = self._planner.encode_frames(values, frames)
        fractions = [None] * len(requests) if visible is None else visible.tolist()
        rows = zip(requests, features, fractions, strict=True)
        return [EncodeReply(Array.pack(row[None]), fraction) for _, row, fraction in rows]


def _get_kind(request: AnyRequest) -> tuple[int, int]:
    """Return what requests of a batch have in common: actions and candidates; (0, 0) for frames."""
    return (request.steps, request.candidates) if isinstance(request, PlanRequest) else (0, 0)


def _format_peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "gone"
