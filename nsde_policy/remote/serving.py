"""What a policy server is told: where to listen, whom to let in, how much to bear; and how it logs."""

import hmac
import ipaddress
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from nsde_policy.config import need
from nsde_policy.errors import ConfigError
from nsde_policy.planner import PolicySpec
from nsde_policy.remote.protocol import ENVELOPE, MAX_MESSAGE

SHORTEST_TOKEN = 16

Log = Callable[..., None]
"""`log(event, **facts)`: one event of a server."""


@dataclass(frozen=True)
class ServeSettings:
    """How a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8765
    """0 picks a free one."""
    token: str | None = field(default=None, repr=False)
    """What clients must show; needed wherever others than this machine can connect."""
    max_message: int = MAX_MESSAGE
    """Bytes of the largest message taken."""
    max_clients: int = 32
    """Connections at a time."""
    max_rate: float = 1000.0
    """Messages per second of one client; what comes faster waits in its own connection."""
    max_steps: int = 128
    """Actions of the longest plan made, for methods that could go on at will."""
    deadline_s: float = 1.0
    """Longest a plan may take, waiting included, seconds."""
    patience_s: float = 5.0
    """Longest a client may take to greet, to answer a ping or to read its answer, seconds."""

    def __post_init__(self) -> None:
        need(self, 0 <= self.port <= 65535, f"need a port from 0 to 65535, got {self.port}")
        need(self, self.max_message > ENVELOPE, f"need max_message > {ENVELOPE}, got {self.max_message}")
        for name in ("max_clients", "max_steps"):
            need(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        for name in ("max_rate", "deadline_s", "patience_s"):
            value = getattr(self, name)
            need(self, 0 < value < math.inf, f"need {name} > 0, got {value}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} can be reached from other machines: serve there with a token "
                "(--token-file or NSDE_POLICY_TOKEN), or at 127.0.0.1"
            )
        if self.token is not None:
            check_token(self.token)

    def lets_in(self, given: str | None) -> bool:
        """Whether an `Authorization` header will do; as slow for a near miss as for any other."""
        if self.token is None:
            return True
        wanted = f"Bearer {self.token}".encode()
        return hmac.compare_digest(wanted, (given or "").encode("utf-8", "replace"))

    def longest_plan(self, spec: PolicySpec) -> int:
        """Most actions of one plan; refuses settings with which a request or its answer fits no message."""
        d = spec.obs_dim + spec.act_dim
        steps = min(spec.longest_chunk or self.max_steps, self.max_steps)
        request, answer, spec_as_text = spec.history * d, 2 * steps * spec.act_dim + (steps + 1) * d, 9 * d
        needed = ENVELOPE + 8 * max(request, answer, spec_as_text)
        need(
            self,
            self.max_message >= needed,
            f"plans of {steps} actions of this policy need max_message >= {needed}, got {self.max_message}",
        )
        return steps


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; names other than localhost are not trusted."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> str:
    """`token` itself, where it can stand in a header and is no password of four letters."""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"a token has at least {SHORTEST_TOKEN} ASCII characters and no blanks, got {len(token)}: "
            "make one with python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def json_log(stream: TextIO) -> Log:
    """Write each event as one line of JSON."""

    def log(event: str, **facts: Any) -> None:
        stream.write(json.dumps({"time": round(time.time(), 3), "event": event, **facts}) + "\n")
        stream.flush()

    return log


class LogHandler(logging.Handler):
    """Passes a library's warnings on as events, without tracebacks."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One event."""
        error = record.exc_info[1] if record.exc_info else None
        self._log("transport", message=record.getMessage(), error=describe(error) if error else None)


def describe(error: BaseException) -> str:
    """An error in one line: its type, its message, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


class Pace:
    """Spaces events out to a largest rate, after a second's worth of them that may come at once."""

    def __init__(self, rate: float) -> None:
        self._rate, self._due = rate, -math.inf

    def wait_s(self, now: float) -> float:
        """Count one event at time `now`; how long to wait before the next, seconds."""
        self._due = max(self._due, now - 1.0) + 1.0 / self._rate
        return max(0.0, self._due - now)
