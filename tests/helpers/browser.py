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
SIZES = DESKTOP, {"width": 1024, "height": 700}, {"width": 844, "height": 390}, PHONE
LAYOUT_FAULTS = """(() => {
    const name = (e) => `${e.tagName}#${e.id}.${e.className} "${(e.textContent ?? "").trim().slice(0, 30)}"`;
    const faults = [], wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) faults.push(`the page is ${wide} px wide in a window of ${innerWidth} px`);
    for (const card of document.querySelectorAll(".card, .timeline, .panel, .top, main > section")) {
        const outer = card.getBoundingClientRect();
        for (const element of card.querySelectorAll(":not(svg *)")) {
            let { left, right, top, bottom } = element.getBoundingClientRect();
            for (let box = element.parentElement; box !== card.parentElement; box = box.parentElement) {
                if (getComputedStyle(box).overflow === "visible") continue;
                const clip = box.getBoundingClientRect();             // what is scrolled away is not seen
                [left, right] = [Math.max(left, clip.left), Math.min(right, clip.right)];
                [top, bottom] = [Math.max(top, clip.top), Math.min(bottom, clip.bottom)];
            }
            const seen = element.checkVisibility() && right - left > 1 && bottom - top > 1 && right > 0;
            const across = Math.max(right - outer.right, outer.left - left);
            const beyond = Math.max(across, bottom - outer.bottom, outer.top - top);
            if (!seen || !outer.width || beyond <= 1) continue;
            faults.push(`${name(element)} is ${beyond} px outside ${name(card)}`);
        }
    }
    return faults;
})()"""
"""JavaScript: what leaves its card or the window."""


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


def check_layout(page: "Page", control: str) -> None:
    """Assert for four sizes, light and dark, that everything is inside its card and a control is in sight."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for size in SIZES:
            page.set_viewport_size(size)
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            page.evaluate("scrollTo(0, 0)")
            faults = page.evaluate(LAYOUT_FAULTS)
            assert not faults, (scheme, size, faults)
            box = page.locator(control).first.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= size["width"]
            assert 0 <= box["y"] <= size["height"] - box["height"], (scheme, size, box)


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
