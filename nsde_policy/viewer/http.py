"""HTTP side of the web pages: settings, access checks and files."""

import abc
import contextlib
import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from urllib.parse import parse_qs, quote

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from nsde_policy.deploy.server.settings import ServerSettings, is_loopback
from nsde_policy.deploy.server.websocket_server import WebsocketServer

logger = logging.getLogger(__name__)
File = tuple[str, bytes]
"""Suffix and content of a file of a page."""
_HOST = re.compile(r"(?:([\w.-]+)|\[([\da-fA-F:.]+)\])(?::\d+)?", re.ASCII)
"""A `Host` header: a name, or an IPv6 address in brackets, and a port."""
_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
}


@dataclass(frozen=True)
class ViewerSettings(ServerSettings):
    """Address of the server; the token is required in the address of the page, ?token=…."""

    def urls(self, port: int) -> list[str]:
        """Return addresses for a browser: on this machine first, then from other machines."""
        hosts = ["localhost", _find_own_address()] if self.host in ("0.0.0.0", "::") else [self.host]
        query = f"?token={quote(self.token, safe='')}" if self.token else ""
        return [f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}" for host in hosts]

    def find_objection(self, request: Request) -> str | None:
        """Return why a request is refused, or None; guards against DNS rebinding and foreign pages."""
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        host = hosts[0] if len(hosts) == 1 else ""
        match = _HOST.fullmatch(host)
        if match is None or (self.token is None and not is_loopback(match[1] or match[2])):
            return f"without a token the page is served to localhost only, got host {host[:80]!r}"
        own = [[f"http://{host}"], [f"https://{host}"]]  # a proxy may add TLS
        if origins and origins not in own:
            return f"pages of {origins[0][:80]!r} may not connect"
        return None

    def accepts_token(self, request: Request) -> bool:
        """Return whether a request has the token, or none is required."""
        token, *_ = parse_qs(request.path.partition("?")[2]).get("token", [""])
        return self.accepts(token)


class PageServer(WebsocketServer, abc.ABC):
    """Serves a page over HTTP; scripts and styles are public, everything else needs the token."""

    _settings: ViewerSettings

    def __init__(self, settings: ViewerSettings, files: Mapping[str, File]) -> None:
        super().__init__(settings)
        self._files = files

    def _respond(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer an HTTP request; None lets a websocket handshake go on."""
        path, settings = request.path.partition("?")[0], self._settings
        objection = settings.find_objection(request)
        # A browser asks for scripts and styles without the token in the page's address.
        if objection is None and not path.startswith("/static/") and not settings.accepts_token(request):
            objection = "a token is required in the address: ?token=…"
        if objection is not None:
            logger.debug("refused: %s", objection)
            return connection.respond(HTTPStatus.FORBIDDEN, objection + "\n")
        if path in self._files:
            return respond_with_file(*self._files[path], request.headers["Host"])
        return self._answer(connection, request, path)

    @abc.abstractmethod
    def _answer(self, connection: ServerConnection, request: Request, path: str) -> Response | None:
        """Answer a permitted request for something that is not a file."""


def load_files(scene: str) -> dict[str, File]:
    """Load the files of the page and the script that draws the task: suffix and content by path."""
    folder = resources.files("nsde_policy.viewer") / "static"
    files = {f"/static/{file.name}": file for file in folder.iterdir()}
    files["/static/canvas.js"] = resources.files("nsde_policy.envs") / "canvas.js"
    files["/"] = files.pop("/static/index.html")
    loaded = {path: (file.name.rpartition(".")[2], file.read_bytes()) for path, file in files.items()}
    return {**loaded, "/static/scene.js": ("js", scene.encode())}


def respond_with_file(suffix: str, body: bytes, host: str) -> Response:
    """Return the response to a request for a file of the page, which may connect to its host only."""
    headers = Headers(
        {
            "Content-Type": _CONTENT_TYPES[suffix],
            "Content-Length": str(len(body)),
            "Content-Security-Policy": (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
                f"connect-src 'self' ws://{host} wss://{host}; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Connection": "close",
        }
    )
    return Response(200, "OK", headers, body)


def _find_own_address() -> str:
    """Return how other machines reach this one: the address of its default route, else its host name."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # a reserved address; connecting a datagram socket sends nothing
        return str(probe.getsockname()[0])
    return socket.gethostname()
