"""A real browser for tests of pages: Debian's Chromium, driven by Playwright.

Where Chromium or Playwright is missing, tests that need them skip, with the reason; with
NSDE_POLICY_REQUIRE_CHROMIUM=1, as in CI, they fail instead.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    """A headless browser; skips the test, or fails it, where there is none."""
    executable = shutil.which("chromium")
    if executable is None:
        _absent("no chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _absent("no playwright: pip install 'nsde-policy[dev]'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def _absent(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1)")
    pytest.skip(reason)


def until(page: "Page", expression: str) -> None:
    """Wait until an expression holds in the page; unlike Playwright's own, also where a page forbids eval."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true in the page: {expression}")


@dataclass
class Watched:
    """A page, and what it said and asked for that a good page does not."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions nobody caught."""
    requests: list[str] = field(default_factory=list)
    """Addresses it asked for, but those within itself (data:, blob:)."""


def watched(context: "BrowserContext") -> Watched:
    """A new page that is listened to from the beginning."""
    seen = Watched(context.new_page())
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on(
        "console",
        lambda message: seen.errors.append(message.text) if message.type in ("error", "warning") else None,
    )
    seen.page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("data:", "blob:")) else seen.requests.append(request.url)
        ),
    )
    return seen
