"""Who may look on, and the one page they are given: plain HTTP, before there is a connection.

What the page may rely on:

- A websocket to /live that will not do is accepted and closed at once, before any message, because a browser
  tells its page nothing of a refused handshake: 4403 "token" where the token in the address is not (or no
  longer) the right one, 4503 "full" where as many look on as are let in. After 4403 asking again is in vain.
- Every lane of a frame has "solved_s": simulated seconds from the reset to the first moment with the block in
  its goal, up to the moment looked at; null where there is none.
- "latency", of a lane and of a method in the state, is null until a plan was made with the present α,
  diffusion and chunk.
- While recording, the page says {"do": "release"} when the pointer leaves the table, the finger is lifted or
  the page is hidden, and no "aim" behind it until the pointer is back. The state's "phase" is then "paused":
  nothing is recorded until the next "aim", with which it is "recording" again. A page that goes away has
  released.
- A notice goes to the page that asked for what cannot be done; one about the stage itself, to all.
"""

import base64
import contextlib
import hashlib
import ipaddress
import math
import re
import socket
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from urllib.parse import parse_qs, quote, urlsplit

from websockets.datastructures import Headers
from websockets.http11 import Request

from nsde_policy.config import require
from nsde_policy.deploy.server.auth import check_token, is_loopback, same_token
from nsde_policy.errors import ConfigError
from nsde_policy.viewer.messages import MAX_MESSAGE

SOCKET = "/live"
"""Where the page's websocket is."""
NO_TOKEN, FULL = (4403, "token"), (4503, "full")
"""Close codes, and reasons, of a websocket that is let in only to be told why it is not."""
_HOST = re.compile(r"[\w.-]+(:\d+)?|\[[\da-fA-F:.]+\](:\d+)?", re.ASCII)


@dataclass(frozen=True)
class ViewerSettings:
    """How a page is served."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8000
    """0 picks a free one."""
    token: str | None = field(default=None, repr=False)
    """What must stand in the address, ?token=…; needed wherever others than this machine can connect."""
    max_clients: int = 16
    """Pages at a time."""
    max_rate: float = 100.0
    """Messages per second of one page; what comes faster waits in its own connection."""
    max_message: int = MAX_MESSAGE
    """Bytes of the largest message taken."""
    patience_s: float = 10.0
    """Longest a page may take to greet, to answer a ping or to read a frame, seconds."""

    def __post_init__(self) -> None:
        require(self, bool(self.host), "need a host to listen at, such as 127.0.0.1 or 0.0.0.0, got none")
        require(self, 0 <= self.port <= 65535, f"need a port from 0 to 65535, got {self.port}")
        require(self, self.max_clients >= 1, f"need max_clients >= 1, got {self.max_clients}")
        for name in ("max_rate", "patience_s"):
            value = getattr(self, name)
            require(self, 0 < value < math.inf, f"need {name} > 0, got {value}")
        if self.token is not None:
            check_token(self.token)
        elif not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} can be reached from other machines: show the page there with a token"
            )

    def urls(self, port: int) -> list[str]:
        """What to type into a browser: here, and where every machine can connect, also elsewhere."""
        try:
            everywhere = ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            everywhere = False
        hosts = ["localhost", *_own_names()] if everywhere else [self.host]
        query = f"?token={quote(self.token, safe='')}" if self.token else ""
        return [f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}" for host in hosts]

    def objection(self, request: Request) -> str | None:
        """Why a request is not for us, if so."""
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        host = hosts[0] if len(hosts) == 1 else ""
        if not _HOST.fullmatch(host) or (self.token is None and not is_loopback(_name(host))):
            return f"this page is for this machine alone and goes by localhost, not by {host[:80]!r}"
        if origins and origins not in ([f"http://{host}"], [f"https://{host}"]):
            return f"a page of {origins[0][:80]!r} may not look on"
        return None

    def knows(self, request: Request) -> bool:
        """Whether a request has the token, where one is needed."""
        return self.token is None or same_token(self.token, _token(request.path))


@dataclass(frozen=True)
class Page:
    """The page: one file, which asks no other host for anything."""

    @cached_property
    def body(self) -> bytes:
        """Its bytes."""
        return resources.files("nsde_policy.viewer").joinpath("page.html").read_bytes()

    def headers(self, host: str) -> Headers:
        """Nothing may run on it, or be loaded by it, but what it brings along."""
        policy = (
            f"default-src 'none'; script-src {self._hashes('script')}; style-src {self._hashes('style')}; "
            f"img-src data:; connect-src 'self' ws://{host} wss://{host}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Headers(
            {
                "Content-Type": "text/html; charset=utf-8",
                "Content-Length": str(len(self.body)),
                "Content-Security-Policy": policy,
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
                "Connection": "close",
            }
        )

    def _hashes(self, tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), self.body, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(part).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)


def _name(host: str) -> str:
    """The name in a `Host` header, without its port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _token(path: str) -> str:
    try:
        found = parse_qs(urlsplit(path).query, max_num_fields=8).get("token", [])
    except ValueError:  # too many fields, or no address at all
        return ""
    return found[0] if len(found) == 1 else ""


def _own_names() -> list[str]:
    """By what other machines know this one: the address its way out starts from, else its name."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address of no machine; nothing is sent
        return [str(probe.getsockname()[0])]
    name = socket.gethostname()
    return [] if name == "localhost" else [name]
