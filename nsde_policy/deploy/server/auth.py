"""What every server of the package shares: whom to let in, how often to listen, how to log. No msgpack."""

import hmac
import ipaddress
import json
import logging
import math
import time
from collections.abc import Callable
from typing import Any, TextIO

from nsde_policy.errors import ConfigError

SHORTEST_TOKEN = 16

Log = Callable[..., None]
"""`log(event, **facts)`: one event of a server."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; names other than localhost are not trusted."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def same_token(wanted: str, given: str) -> bool:
    """Whether a token is the one; as slow for a near miss as for any other."""
    return hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace"))


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
