"""From a stage to a page in a browser: load, listen, say where, stop on a signal."""

import asyncio
import itertools
import json
import secrets
import signal
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from nsde_policy.assets import SHIPPED, SHIPPED_POLICY
from nsde_policy.deploy.server.auth import is_loopback, json_log
from nsde_policy.errors import ConfigError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import get_method
from nsde_policy.viewer.app import Stage
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.policy_runner import Performer
from nsde_policy.viewer.server import ViewerServer


def performers(runs: Sequence[Path]) -> list[Performer]:
    """Load runs, each under a name of its own."""
    policies = [Policy.from_pretrained(run) for run in runs]
    titles = [get_method(policy.spec.method).title for policy in policies]
    return [
        Performer.of(name, f"{title}, {name}" if titles.count(title) > 1 else title, policy)
        for name, title, policy in zip(names(runs), titles, policies, strict=True)
    ]


def names(runs: Sequence[Path]) -> list[str]:
    """A name for each run: its directory's, after as many folders above it as it takes, then a number."""
    paths = [(SHIPPED,) if run == SHIPPED_POLICY else run.resolve().parts[1:] for run in runs]
    found: list[str] = []
    for path in paths:
        others = [other for other in paths if other != path]
        depth = 1
        while depth < len(path) and any(other[-depth:] == path[-depth:] for other in others):
            depth += 1
        name = "/".join(path[-depth:])
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], numbered) if each not in found))
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
