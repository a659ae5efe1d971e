"""Tests for nsde_policy/viewer/static, in a real browser."""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nsde_policy.viewer.messages import Pause, SelectMethods, SetControl
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import PolicyRunner
from tests.helpers.browser import DESKTOP, PHONE, SIZES, check_layout, open_page, wait_until
from tests.helpers.viewer_servers import (
    SEED,
    RunningViewer,
    run_events,
    run_viewer,
    show_viewer,
    to_screen,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

SETTLED = "drag === null && viewer.panels[0].pose.join() === viewer.frame.panels[0].trail.at(-1).join()"
"""JavaScript: the page draws the newest pose, not one between two frames or under the pointer."""
ON_PHONE: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True}


@pytest.fixture
def viewer(methods: list[PolicyRunner]) -> Iterator[RunningViewer]:
    app = PlayApp(methods, seed=SEED)
    run_events(app, SetControl("paths", 5))  # less to draw
    with run_viewer(app) as viewer_server:
        yield viewer_server


@pytest.fixture
def page(browser: "Browser", viewer: RunningViewer) -> "Iterator[Page]":
    with show_viewer(browser, viewer) as shown:
        yield shown


def play_until(methods: list[PolicyRunner], condition: Callable[[PlayApp], object]) -> PlayApp:
    """Play in this thread, as fast as possible, until a condition holds."""
    app = PlayApp(methods, seed=SEED, plan_timeout_s=10)
    run_events(app, SetControl("speed", 4), SetControl("paths", 1))
    for _ in range(300):
        run_events(app, 1)
        if condition(app):
            return app
    pytest.fail("the episode ended before")


def pause(page: "Page") -> None:
    """Pause, and wait until a frame made after that is drawn."""
    page.click("#pause")
    wait_until(page, f"viewer.frame.paused && {SETTLED}")


def slide(page: "Page", name: str, value: float) -> None:
    """Move a slider with the keyboard."""
    page.locator(f"#{name}").focus()
    page.locator(f"#{name}").fill(str(value))


def drag(page: "Page", start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*to_screen(page, *start))
    page.mouse.down()
    page.mouse.move(*to_screen(page, *end), steps=12)
    page.wait_for_timeout(150)
    page.mouse.up()


def block_point(page: "Page") -> tuple[float, float]:
    """Return a point on the bar of the block."""
    x, y, angle = page.evaluate("viewer.panels[0].pose.slice(2)")
    return x - 15 * math.sin(angle), y + 15 * math.cos(angle)


def hover_handle(page: "Page") -> tuple[list[float], tuple[float, float]]:
    """Move the pointer to the handle of the block, until it lies still there; return block and handle."""
    for _ in range(200):
        x, y, angle = page.evaluate("viewer.panels[0].pose.slice(2)")
        handle = x - 141 * math.sin(angle), y + 141 * math.cos(angle)
        page.mouse.move(*to_screen(page, *handle))
        if page.evaluate(f"{SETTLED} && viewer.panels[0].canvas.style.cursor === 'grab'"):
            return [x, y, angle], handle
        page.wait_for_timeout(50)
    pytest.fail("the handle could not be grabbed")


def test_page_loads_and_draws_the_running_policy(page: "Page"):
    assert page.title() == "nsde-policy play"
    assert page.locator("#banner").is_hidden()
    first = page.evaluate("viewer.frame.last")
    wait_until(page, f"viewer.frame.last > {first} + 8")
    assert len(page.evaluate("viewer.frame.panels[0].fan.paths")) == 5
    assert "ms to plan 8 actions" in page.locator(".panel .sub").inner_text()
    pause(page)
    page.wait_for_function(
        """() => {
            const panel = viewer.panels[0];
            const at = panel.pose.slice(0, 2).map((v) => Math.round(v * panel.scale));
            const css = getComputedStyle(document.documentElement).getPropertyValue("--agent").trim();
            const drawn = [...panel.ctx.getImageData(...at, 1, 1).data].slice(0, 3);
            return "#" + drawn.map((c) => c.toString(16).padStart(2, "0")).join("") === css;
        }""",
        timeout=10_000,
    )


