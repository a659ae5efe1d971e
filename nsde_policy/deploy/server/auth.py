"""Tokens and logs, shared by the policy server and the viewer."""

import ipaddress
import json
import time
import traceback
from collections.abc import Callable
from typing import TextIO

from nsde_policy.errors import ConfigError

MIN_TOKEN_LENGTH = 16

Log = Callable[..., None]
"""`log(event, **facts)`: report one event of a server."""


def is_loopback(host: str) -> bool:
    """Return whether an address accepts connections from this machine only; of host names, only localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fits_header(token: str) -> bool:
    """Return whether a token can stand in an HTTP header: printable ASCII characters, no blanks."""
    return token.isascii() and token.isprintable() and " " not in token


def check_token(token: str) -> str:
    """Return the token, or raise `ConfigError` if it is short or cannot stand in an HTTP header."""
    if len(token) < MIN_TOKEN_LENGTH or not fits_header(token):
        raise ConfigError(
            f"a token needs at least {MIN_TOKEN_LENGTH} ASCII characters and no blanks, got {len(token)}: "
            "make one with python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def build_json_log(stream: TextIO) -> Log:
    """Return a log that writes each event as one line of JSON."""

    def log(event: str, **facts: object) -> None:
        stream.write(json.dumps({"time": round(time.time(), 3), "event": event, **facts}) + "\n")
        stream.flush()

    return log


def format_error(error: BaseException | None) -> str | None:
    """Format an error in one line: type, message, and the line that raised it; None for None."""
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    source = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{source}"
