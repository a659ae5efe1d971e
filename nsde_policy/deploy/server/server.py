"""A policy behind a socket: websockets, one thread that plans, and a limit on everything a client can do."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
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
from nsde_policy.deploy.server.auth import Log, Pace, describe
from nsde_policy.deploy.server.config import ServeSettings
from nsde_policy.deploy.server.connection import Sockets, listen
from nsde_policy.errors import ConfigError, ProtocolError, RemotePlanningError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, Planner
from nsde_policy.inference.worker import PlannerThread

STALLED = 10
"""A plan that takes so many deadlines means that the planner hangs: /healthz says so."""


class PolicyServer:
    """Answers plan requests; remembers nothing of its clients but their number.

    server = PolicyServer(policy, ServeSettings(port=0), json_log(sys.stderr), calibration=policy.calibration)
    asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(
        self, planner: Planner, settings: ServeSettings, log: Log, *, calibration: Calibration | None = None
    ) -> None:
        self._settings, self._spec, self._log = settings, planner.spec, log
        self._welcome = Welcome(
            protocol=PROTOCOL,
            version=__version__,
            spec=planner.spec,
            calibration=(calibration or Calibration.from_spec(planner.spec)).check(planner.spec),
            max_message=settings.max_message,
            max_steps=settings.longest_plan(planner.spec),
            deadline_s=settings.deadline_s,
        )
        self._planner, self._thread = planner, PlannerThread()
        self._sockets = Sockets(settings.max_clients, buffer=2**20 + 2 * settings.max_message)
        self._clients = self._in_flight = self._connected = 0
        self._answers = dict.fromkeys(("planned", "refused", "late", "failed"), 0)
        self._stopping = False
        self.hangs = False
        """Whether a plan was still being made when `run` returned."""

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; `ready` is told the port."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._note_stray_error)
        try:
            server = await self._listen()
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror or error}") from None
        async with server:
            port = int(server.sockets[0].getsockname()[1])
            self._log("serving", host=self._settings.host, port=port, method=self._spec.method)
            ready(port)
            await self._stop.wait()
            self._stopping = True
            self._log("stopping", clients=self._clients, in_flight=self._in_flight)
            await self._settled()
        self.hangs = not self._thread.close(self._settings.patience_s)
        if self.hangs:
            self._log("hangs", busy_s=round(self._thread.busy_s, 3))
        self._log("stopped", **self._answers)

    def stop(self) -> None:
        """Answer what is in flight, close every connection, and return from `run`; from any thread."""
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _listen(self) -> Server:
        return await listen(
            self._converse,
            self._door,
            self._settings.host,
            self._settings.port,
            sockets=self._sockets,
            log=self._log,
            patience_s=self._settings.patience_s,
            max_size=self._settings.max_message,
            origins=[None],  # no web page may talk to a robot's policy, not even from this machine
            max_queue=2,
        )

    async def _settled(self) -> None:
        """Wait for the answers in flight, which their deadlines end."""
        while self._in_flight:
            await asyncio.sleep(0.01)

    # The door: plain HTTP, before there is a connection.

    def _door(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            return self._health(connection)
        if request.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "here are / for websockets and /healthz\n")
        shown = request.headers.get_all("Authorization")
        if not self._settings.lets_in(shown[0] if len(shown) == 1 else None):
            self._log("unauthorised", peer=_peer(connection))
            return connection.respond(HTTPStatus.UNAUTHORIZED, "a token is needed\n")
        if self._stopping or self._clients >= self._settings.max_clients:
            self._log("full", peer=_peer(connection), clients=self._clients)
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "as many clients as are let in\n")
        return None

    def _health(self, connection: ServerConnection) -> Response:
        stalled = self._thread.busy_s > STALLED * self._settings.deadline_s
        status = "stalled" if stalled else "stopping" if self._stopping else "ok"
        facts = {
            "status": status,
            "protocol": PROTOCOL,
            "version": __version__,
            "clients": self._clients,
            **self._answers,
        }
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        response = connection.respond(code, json.dumps(facts) + "\n")
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    # A conversation: one client, one request at a time.

    async def _converse(self, connection: ServerConnection) -> None:
        self._clients += 1
        self._connected += 1
        client, answered, why = self._connected, 0, "closed"
        self._log("connected", client=client, peer=_peer(connection), clients=self._clients)
        try:
            if await self._greet(connection):
                pace = Pace(self._settings.max_rate)
                async for data in connection:
                    await self._tell(connection, await self._answer(data, client))
                    answered += 1
                    if wait_s := pace.wait_s(self._loop.time()):
                        await asyncio.sleep(wait_s)
        except ConnectionClosed as error:
            why = f"closed with {error.rcvd.code if error.rcvd else 'no word'}"
        except ProtocolError as error:
            why = f"malformed: {error}"
            await self._part(connection, Refusal(None, "malformed", str(error)))
        except TimeoutError:
            why = "too slow"
            connection.transport.abort()
        finally:
            self._clients -= 1
            self._log("disconnected", client=client, answered=answered, why=why, clients=self._clients)

    async def _greet(self, connection: ServerConnection) -> bool:
        async with asyncio.timeout(self._settings.patience_s):
            hello = decode(await connection.recv(), Hello, limit=self._settings.max_message)
        if hello.protocol != PROTOCOL:
            problem = (
                f"this server speaks protocol {PROTOCOL} (nsde-policy {__version__}), not {hello.protocol}"
            )
            await self._part(connection, Refusal(None, "wrong_version", problem))
            return False
        await self._tell(connection, self._welcome)
        return True

    async def _answer(self, data: object, client: int) -> PlanReply | Refusal:
        received = self._loop.time()
        request = decode(data, PlanRequest, limit=self._settings.max_message)
        if refusal := self._refusal(request):
            self._answers["refused"] += 1
            return refusal
        self._in_flight += 1
        try:
            return await self._planned(request, received, client)
        finally:
            self._in_flight -= 1

    def _refusal(self, request: PlanRequest) -> Refusal | None:
        if self._stopping:
            return Refusal(request.id, "stopping", "the server is being stopped")
        wanted = (self._spec.history, self._spec.obs_dim + self._spec.act_dim)
        if request.states.shape != wanted:
            problem = f"states of this policy have shape {wanted}, got {request.states.shape}"
            return Refusal(request.id, "bad_request", problem)
        if request.steps > self._welcome.max_steps:
            problem = f"plans here hold from 1 to {self._welcome.max_steps} actions, got {request.steps}"
            return Refusal(request.id, "bad_request", problem)
        return None

    async def _planned(self, request: PlanRequest, received: float, client: int) -> PlanReply | Refusal:
        deadline_s = min(request.deadline_s, self._settings.deadline_s)
        future = self._thread.submit(lambda: self._plan(request))
        try:
            async with asyncio.timeout_at(received + deadline_s) as deadline:
                plan = await asyncio.wrap_future(future)
        except Exception as error:
            if deadline.expired():
                self._answers["late"] += 1
                self._log("late", client=client, deadline_s=deadline_s)
                return Refusal(request.id, "late", f"no plan within {deadline_s:.3f} s")
            self._answers["failed"] += 1
            self._log("failed", client=client, error=str(error))
            return Refusal(request.id, "failed", "the policy failed; the server's log says why")
        self._answers["planned"] += 1
        return PlanReply(request.id, plan.actions, plan.states, plan.std)

    def _plan(self, request: PlanRequest) -> Plan:
        """Plan and check the result, in the planner thread; any error becomes a `RemotePlanningError`."""
        try:
            plan = self._planner.plan_from(request.states, steps=request.steps, seed=request.seed)
            return check_plan(plan, self._spec, request.steps)
        except BaseException as error:  # even SystemExit: a planner must not end the server
            raise RemotePlanningError(describe(error)) from None

    async def _tell(self, connection: ServerConnection, message: Welcome | PlanReply | Refusal) -> None:
        async with asyncio.timeout(self._settings.patience_s):
            await connection.send(encode(message))

    async def _part(self, connection: ServerConnection, refusal: Refusal) -> None:
        """Say why, and close; a client that does not listen is not waited for."""
        try:
            await self._tell(connection, refusal)
            await connection.close(1008, refusal.code)
        except (ConnectionClosed, TimeoutError):
            connection.transport.abort()

    def _note_stray_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._log("error", message=context["message"], error=describe(error) if error else None)


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "gone"