def test_a_block_that_is_dragged_away_is_recovered(browser: "Browser", methods: list[PolicyRunner]):
    with (
        run_viewer(play_until(methods, lambda app: app.state()["progress"][0][-1] > 0.9)) as viewer_server,
        show_viewer(browser, viewer_server) as page,
    ):
        wait_until(page, "viewer.frame.panels[0].solved")
        with show_viewer(browser, viewer_server) as later:
            words = later.locator(".score span").inner_text()
        assert words.startswith("solved in")
        assert words == page.locator(".score span").inner_text()
        x, y = block_point(page)
        at = "[256, 190].map((v) => Math.round(v * viewer.panels[0].scale))"
        hint = page.evaluate(f"[...viewer.panels[0].ctx.getImageData(...{at}, 1, 1).data].slice(0, 3)")
        assert hint == page.evaluate("colours.ink.match(/\\w\\w/g).map((part) => parseInt(part, 16))"), (
            "drag me"
        )
        drag(page, (x, y), (x + 50, y - 35))
        wait_until(page, "viewer.frame.panels[0].progress < 0.6")
        recovery = "(({ solved, released_at, solved_at }) => solved && [released_at, solved_at])"
        recovery += "(viewer.frame.panels[0])"
        released, solved = wait_until(page, recovery)
        assert page.locator(".score span").inner_text() == f"recovered in {(solved - released) / 10:.1f} s"


def test_agent_can_be_dragged(page: "Page"):
    pause(page)
    page.mouse.move(*to_screen(page, *page.evaluate("viewer.panels[0].pose.slice(0, 2)")))
    page.mouse.down()
    page.mouse.move(*to_screen(page, 60, 450), steps=8)
    wait_until(page, "Math.hypot(viewer.panels[0].pose[0] - 60, viewer.panels[0].pose[1] - 450) < 8")
    page.mouse.up()


def test_the_handle_turns_the_block(page: "Page"):
    pause(page)
    (x, y, angle), handle = hover_handle(page)
    drag(page, handle, (handle[0] + 60 * math.cos(angle), handle[1] + 60 * math.sin(angle)))
    wait_until(page, f"Math.sin({angle} - viewer.frame.panels[0].trail.at(-1)[4]) > 0.3")
    cx, cy = page.evaluate("viewer.frame.panels[0].trail.at(-1).slice(2, 4)")
    assert math.hypot(cx - x, cy - y) < 60, "it was turned, not moved"


def test_sliders_change_the_controls_and_the_sampled_paths(page: "Page"):
    different = "new Set(viewer.frame.panels[0].fan.paths.map(String)).size"
    learned = "Math.min(...viewer.frame.panels[0].fan.sigma.flat())"
    slide(page, "speed", 0.25)  # nothing is planned after the end of the episode
    slide(page, "diffusion", 0)
    wait_until(page, f"viewer.state.controls.diffusion === 0 && {different} === 1 && {learned} > 0")
    slide(page, "diffusion", 3)
    wait_until(page, f"viewer.state.controls.diffusion === 3 && {different} > 1")
    slide(page, "alpha", 1.5)
    wait_until(page, "viewer.state.controls.alpha === 1.5")
    slide(page, "paths", 40)
    wait_until(page, "viewer.frame.panels[0].fan.paths.length === 40")
    slide(page, "chunk", 2)
    wait_until(page, "viewer.frame.panels[0].latency.actions === 2")
    assert page.locator("#alpha").locator("xpath=..").locator("output").inner_text() == "1.50"


def test_pause_reset_seed_and_keys_work(page: "Page"):
    page.click("#reset")  # a clicked button does not keep the focus, so that Space pauses
    page.keyboard.press("Space")
    wait_until(page, f"viewer.frame.paused && {SETTLED}")
    page.fill("#seed", f" {2**32 - 1} ")
    page.keyboard.press("Enter")
    wait_until(page, f"viewer.state.seed === {2**32 - 1} && viewer.frame.last === 0")
    page.click("#next")
    wait_until(page, "viewer.state.seed === 0")
    for typed in ("", "12.7", "-5", str(2**32)):
        page.evaluate("document.getElementById('notice').textContent = ''")
        page.fill("#seed", typed)
        page.keyboard.press("Enter")
        assert page.locator("#seed").input_value() == "0"
        assert "whole number from 0 to 4294967295" in page.locator("#notice").inner_text(), typed


