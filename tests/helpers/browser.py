"""Headless Chromium for tests of web pages, driven by Playwright.

If Chromium or Playwright is missing, tests that need them are skipped with the reason; with
NSDE_POLICY_REQUIRE_CHROMIUM=1, as in CI, they fail instead. Mark such tests with `pytest.mark.browser`.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

REQUIRED = "NSDE_POLICY_REQUIRE_CHROMIUM"
FLAGS = [
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Run a headless browser; skip or fail the test if it is not installed."""
    executable = shutil.which("chromium")
    if executable is None:
        _skip_or_fail("no chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip_or_fail("no playwright: pip install 'nsde-policy[dev]'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def _skip_or_fail(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1)")
    pytest.skip(reason)


def wait_until(page: "Page", expression: str, timeout_s: float = 60.0) -> Any:
    """Wait until a JavaScript expression is true in the page and return its value.

    Playwright's `wait_for_function` uses eval, which the content security policies of our pages forbid. An
    exception counts as false: between two messages, the state of a page may be incomplete.
    """
    ends = time.monotonic() + timeout_s
    guarded = f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"
    while not (value := page.evaluate(guarded)):
        assert time.monotonic() < ends, f"not true within {timeout_s:g} s: {expression}"
        page.wait_for_timeout(40)
    return value


@dataclass
class MonitoredPage:
    """A page with a record of its errors and requests."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and uncaught exceptions."""
    requests: list[str] = field(default_factory=list)
    """URLs it requested, without data: and blob:."""


def open_page(context: "BrowserContext") -> MonitoredPage:
    """Open an empty page and record its errors and requests from the start."""
    monitored = MonitoredPage(context.new_page())
    monitored.page.on("pageerror", lambda error: monitored.errors.append(str(error)))
    monitored.page.on(
        "console",
        lambda message: (
            monitored.errors.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    monitored.page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("data:", "blob:")) else monitored.requests.append(request.url)
        ),
    )
    return monitored
