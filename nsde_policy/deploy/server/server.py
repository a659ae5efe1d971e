"""Policy server: websocket clients, one planner thread, and limits on clients, messages and time."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from nsde_policy import __version__
from nsde_policy.deploy.protocol import (
    PROTOCOL,
    Hello,
    PlanReply,
    PlanRequest,
    Refusal,
    Welcome,
    check_plan,
    decode,
    encode,
)
from nsde_policy.deploy.server.auth import Log, RateLimiter, format_error
from nsde_policy.deploy.server.config import MAX_REFUSALS_PER_S, ServeSettings
from nsde_policy.deploy.server.connection import LimitedConnection, LimitedServer
from nsde_policy.deploy.server.fair_queue import ClientKey, FairQueue
from nsde_policy.errors import ProtocolError, RemotePlanningError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, Planner
from nsde_policy.inference.worker import PlannerThread

STALLED_DEADLINES = 10
"""/healthz reports a stalled planner if a plan takes longer than this many deadlines."""


class PolicyServer(LimitedServer):
    """Server that answers plan requests and stores nothing about its clients.

    log = build_json_log(sys.stderr)
    server = PolicyServer(policy, ServeSettings(port=0), log, calibration=policy.calibration)
    asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(
        self, planner: Planner, settings: ServeSettings, log: Log, *, calibration: Calibration | None = None
    ) -> None:
        super().__init__(settings, log, buffer=2**20 + 2 * settings.max_message)
        self._settings, self._spec = settings, planner.spec
        self._welcome = Welcome.build(
            planner.spec,
            (calibration or Calibration.from_spec(planner.spec)).check(planner.spec),
            protocol=PROTOCOL,
            version=__version__,
            max_message=settings.max_message,
            max_steps=settings.compute_max_steps(planner.spec),
            deadline_s=settings.deadline_s,
        )
        self._planner, self._thread, self._queue = planner, PlannerThread(), FairQueue(planner.spec.chunk)
        self._in_flight = self._last_client = 0
        self._counts = dict.fromkeys(("planned", "refused", "late", "failed", "dropped"), 0)
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
        ) as port:
            self._log("serving", host=self._settings.host, port=port, method=self._spec.method)
            ready(port)
            await self._stop.wait()
            self._stopping = True
            self._log("stopping", clients=self.client_count, in_flight=self._in_flight)
            while self._in_flight:  # each request ends by its deadline
                await asyncio.sleep(0.01)
        self.hangs = not self._thread.close(self._settings.patience_s)
        if self.hangs:
            self._log("hangs", busy_s=round(self._thread.busy_s, 3))
        self._log("stopped", **self._counts)

    def _handle_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            return self._build_health(connection)
        if request.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "not found; use / for websockets or /healthz\n")
        headers = request.headers.get_all("Authorization")
        if not self._settings.accepts(headers[0] if len(headers) == 1 else None):
            self._log("unauthorised", peer=_format_peer(connection))
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
        if self._stopping or self.client_count >= self._settings.max_clients:
            self._log("full", peer=_format_peer(connection), clients=self.client_count)
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients, or stopping\n")
        return None

    def _build_health(self, connection: ServerConnection) -> Response:
        stalled = self._thread.busy_s > STALLED_DEADLINES * self._settings.deadline_s
        status = "stalled" if stalled else "stopping" if self._stopping else "ok"
        facts = {"status": status, "protocol": PROTOCOL, "version": __version__, "clients": self.client_count}
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        response = connection.respond(code, json.dumps(facts | self._counts) + "\n")
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    async def _handle_client(self, connection: ServerConnection) -> None:
        """Answer one client, one request at a time, until the connection ends."""
        assert isinstance(connection, LimitedConnection)
        self._last_client += 1
        client, answered, why = ClientKey(connection.address, self._last_client), 0, "closed"
        closed = asyncio.create_task(connection.wait_closed())
        self._log("connected", client=client.connection, peer=_format_peer(connection))
        try:
            if await self._greet(connection):
                with self._admit(connection):
                    await self._send(connection, self._welcome)
                    limiter, refusals = RateLimiter(self._settings.max_rate), RateLimiter(MAX_REFUSALS_PER_S)
                    async for data in connection:
                        answer = await self._answer(data, client, closed)
                        await self._send(connection, answer)
                        answered += 1
                        is_invalid = isinstance(answer, Refusal) and answer.code == "bad_request"
                        if wait_s := (refusals if is_invalid else limiter).wait_s(self._loop.time()):
                            await asyncio.sleep(wait_s)
        except ConnectionClosed as error:
            why = f"closed with {error.rcvd.code if error.rcvd else 'no close frame'}"
        except ProtocolError as error:
            why = f"malformed: {error}"
            await self._close_with(connection, Refusal(None, "malformed", str(error)))
        except TimeoutError:
            why = "timeout"
            connection.transport.abort()
        finally:
            closed.cancel()
            self._queue.forget(client)
            facts = {"answered": answered, "why": why, "clients": self.client_count}
            self._log("disconnected", client=client.connection, **facts)

    async def _greet(self, connection: ServerConnection) -> bool:
        """Receive the greeting; return whether the connection becomes a client."""
        async with asyncio.timeout(self._settings.patience_s):
            hello: Hello = decode(await connection.recv(), Hello, limit=self._settings.max_message)
        if hello.protocol != PROTOCOL:
            problem = f"the server has protocol {PROTOCOL} (nsde-policy {__version__}), got {hello.protocol}"
            await self._close_with(connection, Refusal(None, "wrong_version", problem))
            return False
        if self.client_count >= self._settings.max_clients:  # others have greeted since the HTTP request
            await connection.close(1013, "too many clients")
            return False
        return True

    async def _answer(
        self, data: object, client: ClientKey, closed: asyncio.Task[None]
    ) -> PlanReply | Refusal:
        """Answer a message; drop its plan if the deadline passes or the connection is `closed`."""
        received = self._loop.time()
        request: PlanRequest = decode(data, PlanRequest, limit=self._settings.max_message)
        if refusal := self._check_request(request):
            self._counts["refused"] += 1
            return refusal
        deadline_s = min(request.deadline_s, self._settings.deadline_s)
        plan = asyncio.wrap_future(
            self._queue.submit(
                client,
                lambda: self._plan(request),
                cost=max(request.steps, self._spec.chunk),  # a short plan costs almost as much as a chunk
                expires=received + deadline_s,
            )
        )
        self._thread.submit(self._queue.run_next)
        self._in_flight += 1
        try:
            remaining_s = received + deadline_s - self._loop.time()
            either: list[asyncio.Future[Any]] = [plan, closed]
            await asyncio.wait(either, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._in_flight -= 1
            plan.cancel()  # no effect on a plan that is ready
        if plan.cancelled():
            return self._report_missing_plan(request, client, deadline_s, gone=closed.done())
        if error := plan.exception():
            self._counts["failed"] += 1
            self._log("failed", client=client.connection, error=str(error))
            return Refusal(request.id, "failed", "the policy failed; see the server's log")
        self._counts["planned"] += 1
        return PlanReply.pack(request.id, plan.result())

    def _report_missing_plan(
        self, request: PlanRequest, client: ClientKey, deadline_s: float, *, gone: bool
    ) -> Refusal:
        """Count and log a plan that was dropped because its client has disconnected, or as late."""
        event = "dropped" if gone else "late"
        self._counts[event] += 1
        self._log(event, client=client.connection, deadline_s=deadline_s)
        return Refusal(request.id, "late", f"no plan within {deadline_s:.3f} s")

    def _check_request(self, request: PlanRequest) -> Refusal | None:
        if self._stopping:
            return Refusal(request.id, "stopping", "the server is stopping")
        shape = (self._spec.history, self._spec.obs_dim + self._spec.act_dim)
        if request.states.shape != shape:
            problem = f"states of this policy have shape {shape}, got {request.states.shape}"
        elif request.steps > self._welcome.max_steps:
            problem = (
                f"a plan has from 1 to {self._welcome.max_steps} actions, got {request.steps}; "
                "nsde-policy serve --max-steps allows more"
            )
        else:
            return None
        return Refusal(request.id, "bad_request", problem)

    def _plan(self, request: PlanRequest) -> Plan:
        """Plan and check the result, in the planner thread; any error becomes a `RemotePlanningError`."""
        try:
            plan = self._planner.plan_from(request.states.unpack(), steps=request.steps, seed=request.seed)
            return check_plan(plan, self._spec, request.steps)
        except BaseException as error:  # SystemExit too: a planner must not end the server
            raise RemotePlanningError(format_error(error)) from None

    async def _send(self, connection: ServerConnection, message: Welcome | PlanReply | Refusal) -> None:
        async with asyncio.timeout(self._settings.patience_s):
            await connection.send(encode(message))

    async def _close_with(self, connection: ServerConnection, refusal: Refusal) -> None:
        """Send a refusal and close the connection; abort it if the client does not read."""
        try:
            await self._send(connection, refusal)
            await connection.close(1008, refusal.code)
        except (ConnectionClosed, TimeoutError):
            connection.transport.abort()


def _format_peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "gone"
