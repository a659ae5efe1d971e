"""Policy server: websocket clients, one planner thread, and limits on clients, messages and time."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from nsde_policy import __version__
from nsde_policy.errors import PlanError, RemoteError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.candidates import CandidateBudget
from nsde_policy.interface.checks import check_plan
from nsde_policy.interface.planner import Plan, Planner

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
from .batches import BatchQueue
from .settings import Log, ServeSettings, compute_max_message, format_error
from .websocket_server import WebsocketServer

AnyRequest = PlanRequest | EncodeRequest
Answer = PlanReply | EncodeReply | Refusal
BatchKind = tuple[int, int]
"""What requests of a batch have in common: actions and candidates of a plan, both 0 for frames."""
FRAMES: BatchKind = (0, 0)


class PolicyServer(WebsocketServer):
    """Server that answers plan requests and stores nothing about its clients.

    Each client has one request in the queue at a time, so clients are served in turn. What waits together is
    one batch. For a client whose plans are nearly late, fewer of them are compared.

        log = build_json_log(sys.stderr)
        server = PolicyServer(policy, ServeSettings(port=0), log, calibration=policy.calibration)
        asyncio.run(server.run(print))  # prints the port; returns after `server.stop()`
    """

    def __init__(
        self, planner: Planner, settings: ServeSettings, log: Log, *, calibration: Calibration | None = None
    ) -> None:
        super().__init__(settings, log)
        self._settings = settings
        self._spec = planner.spec
        self._kinds: object = PlanRequest | EncodeRequest if planner.spec.cameras else PlanRequest
        calibration = (calibration or Calibration.from_spec(planner.spec)).check(planner.spec)
        self._welcome = Welcome(
            protocol=PROTOCOL,
            version=__version__,
            spec=json.dumps(planner.spec.to_dict()),
            calibration=json.dumps(calibration.to_dict()),
            max_message=compute_max_message(planner.spec),
            max_steps=settings.compute_max_steps(planner.spec),
            deadline_s=settings.deadline_s,
        )
        self._planner = planner
        self._queue: BatchQueue[BatchKind, AnyRequest, Answer] = BatchQueue(self._compute, self._find_largest)
        self._in_flight = 0
        self._last_client = 0
        self._clients = 0
        self._counts = dict.fromkeys(("planned", "encoded", "refused", "late", "failed"), 0)
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
            max_size=self._welcome.max_message,
        ) as port:
            self._log("serving", host=self._settings.host, port=port, method=self._spec.method)
            ready(port)
            await self._stop.wait()
            self._stopping = True
            self._log("stopping", clients=self._clients, in_flight=self._in_flight)
            while self._in_flight:  # each request ends by its deadline
                await asyncio.sleep(0.01)
        self.hangs = not self._queue.thread.close(self.patience_s)
        if self.hangs:
            self._log("hangs", busy_s=round(self._queue.thread.busy_s, 3))
        self._log("stopped", **self._counts, **self._queue.sizes)

    def _handle_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            return self._build_health(connection)
        if request.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "not found; use / for websockets or /healthz\n")
        headers = request.headers.get_all("Authorization")
        if not self._settings.accepts(headers[0] if len(headers) == 1 else "", scheme="Bearer "):
            self._log("unauthorised", peer=_format_peer(connection))
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
        if self._stopping or self._clients >= self._settings.max_clients:
            self._log("full", peer=_format_peer(connection), clients=self._clients)
            why = "the maximum number of clients is connected, or the server is stopping\n"
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, why)
        return None

    def _build_health(self, connection: ServerConnection) -> Response:
        status = HTTPStatus.SERVICE_UNAVAILABLE if self._stopping else HTTPStatus.OK
        facts = {"clients": self._clients, **self._counts, **self._queue.sizes}
        return connection.respond(status, json.dumps(facts) + "\n")

    async def _handle_client(self, connection: ServerConnection) -> None:
        """Answer one client, one request at a time, until the connection ends."""
        self._last_client += 1
        client, answered, why = self._last_client, 0, "closed"
        budget = CandidateBudget(self._planner.candidates)
        self._log("connected", client=client, peer=_format_peer(connection))
        self._clients += 1
        try:
            if await self._greet(connection):
                await self._send(connection, self._welcome)
                async for data in connection:
                    await self._send(connection, await self._answer(data, client, budget))
                    answered += 1
        except ConnectionClosed as error:
            why = f"closed with {error.rcvd.code if error.rcvd else 'no close frame'}"
        except RemoteError as error:
            why = f"malformed: {error}"
            await self._close_with(connection, Refusal(None, "malformed", str(error)))
        except TimeoutError:
            why = "timeout"
            connection.transport.abort()
        finally:
            self._clients -= 1
            self._log("disconnected", client=client, answered=answered, why=why, clients=self._clients)

    async def _greet(self, connection: ServerConnection) -> bool:
        """Receive the greeting; return whether the client has the same protocol."""
        async with asyncio.timeout(self.patience_s):
            hello: Hello = decode(await connection.recv(), Hello)
        if hello.protocol != PROTOCOL:
            problem = f"the server has protocol {PROTOCOL} (nsde-policy {__version__}), got {hello.protocol}"
            await self._close_with(connection, Refusal(None, "wrong_version", problem))
            return False
        return True

    async def _answer(self, data: object, client: int, budget: CandidateBudget) -> Answer:
        """Answer a message; refuse it if the deadline passes. The budget is that of the client."""
        received = self._loop.time()
        request: AnyRequest = decode(data, self._kinds)
        if refusal := self._check_request(request):
            self._counts["refused"] += 1
            return refusal
        deadline_s = min(request.deadline_s, self._settings.deadline_s)
        kind = (request.steps, budget.count) if isinstance(request, PlanRequest) else FRAMES
        result = asyncio.wrap_future(self._queue.submit(request, kind, received + deadline_s))
        self._in_flight += 1
        answer: Answer | None = None
        try:  # a plan that has not started by the deadline never will
            answer = await asyncio.wait_for(result, received + deadline_s - self._loop.time())
        except TimeoutError:
            self._counts["late"] += 1
            self._log("late", client=client, deadline_s=deadline_s)
            return Refusal(request.id, "late", f"no answer within {deadline_s:.3f} s")
        except RemoteError as error:  # a frame that cannot be decompressed
            self._counts["refused"] += 1
            return Refusal(request.id, "bad_request", str(error))
        except PlanError as error:
            self._counts["failed"] += 1
            self._log("failed", client=client, error=str(error))
            return Refusal(request.id, "failed", "the policy failed; see the server's log")
        finally:
            self._in_flight -= 1
            if isinstance(request, PlanRequest):
                compared = isinstance(answer, PlanReply) and answer.candidates is not None
                budget.update(self._loop.time() - received, deadline_s, compared=compared)
        self._counts["planned" if isinstance(request, PlanRequest) else "encoded"] += 1
        return answer

    def _check_request(self, request: AnyRequest) -> Refusal | None:
        if self._stopping:
            return Refusal(request.id, "stopping", "the server is stopping")
        problem = None
        if isinstance(request, EncodeRequest):
            shape, count = (1, self._spec.plain_dim), len(self._spec.cameras)
            if request.values.shape != shape or len(request.frames) != count:
                problem = (
                    f"an observation of this policy has values of shape {shape} and {count} frames, got "
                    f"{request.values.shape} and {len(request.frames)}"
                )
        elif request.states.shape != (shape := (self._spec.history, self._spec.dim)):
            problem = f"states of this policy have shape {shape}, got {request.states.shape}"
        elif request.steps > self._welcome.max_steps:
            problem = (
                f"a plan has from 1 to {self._welcome.max_steps} actions, got {request.steps}; "
                "nsde-policy serve --max-steps allows more"
            )
        return None if problem is None else Refusal(request.id, "bad_request", problem)

    def _find_largest(self, kind: BatchKind) -> int | None:
        """Return how many requests are computed together; frames only where that is any number."""
        largest = self._planner.largest_batch
        return 1 if kind == FRAMES and largest is not None else largest

    def _compute(self, kind: BatchKind, requests: list[AnyRequest]) -> list[Answer | Exception]:
        """Answer a batch in the planner thread, and each request alone if that fails.

        Whatever the policy raises becomes a `PlanError`, and a frame that is damaged a `RemoteError`.
        """
        try:
            if kind == FRAMES:
                return self._encode([each for each in requests if isinstance(each, EncodeRequest)])
            return self._plan([each for each in requests if isinstance(each, PlanRequest)], *kind)
        except RemoteError as error:
            problem: Exception = error
        except BaseException as error:  # SystemExit too: a planner must not end the server
            problem = PlanError(format_error(error))
        if len(requests) == 1:
            return [problem]
        return [answer for request in requests for answer in self._compute(kind, [request])]

    def _plan(self, requests: list[PlanRequest], steps: int, candidates: int) -> list[Answer | Exception]:
        """Plan for one or several robots; a plan that is not finite fails alone."""
        states, seeds = [each.states.unpack() for each in requests], [each.seed for each in requests]
        plans = self._planner.plan_rows(states, steps=steps, seeds=seeds, candidates=candidates)
        return [self._pack(*each) for each in zip(requests, plans, strict=True)]

    def _pack(self, request: PlanRequest, plan: Plan) -> PlanReply | PlanError:
        try:
            return PlanReply.pack(request.id, check_plan(plan, self._spec, steps=request.steps))
        except PlanError as error:
            return PlanError(format_error(error))

    def _encode(self, requests: list[EncodeRequest]) -> list[Answer | Exception]:
        """Encode the frames of one or several robots."""
        cameras, values = self._spec.cameras, np.concatenate([each.values.unpack() for each in requests])
        frames = [
            np.stack([unpack_frame(each.frames[i], camera) for each in requests])
            for i, camera in enumerate(cameras)
        ]
        features, visible = self._planner.encode_frames(values, frames)
        fractions = [None] * len(requests) if visible is None else visible.tolist()
        rows = zip(requests, features, fractions, strict=True)
        return [EncodeReply(each.id, Array.pack(row[None]), fraction) for each, row, fraction in rows]

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


def _format_peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "gone"