def test_two_methods_run_side_by_side_and_fill_the_page(page: "Page"):
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, canvas')].filter((e) => e.offsetParent && "
        "!(e.labels?.length || e.getAttribute('aria-label') || e.innerText?.trim())).map((e) => e.outerHTML)"
    )
    assert unnamed == [], "every control has a name"
    page.click("#compare")
    wait_until(page, "viewer.frame?.panels.length === 2 && viewer.panels.length === 2")
    assert page.evaluate("viewer.state.panels") == ["shipped", "neighbours"]
    bottom = "Math.min(...viewer.panels.map((panel) => panel.canvas.getBoundingClientRect().bottom))"
    assert page.evaluate(f"document.querySelector('.timeline').getBoundingClientRect().top - {bottom}") < 24
    assert page.evaluate("document.documentElement.scrollHeight") <= DESKTOP["height"]
    for text in ("second method", "planned actions"):
        assert page.locator("#legend").get_by_text(text).is_visible()
    legend = "document.querySelector('#legend').getBoundingClientRect()"
    for size in (DESKTOP, {"width": 1024, "height": 768}):
        page.set_viewport_size(size)
        wait_until(page, f"{legend}.bottom < innerHeight && {legend}.height > 40")
        assert page.evaluate("document.querySelector('.controls').contains(legendCard)") is False
    page.set_viewport_size(DESKTOP)
    wait_until(page, "viewer.frame.last > 20")
    poses = page.evaluate("viewer.frame.panels.map((panel) => panel.trail.at(-1).join())")
    assert poses[0] != poses[1]
    assert page.evaluate("viewer.frame.panels.map((panel) => panel.latency.ms > 0)") == [True, True]
    page.locator(".panel select").first.select_option("neighbours")
    wait_until(page, "viewer.state.panels[0] === 'neighbours'")
    page.keyboard.press("s")
    wait_until(page, "viewer.state.panels.length === 1")


@pytest.mark.parametrize("count", [1, 2])
def test_everything_is_in_its_card_and_tables_are_level(
    browser: "Browser", methods: list[PolicyRunner], count: int
):
    app = play_until(methods, lambda app: app.frame()["panels"][0]["solved"])
    run_events(app, SetControl("obs_noise", 1), SelectMethods(("shipped", "neighbours")[:count]), Pause(True))
    with run_viewer(app) as viewer_server, show_viewer(browser, viewer_server) as page:
        check_layout(page, "#pause")
        for size in SIZES:
            page.set_viewport_size(size)
            lines = page.evaluate(
                "[...document.querySelectorAll('.score b')].map((b) => { b.textContent = '100 %';"
                " return Math.round(b.offsetHeight / parseFloat(getComputedStyle(b).fontSize)); })"
            )
            assert lines == [1] * count, "percentages do not wrap"
            tops = page.evaluate("viewer.panels.map((panel) => panel.canvas.getBoundingClientRect().top)")
            assert len({*tops}) == 1 or size == PHONE, "the tables are level"


def test_page_reports_a_lost_server_and_reconnects(browser: "Browser", methods: list[PolicyRunner]):
    seen = open_page(browser.new_context(viewport=DESKTOP))
    with run_viewer(PlayApp(methods, seed=SEED)) as first:
        seen.page.goto(first.url)
        wait_until(seen.page, "!!viewer.frame")
        seen.page.evaluate("window.sameDocument = true")
        table = seen.page.locator(".panel canvas").bounding_box()
    assert wait_until(seen.page, "!document.getElementById('banner').hidden")
    assert seen.page.locator(".panel canvas").bounding_box() == table, "the banner must not move the page"
    assert "reconnecting" in seen.page.locator("#banner").inner_text()
    with run_viewer(PlayApp(methods, seed=55), port=first.port):
        wait_until(seen.page, "viewer.state?.seed === 55 && document.getElementById('banner').hidden")
        assert seen.page.evaluate("window.sameDocument")
        seen.page.context.close()


def test_phone_layout_never_scrolls_sideways_and_a_finger_drags_the_block(
    browser: "Browser", viewer: RunningViewer
):
    with show_viewer(browser, viewer, color_scheme="dark", **ON_PHONE) as page:
        pause(page)
        scrolled = page.evaluate("scrollY")
        start, end = np.array(to_screen(page, *block_point(page))), np.array(to_screen(page, 120, 400))
        touch = page.context.new_cdp_session(page)
        for k in range(11):
            x, y = start + k / 10 * (end - start)
            kind = "touchMove" if k else "touchStart"
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
            page.wait_for_timeout(30)
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        near = "(([, , x, y]) => Math.hypot(x - 120, y - 400) < 60)(viewer.frame.panels[0].trail.at(-1))"
        wait_until(page, near)
        assert page.evaluate("scrollY") == scrolled
        page.tap("#compare")
        wait_until(page, "viewer.state.panels.length === 2")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        small = page.evaluate(
            "[...document.querySelectorAll('button, select, input')].filter((e) => e.offsetParent)"
            ".map((e) => [e.id, (e.closest('.switch') ?? e).getBoundingClientRect()])"
            ".filter(([, box]) => Math.min(box.height, box.width) < 40)"
            ".map(([id, box]) => [id, box.width, box.height])"
        )
        assert small == [], "too small for a finger"
        tops = page.evaluate("viewer.panels.map((panel) => panel.canvas.getBoundingClientRect().toJSON())")
        assert tops[1]["top"] > tops[0]["bottom"], "one above the other"
        assert min(box["width"] for box in tops) > 340
