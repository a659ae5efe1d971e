"""A local web server that serves one file and can be told to misbehave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """One file, how it is served, and the requests for it."""

    content: bytes = b""
    supports_ranges: bool = True
    sends_length: bool = True
    range_shift: int = 0
    """Number of bytes by which a partial response starts too early."""
    cuts: list[int] = field(default_factory=list)
    """Number of body bytes after which the next responses end, in turn."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next responses, in turn, instead of sending the file."""
    location: str = ""
    """Target of redirects."""
    stalled: threading.Event | None = None
    """If given, set once a response has been cut, which then hangs instead of ending."""
    requested: list[str] = field(default_factory=list)
    """The Range header of each request, empty if there was none."""
    url: str = ""


@contextmanager
def serve_site(site: Site) -> Iterator[Site]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self, site)

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


def respond(request: BaseHTTPRequestHandler, site: Site) -> None:
    requested = request.headers.get("Range", "")
    site.requested.append(requested)
    if site.statuses:
        request.send_response(site.statuses.pop(0))
        if site.location:
            request.send_header("Location", site.location)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    start = (
        int(requested.removeprefix("bytes=").removesuffix("-")) if requested and site.supports_ranges else 0
    )
    start -= site.range_shift if start else 0
    body = site.content[start:]
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
    if site.sends_length:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: site.cuts.pop(0)] if site.cuts else body)
    request.wfile.flush()
    if site.stalled and not site.stalled.is_set():
        site.stalled.set()
        threading.Event().wait(30)
