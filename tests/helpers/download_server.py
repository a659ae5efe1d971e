"""A web server on this machine that can be told to misbehave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """One file, how it is served, and what was asked for it."""

    content: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"1"'})
    ranges: bool = True
    """Whether parts are sent."""
    says_length: bool = True
    shift: int = 0
    """Bytes by which the parts that are sent are not those asked for."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers are cut off, in turn; what follows is whole."""
    statuses: list[int] = field(default_factory=list)
    """Other statuses that the next answers have, in turn."""
    location: str = ""
    """Where to go instead, for redirections."""
    stall: threading.Event | None = None
    """Set when the answers have been cut, which then hang instead of ending."""
    asked: list[str] = field(default_factory=list)
    """The Range of each request, empty where there was none."""
    url: str = ""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    site.url = f"http://127.0.0.1:{server.server_port}/pusht.zip"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


def answer(request: BaseHTTPRequestHandler, site: Site) -> None:
    asked = request.headers.get("Range", "")
    site.asked.append(asked)
    if site.statuses:
        request.send_response(site.statuses.pop(0))
        if site.location:
            request.send_header("Location", site.location)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    same = request.headers.get("If-Range") in site.headers.values()
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges and same else 0
    start -= site.shift if start else 0
    body = site.content[start:]
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
    if site.says_length:
        request.send_header("Content-Length", str(len(body)))
    for name, value in site.headers.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body[: site.cuts.pop(0)] if site.cuts else body)
    request.wfile.flush()
    if site.stall and not site.stall.is_set():
        site.stall.set()
        threading.Event().wait(30)
