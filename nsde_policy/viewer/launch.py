"""Start an app: load policies, listen, print the address, stop on a signal."""

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
from nsde_policy.deploy.server.auth import build_json_log, is_loopback
from nsde_policy.errors import ConfigError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import get_method
from nsde_policy.viewer.app import App
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.policy_runner import PolicyRunner
from nsde_policy.viewer.server import ViewerServer


def load_runners(runs: Sequence[Path]) -> list[PolicyRunner]:
    """Load run directories under distinct names."""
    policies = [Policy.from_pretrained(run) for run in runs]
    titles = [get_method(policy.spec.method).title for policy in policies]
    return [
        PolicyRunner(name, f"{title}, {name}" if titles.count(title) > 1 else title, policy)
        for name, title, policy in zip(make_distinct_names(runs), titles, policies, strict=True)
    ]


def make_distinct_names(runs: Sequence[Path]) -> list[str]:
    """Name runs by their folder; add parent folders, then a number, until the names are distinct."""
    paths = [(SHIPPED,) if run == SHIPPED_POLICY else run.resolve().parts[1:] for run in runs]
    names: list[str] = []
    for path in paths:
        others = [other for other in paths if other != path]
        depth = 1
        while depth < len(path) and any(other[-depth:] == path[-depth:] for other in others):
            depth += 1
        name = "/".join(path[-depth:])
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        names.append(next(each for each in itertools.chain([name], numbered) if each not in names))
    return names


def make_settings(host: str, port: int, token: str | None) -> ViewerSettings:
    """Return server settings; generate a token if one is required and none is given."""
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(16)
    return ViewerSettings(host=host, port=port, token=token)


def run_app(app: App, settings: ViewerSettings, *, what: str, browser: bool, as_json: bool) -> None:
    """Serve an app until SIGTERM or Ctrl-C, and print its address to stdout."""
    server = ViewerServer(app, settings, build_json_log(sys.stderr))

    def announce(port: int) -> None:
        url, *elsewhere = settings.urls(port)
        text = f"{what}: {url}" + "".join(f"\n  from other machines: {each}" for each in elsewhere)
        facts = {"url": url, "elsewhere": elsewhere, "port": port}
        print(json.dumps(facts) if as_json else text, flush=True)
        if browser:
            _open_browser(url)

    asyncio.run(_run_until_signal(server, announce))


async def _run_until_signal(server: ViewerServer, announce: Callable[[int], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    await server.run(announce)


def _open_browser(url: str) -> None:
    try:
        if not webbrowser.open(url):
            print("no browser could be opened; open the address yourself", file=sys.stderr)
    except webbrowser.Error as error:
        raise ConfigError(f"no browser can be opened here ({error}); leave out --open") from None
