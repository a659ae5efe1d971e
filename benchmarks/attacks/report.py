"""Script injection: names, titles and settings that hold markup, in the report and on the live page."""

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks._attempts import REFUSED, SURVIVED, Attack, Attempt
from nsde_policy.cli.main import main
from nsde_policy.inference.policy import Policy
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner
from tests.helpers.browser import chromium
from tests.helpers.comparisons import make_comparison, make_entry
from tests.helpers.viewer_servers import run_viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAYLOADS = tuple(
    payload.replace("CODE", "window.pwned=1")
    for payload in (
        "</script><script>CODE</script>",
        '<img src=x onerror="CODE">',
        '"><svg onload=CODE>',
        "'><svg/onload=CODE>",
        "<!--<script>CODE//-->",
        "--></script><script>CODE</script><!--",
        "</style><script>CODE</script>",
        "</title></textarea><iframe srcdoc='<script>parent.CODE</script>'>",
        "<a href=javascript:CODE id=injected autofocus onfocus=CODE>",
        "${CODE}`;CODE;//",
        "\\u003cscript>CODE\\u003c/script>\u2028CODE",
        "'-CODE-'\"-CODE-\"",
        "&lt;script&gt;CODE&lt;/script&gt;",
        "]]><script>CODE</script>",
        "<x onclick=CODE style=position:fixed;inset:0 id=injected>",
    )
)
FIELDS = ("name", "title", "method", "preset", "sampling", "machine", "env_kwargs", "metrics", "task")
"""Texts of a comparison that the report shows, or might."""
FOUND = (
    "() => [window.pwned, document.querySelectorAll("
    "'#injected, iframe, x, [onerror], [onload], [onclick], [onfocus], img[src=x], a[href^=javascript]'"
    ").length]"
)


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Start Chromium, and check that it shows an injected element of a page that does not escape."""
    browser, policy = stack.enter_context(chromium()), Policy.from_pretrained()
    control = folder / "control.html"
    control.write_text(f"<!doctype html><title>control</title>{PAYLOADS[1]}")
    if inspect(browser, control.as_uri()) == SURVIVED:
        raise RuntimeError("the browser does not show an injected element; the attack would find nothing")

    def attack(rng: random.Random, number: int) -> Attempt:
        payload, field = rng.choice(PAYLOADS), rng.choice(FIELDS)
        if number % 5 == 4:
            what = f"method {payload!r}"
            return Attempt("live page", what, lambda: open_viewer(browser, policy, payload))
        what = f"{field} = {payload!r}"
        return Attempt("comparison files", what, lambda: open_report(browser, folder, field, payload))

    return attack


def inspect(browser: "Browser", address: str) -> str:
    """Open a page and return whether a payload became markup or code."""
    page, dialogs = browser.new_page(), list[str]()
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(address)
    page.wait_for_timeout(150)
    executed, elements = page.evaluate(FOUND)
    page.close()
    if executed or elements or dialogs:
        return f"executed {executed}, {elements} injected elements, dialogs {dialogs}"
    return SURVIVED


def open_report(browser: "Browser", folder: Path, field: str, payload: str) -> str:
    """Put a payload into a text of a comparison file, make a report of it and open the page."""
    source, page = folder / "comparison.json", folder / "report.html"
    source.write_text(json.dumps(inject(field, payload)))
    code = main(["report", "--from-json", str(source), "--title", payload, "--out", str(page)])
    if code:
        return REFUSED if code == 2 else f"exit code {code}"
    return inspect(browser, page.as_uri())


def inject(field: str, payload: str) -> dict[str, Any]:
    """Return a small comparison with a payload in one of its texts."""
    found: dict[str, Any] = json.loads(make_comparison(make_entry()).to_json())
    entry = found["entries"][0]
    if field == "metrics":
        entry["episodes"]["metrics"] = {payload: next(iter(entry["episodes"]["metrics"].values()))}
    elif field == "sampling":
        entry["sampling"] = {payload: payload}
    elif field in ("machine", "env_kwargs"):
        found[field] = {"play": payload, payload: payload}
    else:
        (found if field == "task" else entry)[field] = payload
    return found


def open_viewer(browser: "Browser", policy: Policy, payload: str) -> str:
    """Give policies of the live page a payload as name and title, and cause notices that repeat it."""
    runners = [PolicyRunner(payload, payload, policy), PolicyRunner(f"b{payload}", f"B{payload}", policy)]
    app = PlayApp(runners, seed=100_000)
    with run_viewer(app) as running:
        for methods in ([payload, f"b{payload}"], [f"unknown{payload}"[:300]]):
            with running.connect() as page:
                page.send(json.dumps({"do": "select_methods", "methods": methods}))
        answer = inspect(browser, running.url)
    app.close(5.0)
    return answer
