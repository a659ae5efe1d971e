"""Serve the page of `play` and `collect`: print its address, open a browser, stop on a signal."""

import asyncio
import json
import signal
import sys
import webbrowser
from collections.abc import Callable

from nsde_policy.deploy.server.auth import build_json_log
from nsde_policy.deploy.server.server import PolicyServer
from nsde_policy.errors import ConfigError
from nsde_policy.viewer.app import App
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.server import ViewerServer


def run_app(app: App, settings: ViewerSettings, *, what: str, browser: bool, as_json: bool) -> None:
    """Serve an app until SIGTERM or Ctrl-C, and print its address to stdout."""
    server = ViewerServer(app, settings, build_json_log(sys.stderr))

    def announce(port: int) -> None:
        url, *elsewhere = settings.urls(port)
        text = f"{what}: {url}" + "".join(f"\n  from other machines: {each}" for each in elsewhere)
        facts = {"url": url, "elsewhere": elsewhere, "port": port}
        print(json.dumps(facts) if as_json else text, flush=True)
        try:
            if browser and not webbrowser.open(url):
                print("no browser could be opened; open the address yourself", file=sys.stderr)
        except webbrowser.Error as error:
            raise ConfigError(f"no browser can be opened here ({error}); leave out --open") from None

    run_until_signal(server, announce)


def run_until_signal(server: ViewerServer | PolicyServer, announce: Callable[[int], None]) -> None:
    """Run a server until SIGTERM or Ctrl-C; call `announce` with its port."""

    async def run() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        await server.run(announce)

    asyncio.run(run())
