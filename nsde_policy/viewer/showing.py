"""From a stage to a page in a browser: load, listen, say where, stop on a signal."""

import asyncio
import json
import secrets
import signal
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from nsde_policy.assets import SHIPPED, SHIPPED_POLICY
from nsde_policy.errors import ConfigError
from nsde_policy.methods import get_method
from nsde_policy.policy import NSDEPolicy
from nsde_policy.remote.doors import is_loopback, json_log
from nsde_policy.viewer.door import ViewerSettings
from nsde_policy.viewer.lane import Performer
from nsde_policy.viewer.server import ViewerServer
from nsde_policy.viewer.stage import Stage


def performers(runs: Sequence[Path]) -> list[Performer]:
    """Load runs, each under a name of its own."""
    names = [SHIPPED if run == SHIPPED_POLICY else run.resolve().name for run in runs]
    policies = [NSDEPolicy.from_pretrained(run) for run in runs]
    methods = [policy.spec.method for policy in policies]
    found = []
    for k, (name, method, policy) in enumerate(zip(names, methods, policies, strict=True)):
        title = get_method(method).title + (f", {name}" if methods.count(method) > 1 else "")
        found.append(Performer.of(name if names.count(name) == 1 else f"{name}-{k}", title, policy))
    return found


def settings(host: str, port: int, token: str | None) -> ViewerSettings:
    """Where to listen; a token is made up where one is needed and none was given."""
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(16)
    return ViewerSettings(host=host, port=port, token=token)


def show(stage: Stage, where: ViewerSettings, *, what: str, browser: bool, as_json: bool) -> None:
    """Show a stage until SIGTERM or Ctrl-C."""
    server = ViewerServer(stage, where, json_log(sys.stderr))

    def ready(port: int) -> None:
        url, *elsewhere = where.urls(port)
        said = f"{what}: {url}" + "".join(f"\n  from other machines: {each}" for each in elsewhere)
        facts = {"url": url, "elsewhere": elsewhere, "port": port}
        print(json.dumps(facts) if as_json else said, flush=True)
        if browser and not _opened(url):
            print("no browser could be opened; open the address yourself", file=sys.stderr)

    asyncio.run(_until_told(server, ready))


async def _until_told(server: ViewerServer, ready: Callable[[int], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    await server.run(ready)


def _opened(url: str) -> bool:
    try:
        return webbrowser.open(url)
    except webbrowser.Error as error:
        raise ConfigError(f"no browser can be opened here ({error}); leave out --open") from None
