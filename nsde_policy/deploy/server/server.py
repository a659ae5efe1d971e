"""Policy server: websocket clients, one planner thread, and limits on clients, messages and time."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus

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
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.connection import LimitedServer
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
        self._planner, self._thread = planner, PlannerThread()
        self._clients = self._in_flight = self._last_client = 0
        self._counts = dict.fromkeys(("planned", "refused", "late", "failed"), 0)
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
            self._log("stopping", clients=self._clients, in_flight=self._in_flight)
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
        if self._stopping or self._clients >= self._settings.max_clients:
            self._log("full", peer=_format_peer(connection), clients=self._clients)
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients, or stopping\n")
        return None

    def _build_health(self, connection: ServerConnection) -> Response:
        stalled = self._thread.busy_s > STALLED_DEADLINES * self._settings.deadline_s
        status = "stalled" if stalled else "stopping" if self._stopping else "ok"
        facts = {"status": status, "protocol": PROTOCOL, "version": __version__, "clients": self._clients}
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        response = connection.respond(code, json.dumps(facts | self._counts) + "\n")
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    async def _handle_client(self, connection: ServerConnection) -> None:
        """Answer one client, one request at a time, until the connection ends."""
        self._clients += 1
        self._last_client += 1
        client, answered, why = self._last_client, 0, "closed"
        self._log("connected", client=client, peer=_format_peer(connection), clients=self._clients)
        try:
            if await self._greet(connection):
                limiter = RateLimiter(self._settings.max_rate)
                async for data in connection:
                    await self._send(connection, await self._answer(data, client))
                    answered += 1
                    if wait_s := limiter.wait_s(self._loop.time()):
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
            self._clients -= 1
            self._log("disconnected", client=client, answered=answered, why=why, clients=self._clients)

    async def _greet(self, connection: ServerConnection) -> bool:
        async with asyncio.timeout(self._settings.patience_s):
            hello: Hello = decode(await connection.recv(), Hello, limit=self._settings.max_message)
        if hello.protocol != PROTOCOL:
            problem = f"the server has protocol {PROTOCOL} (nsde-policy {__version__}), got {hello.protocol}"
            await self._close_with(connection, Refusal(None, "wrong_version", problem))
            return False
        await self._send(connection, self._welcome)
        return True

    async def _answer(self, data: object, client: int) -> PlanReply | Refusal:
        received = self._loop.time()
        request: PlanRequest = decode(data, PlanRequest, limit=self._settings.max_message)
        if refusal := self._check_request(request):
            self._counts["refused"] += 1
            return refusal
        deadline_s = min(request.deadline_s, self._settings.deadline_s)
        future = self._thread.submit(lambda: self._plan(request))
        self._in_flight += 1
        try:
            async with asyncio.timeout_at(received + deadline_s) as deadline:
                plan = await asyncio.wrap_future(future)
        except Exception as error:
            if deadline.expired():
                self._counts["late"] += 1
                self._log("late", client=client, deadline_s=deadline_s)
                return Refusal(request.id, "late", f"no plan within {deadline_s:.3f} s")
            self._counts["failed"] += 1
            self._log("failed", client=client, error=str(error))
            return Refusal(request.id, "failed", "the policy failed; see the server's log")
        finally:
            self._in_flight -= 1
        self._counts["planned"] += 1
        return PlanReply.pack(request.id, plan)

    def _check_request(self, request: PlanRequest) -> Refusal | None:
        if self._stopping:
            return Refusal(request.id, "stopping", "the server is stopping")
        shape = (self._spec.history, self._spec.obs_dim + self._spec.act_dim)
        if request.states.shape != shape:
            problem = f"states of this policy have shape {shape}, got {request.states.shape}"
        elif request.steps > self._welcome.max_steps:
            problem = f"a plan has from 1 to {self._welcome.max_steps} actions, got {request.steps}"
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
