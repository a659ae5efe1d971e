"""Serve a web page: print its address, open a browser, stop on a signal."""

import asyncio
import json
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from nsde_policy.deploy.server.settings import Address, Port, is_loopback

from .options import Command, JsonAddressFlag, TokenFileFlag, read_token

if TYPE_CHECKING:
    from nsde_policy.deploy.server.policy_server import PolicyServer
    from nsde_policy.viewer.app import App
    from nsde_policy.viewer.episodes import EpisodeServer
    from nsde_policy.viewer.http import ViewerSettings
    from nsde_policy.viewer.server import ViewerServer

PageSeed = Annotated[int, Meta(ge=0, lt=2**32)]


@dataclass(frozen=True, kw_only=True)
class PageFlags(Address, Command):
    """Flags of the commands that serve a web page."""

    port: Port = 8000
    """TCP port; 0 picks a free one."""
    token_file: TokenFileFlag = None
    json: JsonAddressFlag = False

    def make_settings(self) -> "ViewerSettings":
        """Return the settings of the server, with a new token if one is required and none is given."""
        from nsde_policy.viewer.http import ViewerSettings

        token = read_token(self.token_file)
        if token is None and not is_loopback(self.host):
            token = secrets.token_urlsafe(16)
        return ViewerSettings(self.host, self.port, token=token)

    def serve(self, app: "App", settings: "ViewerSettings", *, what: str) -> None:
        """Serve an app until SIGTERM or Ctrl-C, and print its address to stdout."""
        from nsde_policy.viewer.server import ViewerServer

        self.run_server(ViewerServer(app, settings), settings, what=what)

    def run_server(
        self, server: "ViewerServer | EpisodeServer", settings: "ViewerSettings", *, what: str
    ) -> None:
        """Run a server until SIGTERM or Ctrl-C, and print its address to stdout."""

        def announce(port: int) -> None:
            url, *elsewhere = settings.urls(port)
            text = f"{what}: {url}" + "".join(f"\n  from other machines: {each}" for each in elsewhere)
            facts = {"url": url, "elsewhere": elsewhere, "port": port}
            print(json.dumps(facts) if self.json else text, flush=True)

        run_until_signal(server, announce)


def run_until_signal(
    server: "ViewerServer | EpisodeServer | PolicyServer", announce: Callable[[int], None]
) -> None:
    """Run a server until SIGTERM or Ctrl-C; call `announce` with its port."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, server.stop)
            except NotImplementedError:  # on Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(server.stop))
        await server.run(announce)

    asyncio.run(run())
