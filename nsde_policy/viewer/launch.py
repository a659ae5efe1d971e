"""Load policies for the viewer, and choose where it listens."""

import itertools
import secrets
from collections.abc import Sequence
from pathlib import Path

from nsde_policy.assets import get_shipped_name
from nsde_policy.deploy.server.auth import is_loopback
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import get_method
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.policy_runner import PolicyRunner


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
    shipped = [get_shipped_name(run) for run in runs]
    paths = [(name,) if name else run.resolve().parts[1:] for name, run in zip(shipped, runs, strict=True)]
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


def make_settings(
    host: str, port: int, token: str | None, tls_cert: Path | None = None, tls_key: Path | None = None
) -> ViewerSettings:
    """Return server settings; generate a token if one is required and none is given."""
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(16)
    return ViewerSettings(host=host, port=port, token=token, tls_cert=tls_cert, tls_key=tls_key)
