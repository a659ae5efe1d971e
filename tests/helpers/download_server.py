"""A local web server that serves one file and can be told to misbehave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """One file, how it is served, and the number of requests for it."""

    content: bytes = b""
    cuts: list[int] = field(default_factory=list)
    """Number of body bytes after which the next responses end, in turn."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next responses, in turn, instead of sending the file."""
    requests: int = 0
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
    site.requests += 1
    status = site.statuses.pop(0) if site.statuses else 200
    body = site.content if status == 200 else b""
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: site.cuts.pop(0)] if site.cuts else body)
