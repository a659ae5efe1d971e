"""Script injection: names, titles and settings that hold markup, in the report and on the live page."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks._servers import run_viewer
from attacks.result import AttackResult
from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.inference.policy import Policy
from nsde_policy.viewer.policy_runner import PolicyRunner

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EXECUTED = "pwned=1"
"""What every payload tries to run; it would set `window.pwned`."""
PAYLOADS = tuple(
    payload.replace("CODE", f"window.{EXECUTED}")
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
CHROMIUM_FLAGS = ["--no-sandbox", "--headless=new", "--disable-gpu", "--no-first-run"]


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Open pages with injected texts in Chromium; `scale` 1 takes about three minutes on two cores."""
    del seed  # every payload is tried in every place
    payloads = PAYLOADS[: max(1, round(len(PAYLOADS) * min(scale, 1.0)))]
    with tempfile.TemporaryDirectory() as folder, run_chromium() as browser:
        check_detection(browser, Path(folder))
        yield attack_comparison(browser, Path(folder), payloads)
        yield attack_runs(browser, Path(folder), payloads[: max(1, len(payloads) // 4)])
        yield attack_viewer(browser, payloads)


@contextmanager
def run_chromium() -> "Iterator[Browser]":
    """Run a headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def check_detection(browser: "Browser", folder: Path) -> None:
    """Raise `RuntimeError` unless a page that does not escape a payload is found."""
    control, found = folder / "control.html", AttackResult("control")
    control.write_text(f"<!doctype html><title>control</title>{PAYLOADS[1]}")
    inspect(browser.new_page(), control.as_uri(), "control", found)
    if not found.bugs:
        raise RuntimeError("the browser does not show an injected element; the attack would find nothing")


def inspect(page: "Page", address: str, what: str, result: AttackResult) -> None:
    """Open a page and count whether a payload became markup or code."""
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(address)
    page.wait_for_timeout(150)
    executed, elements = page.evaluate(FOUND)
    if executed or elements or dialogs:
        result.bugs.append(f"{what}: executed {executed}, {elements} injected elements, dialogs {dialogs}")
    else:
        result.survived += 1
    page.close()


def attack_comparison(browser: "Browser", folder: Path, payloads: tuple[str, ...]) -> AttackResult:
    """Put payloads into each text of a comparison file and make a report of it."""
    result = AttackResult("report: script injection by comparison files")
    for number, payload in enumerate(("harmless", *payloads)):
        for field in FIELDS:
            source, page = folder / "comparison.json", folder / f"report-{number}-{field}.html"
            source.write_text(json.dumps(make_comparison(field, payload)))
            code, said = call(["report", "--from-json", str(source), "--out", str(page), "--title", payload])
            what = f"{field} = {payload!r}"
            if code == 2 and said.count("\n") == 1 and (number or field == "task"):
                result.refused += 1
            elif code != 0:
                result.bugs.append(f"{what}: exit code {code}, {said[-200:]!r}")
            else:
                inspect(browser.new_page(), page.as_uri(), what, result)
    return result


def make_comparison(field: str, payload: str) -> dict[str, Any]:
    """Return a small comparison file with a payload in one of its texts."""
    entry: dict[str, Any] = {
        "name": "neural_sde, a",
        "title": "Neural SDE",
        "method": "neural_sde",
        "preset": "default",
        "train_seed": 0,
        "demos": 206,
        "chunk": 8,
        "sampling": {"steps": "ten"},
        "condition": {"latency_steps": 0, "obs_noise": 0.0, "push": 0.0},
        "parameters": 1000,
        "train_steps": 100,
        "train_s": 1.5,
        "calls_per_chunk": 8.0,
        "latency_ms": {"median": 6.0, "p99": 8.0},
        "episodes": {
            "seed": [100_000, 100_001],
            "score": [1.0, 0.5],
            "success": [True, False],
            "metrics": {"final_coverage": [0.95, 0.4]},
            "steps": [100, 300],
        },
    }
    found: dict[str, Any] = {
        "format": 2,
        "task": "pusht",
        "env_kwargs": {"reset_rule": "benchmark"},
        "seeds": [100_000, 100_001],
        "machine": {"train": "a machine", "play": "a machine", "torch": "2.0"},
        "entries": [entry],
    }
    if field in ("sampling", "metrics"):
        values = entry["episodes"] if field == "metrics" else entry
        values[field] = {payload: [0.5, 0.5] if field == "metrics" else payload}
    elif field in ("machine", "env_kwargs"):
        found[field] = {**found[field], payload: payload}
    elif field == "task":
        found["task"] = payload
    else:
        entry[field] = f"neural_sde, {payload}" if field == "name" else payload
    return found


def attack_runs(browser: "Browser", folder: Path, payloads: tuple[str, ...]) -> AttackResult:
    """Put payloads into the path and the records of a run and make a report of its episodes."""
    result = AttackResult("report: script injection by run directories")
    for number, payload in enumerate(payloads):
        run = folder / f"runs-{number}" / payload  # its slashes make folders
        shutil.copytree(SHIPPED_POLICY, run)
        page = folder / f"runs-{number}.html"
        quick = ["--episodes", "1", "--workers", "1", "--latency-rounds", "0", "--videos", "0"]
        quick += ["--env-kwargs", '{"max_episode_steps": 3}', "--cache", str(folder / f"cache-{number}")]
        poison_records(run, payload)
        code, said = call(["report", str(run), *quick, "--out", str(page)])
        if code == 2 and said.count("\n") == 1:
            result.refused += 1
        elif code != 0:
            result.bugs.append(f"run at {payload!r}: exit code {code}, {said[-200:]!r}")
        else:
            inspect(browser.new_page(), page.as_uri(), f"run at {payload!r}", result)
    return result


def poison_records(run: Path, payload: str) -> None:
    """Replace texts in the records of a run that do not decide how it is read."""
    for path in run.glob("*.json"):
        values = json.loads(path.read_text())
        for key in ("versions", "machine", "device", "command", "demos"):
            if isinstance(values.get(key), dict):
                values[key] = {k: payload if isinstance(v, str) else v for k, v in values[key].items()}
            elif isinstance(values.get(key), str):
                values[key] = payload
        path.write_text(json.dumps(values))


def call(args: list[str]) -> tuple[int, str]:
    """Run a command of the package; return its exit code and what it printed to standard error."""
    said = StringIO()
    with redirect_stderr(said):
        try:
            code = main(args)
        except BaseException as error:
            return 1, repr(error)
    return code, said.getvalue()


def attack_viewer(browser: "Browser", payloads: tuple[str, ...]) -> AttackResult:
    """Give the policies of the live page payloads as names and titles, and cause notices that repeat them."""
    result, policy = AttackResult("report: script injection into the live page"), Policy.from_pretrained()
    for payload in payloads:
        runners = [PolicyRunner(payload, payload, policy), PolicyRunner(f"b{payload}", f"B{payload}", policy)]
        with run_viewer(runners=runners) as port:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            send = "text => new Promise(done => { const s = new WebSocket(`ws://${location.host}/live`); "
            send += "s.onopen = () => { s.send(text); setTimeout(() => { s.close(); done(); }, 100); }; })"
            page.evaluate(send, json.dumps({"do": "select_methods", "methods": [payload, f"b{payload}"]}))
            page.evaluate(send, json.dumps({"do": "select_methods", "methods": [f"unknown{payload}"[:300]]}))
            page.close()
            inspect(browser.new_page(), f"http://127.0.0.1:{port}/", f"method {payload!r}", result)
    return result
