"""The live page in a real browser: what people see, drag and turn."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsde_policy.data.collection import Collection
from nsde_policy.viewer.play_app import Play
from nsde_policy.viewer.policy_runner import Performer
from nsde_policy.viewer.record_app import Teleop, by_hand
from tests.helpers.browser import DESKTOP, PHONE, Watched, chromium, watched
from tests.helpers.viewer_servers import SEED, Shown, shown, two_methods

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[Performer]:
    return two_methods(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture
def live(methods: list[Performer]) -> Iterator[Shown]:
    with shown(Play(methods, seed=SEED)) as house:
        yield house


@pytest.fixture
def page(browser: "Browser", live: Shown) -> "Iterator[Page]":
    context = browser.new_context(viewport=DESKTOP)
    seen = watched(context)
    opened(seen, live)
    yield seen.page
    context.close()
    assert not seen.errors
    assert all(url.startswith((live.url, live.url.replace("http", "ws"))) for url in seen.requests)


def opened(seen: Watched, live: Shown) -> None:
    seen.page.goto(live.url)
    until(seen.page, "!!viewer.frame && viewer.drawn > 3")


def until(page: "Page", script: str, patience_s: float = 20.0) -> Any:
    """Wait until a script is true in the page, whose security policy lets no other kind of waiting in."""
    ends = time.monotonic() + patience_s
    tried = f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"  # between two frames
    while not (found := page.evaluate(tried)):
        assert time.monotonic() < ends, f"never true: {script}; {page.evaluate('viewer.frame')}"
        page.wait_for_timeout(40)
    return found


def coverage(page: "Page", lane: int = 0) -> float:
    return float(page.evaluate(f"viewer.frame.lanes[{lane}].coverage"))


def on_screen(page: "Page", x: float, y: float, lane: int = 0) -> tuple[float, float]:
    """Where a point of the table is on the screen."""
    box = page.locator(".lane canvas").nth(lane).bounding_box()
    assert box is not None
    return box["x"] + x * box["width"] / 512, box["y"] + y * box["height"] / 512


def slide(page: "Page", name: str, value: float) -> None:
    """Turn a slider as a person with a keyboard would."""
    page.locator(f"#{name}").focus()
    page.locator(f"#{name}").fill(str(value))


def drag(page: "Page", start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*on_screen(page, *start))
    page.mouse.down()
    page.mouse.move(*on_screen(page, *end), steps=12)
    page.wait_for_timeout(150)
    page.mouse.up()


def middle(page: "Page", lane: int = 0) -> tuple[float, float]:
    """A point of the block, on its bar."""
    x, y = page.evaluate(
        f"(([x, y, a]) => [x - 15 * Math.sin(a), y + 15 * Math.cos(a)])(viewer.lanes[{lane}].pose.slice(2))"
    )
    return x, y


def test_the_page_loads_and_the_policy_runs(page: "Page"):
    assert page.title() == "nsde-policy play"
    assert page.locator("#banner").is_hidden()
    first, drawn = page.evaluate("viewer.frame.last"), page.evaluate("viewer.drawn")
    until(page, f"viewer.frame.last > {first} + 8")
    assert page.evaluate("viewer.drawn") > drawn + 16, "drawn more often than frames come"
    assert len(page.evaluate("viewer.frame.lanes[0].fan.paths")) == 24
    assert "ms to plan 8 actions" in page.locator(".lane .sub").inner_text()
    assert float(page.locator("#latency tr td").nth(2).inner_text()) > 0


def test_the_table_is_not_blank_and_the_agent_is_where_the_frame_says(page: "Page"):
    page.click("#pause")
    until(page, "viewer.state.paused")
    page.wait_for_timeout(400)
    colour, agent = page.evaluate(
        """() => {
            const lane = viewer.lanes[0], at = lane.pose.slice(0, 2).map((v) => Math.round(v * lane.scale));
            const css = getComputedStyle(document.documentElement).getPropertyValue("--agent").trim();
            return [css, [...lane.ctx.getImageData(...at, 1, 1).data].slice(0, 3)];
        }"""
    )
    assert "#" + "".join(f"{c:02x}" for c in agent) == colour


def test_a_block_dragged_away_is_brought_back(page: "Page"):
    slide(page, "speed", 4)
    until(page, "viewer.frame.lanes[0].solved", 60)
    assert "solved in" in page.locator(".score span").inner_text()
    x, y = middle(page)
    drag(page, (x, y), (x + 100, y - 70))
    until(page, "viewer.frame.lanes[0].coverage < 0.6")
    until(page, "viewer.frame.lanes[0].coverage > 0.8", 90)


def test_dragging_the_agent_takes_it_along(page: "Page"):
    page.click("#pause")
    until(page, "viewer.state.paused")
    page.wait_for_timeout(400)
    agent = page.evaluate("viewer.lanes[0].pose.slice(0, 2)")
    page.mouse.move(*on_screen(page, *agent))
    page.mouse.down()
    page.mouse.move(*on_screen(page, 60, 450), steps=8)
    until(page, "Math.hypot(viewer.lanes[0].pose[0] - 60, viewer.lanes[0].pose[1] - 450) < 8")
    page.mouse.up()
    page.click("#pause")
    until(page, "Math.hypot(viewer.lanes[0].pose[0] - 60, viewer.lanes[0].pose[1] - 450) > 20")


def test_the_wheel_and_the_handle_turn_the_block(page: "Page"):
    page.keyboard.press("Space")
    until(page, "viewer.state.paused")
    page.wait_for_timeout(400)
    before = page.evaluate("viewer.lanes[0].pose[4]")
    page.mouse.move(*on_screen(page, *middle(page)))
    for _ in range(6):
        page.mouse.wheel(0, 60)
        page.wait_for_timeout(30)
    until(page, f"Math.abs(Math.sin(viewer.lanes[0].pose[4] - {before})) > 0.3")
    page.wait_for_timeout(600)  # until the hand has let go

    x, y, angle = page.evaluate("viewer.lanes[0].pose.slice(2)")
    knob = x - 141 * math.sin(angle), y + 141 * math.cos(angle)
    page.mouse.move(*on_screen(page, *knob))
    assert page.evaluate("viewer.lanes[0].canvas.style.cursor") == "grab"
    page.mouse.down()
    page.mouse.move(
        *on_screen(page, knob[0] + 60 * math.cos(angle), knob[1] + 60 * math.sin(angle)), steps=10
    )
    page.wait_for_timeout(150)
    page.mouse.up()
    until(page, f"Math.sin({angle} - viewer.frame.lanes[0].trail.at(-1)[4]) > 0.3")
    cx, cy = page.evaluate("viewer.frame.lanes[0].trail.at(-1).slice(2, 4)")
    assert math.hypot(cx - x, cy - y) < 60, "it was turned, not carried"


def test_sliders_act(page: "Page"):
    wide = "Math.max(...viewer.frame.lanes[0].fan.sigma.flat())"
    slide(page, "diffusion", 0)
    until(page, f"viewer.state.controls.diffusion === 0 && {wide} === 0")
    slide(page, "diffusion", 3)
    until(page, f"{wide} > 2")
    slide(page, "alpha", 1.5)
    until(page, "viewer.state.controls.alpha === 1.5")
    slide(page, "paths", 40)
    until(page, "viewer.frame.lanes[0].fan.paths.length === 40")
    slide(page, "chunk", 2)
    until(page, "viewer.frame.lanes[0].latency.actions === 2")
    page.locator("#field").check()
    until(page, "viewer.frame.lanes[0].field.length > 20")
    assert page.locator("#alpha").locator("xpath=..").locator("output").inner_text() == "1.50"


def test_pause_step_reset_seed_and_keys(page: "Page"):
    page.keyboard.press("Space")
    until(page, "viewer.state.paused")
    page.wait_for_timeout(150)
    at = page.evaluate("viewer.frame.last")
    page.keyboard.press(".")
    until(page, f"viewer.frame.last === {at} + 1")
    page.click("#step")
    until(page, f"viewer.frame.last === {at} + 2")
    page.fill("#seed", "77")
    page.keyboard.press("Enter")
    until(page, "viewer.state.seed === 77 && viewer.frame.last === 0")
    page.click("#next")
    until(page, "viewer.state.seed === 78")
    page.locator("#seed").blur()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    assert "next method" in page.locator("#keys").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()


@pytest.mark.parametrize("typed", ["", "abc", "12.7", "-5", str(2**32), "1e3"])
def test_a_seed_is_a_whole_number_and_the_page_says_so(page: "Page", typed: str):
    page.fill("#seed", typed)
    page.keyboard.press("Enter")
    assert page.locator("#seed").input_value() == str(SEED)
    assert "whole number from 0 to 4294967295" in page.locator("#notice").inner_text()
    page.wait_for_timeout(150)
    assert page.evaluate("viewer.state.seed") == SEED


def test_the_largest_seed_is_one(page: "Page"):
    page.fill("#seed", f" {2**32 - 1} ")
    page.keyboard.press("Enter")
    until(page, f"viewer.state.seed === {2**32 - 1}")
    assert page.locator("#notice").is_hidden()


def test_space_pauses_whatever_was_clicked_before(page: "Page"):
    page.click("#theme")
    page.click("label:has(#onward)")
    until(page, "viewer.state.controls.onward")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("Space")
    until(page, "viewer.state.paused")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate("viewer.state.controls.onward")
    page.locator("#theme").focus()  # with the keyboard, it is a button
    page.keyboard.press("Space")
    assert page.evaluate("document.documentElement.dataset.theme") != theme


def test_the_table_is_most_of_the_page_and_nothing_is_left_over(page: "Page"):
    box = page.locator(".lane canvas").bounding_box()
    assert box is not None
    assert box["width"] > 700
    page.click("#beside")
    until(page, "viewer.frame?.lanes.length === 2 && viewer.lanes.length === 2")
    top, bottom = page.evaluate(
        "[document.querySelector('.time').getBoundingClientRect().top,"
        " Math.min(...viewer.lanes.map((lane) => lane.canvas.getBoundingClientRect().bottom))]"
    )
    assert top - bottom < 24
    assert page.evaluate("document.documentElement.scrollHeight") <= DESKTOP["height"]
    assert page.locator("#legend").get_by_text("agent of the second table").is_visible()
    assert page.locator("#legend").get_by_text("commands planned ahead").is_visible()
    assert page.locator("#legend").get_by_text("drift").is_hidden()


def test_the_ramp_follows_what_is_seen(page: "Page"):
    before = float(page.locator("#ramp-top").inner_text())
    assert 0.5 <= before < 4
    slide(page, "diffusion", 3)
    until(page, f"Number(document.getElementById('ramp-top').textContent) > {2 * before}")


def test_a_page_whose_token_is_void_says_so_and_stops_asking(browser: "Browser", methods: list[Performer]):
    seen = watched(browser.new_context(viewport=DESKTOP))
    with shown(Play(methods, seed=SEED), token="a" * 24) as first:
        seen.page.goto(first.url + "?token=" + "a" * 24)
        until(seen.page, "!!viewer.frame")
    with shown(Play(methods, seed=SEED), token="b" * 24, port=first.port) as second:
        until(seen.page, "document.getElementById('banner-text').textContent.includes('token')", 30)
        refused = len(second.wait_for("refused"))
        seen.page.wait_for_timeout(1500)
        assert len(second.wait_for("refused")) == refused, "asking again is in vain"
        seen.page.click("#retry")
        second.wait_for("refused", refused + 1)
        assert seen.page.locator("#live").inner_text() == "offline"
    seen.page.context.close()


def test_a_page_too_many_waits_for_a_place(browser: "Browser", methods: list[Performer]):
    with shown(Play(methods, seed=SEED), max_clients=1) as house:
        inside, outside = watched(browser.new_context()), watched(browser.new_context())
        opened(inside, house)
        outside.page.goto(house.url)
        until(outside.page, "document.getElementById('banner-text').textContent.includes('As many')")
        inside.page.context.close()
        until(outside.page, "!!viewer.frame && document.getElementById('banner').hidden")
        outside.page.context.close()


def test_how_long_it_took_is_the_same_for_who_comes_later(browser: "Browser", live: Shown, page: "Page"):
    slide(page, "speed", 4)
    until(page, "viewer.frame.lanes[0].solved", 60)
    later = watched(browser.new_context(viewport=DESKTOP))
    opened(later, live)
    words = later.page.locator(".score span").inner_text()
    assert words.startswith("solved in")
    assert words == page.locator(".score span").inner_text()
    later.page.context.close()


def test_a_recording_is_not_lost_by_a_key_or_a_seed(browser: "Browser", tmp_path: Path):
    with (
        Collection.open(tmp_path / "demos.zarr", by_hand("benchmark")) as collection,
        shown(Teleop(collection, seed_start=SEED)) as house,
    ):
        seen = watched(browser.new_context(viewport=DESKTOP))
        page = seen.page
        opened(seen, house)
        assert page.locator("#live").inner_text() == "ready"
        x, y = page.evaluate("viewer.lanes[0].pose.slice(0, 2)")
        page.mouse.move(*on_screen(page, x, y))
        until(page, "viewer.state.phase === 'recording'")
        assert page.locator("#live").inner_text() == "recording at 10 Hz"
        page.mouse.move(*on_screen(page, x + 20, y), steps=8)
        until(page, "viewer.frame.last > 4")
        page.keyboard.press("u")
        assert "discard the recording first" in page.locator("#notice").inner_text()
        notice, seed = page.locator("#notice").bounding_box(), page.locator("#seed").bounding_box()
        assert notice
        assert seed
        assert notice["y"] + notice["height"] < seed["y"]
        page.fill("#seed", "5")
        page.keyboard.press("Enter")
        page.wait_for_timeout(200)
        assert page.evaluate("[viewer.state.seed, viewer.frame.last > 4]") == [SEED, True]
        page.mouse.move(5, 5)
        until(page, "viewer.state.phase === 'paused'")
        assert page.locator("#live").inner_text() == "paused"
        box = page.locator(".lane canvas").bounding_box()
        assert box is not None
        x, y = page.evaluate("viewer.lanes[0].pose.slice(0, 2)")
        corner = (500, 500) if math.hypot(x - 500, y - 500) > 60 else (10, 10)
        page.mouse.move(*on_screen(page, *corner))
        page.wait_for_timeout(300)
        assert page.evaluate("viewer.state.phase") == "paused", "not until it is back at the agent"
        page.mouse.move(*on_screen(page, x, y))
        until(page, "viewer.state.phase === 'recording'")
        page.keyboard.press("Backspace")
        until(page, "viewer.state.phase === 'ready'")
        page.context.close()
        assert not seen.errors


def test_the_strip_leads_back_and_play_goes_on_from_there(page: "Page"):
    until(page, "viewer.frame.last > 40")
    box = page.locator("#strip").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 2 + (box["width"] - 4) * 20 / 300, box["y"] + 30)
    until(page, "viewer.frame.at === 20 && viewer.frame.paused")
    last = page.evaluate("viewer.frame.last")
    page.click("#pause")
    until(page, f"viewer.frame.last > 20 && viewer.frame.last < {last} && viewer.frame.at > 20")


def test_two_methods_side_by_side_start_alike_and_run(page: "Page"):
    page.click("#beside")
    until(page, "viewer.state.lanes.length === 2 && viewer.frame?.lanes.length === 2")
    assert page.evaluate("viewer.state.lanes") == ["shipped", "neighbours"]
    assert page.locator(".lane canvas").count() == 2
    until(page, "viewer.frame.last > 20")
    poses = page.evaluate("viewer.frame.lanes.map((lane) => lane.trail.at(-1).join())")
    assert poses[0] != poses[1]
    assert page.evaluate("viewer.frame.lanes.map((lane) => lane.latency.ms > 0)") == [True, True]
    page.locator(".lane select").first.select_option("neighbours")
    until(page, "viewer.state.lanes[0] === 'neighbours'")
    page.keyboard.press("s")
    until(page, "viewer.state.lanes.length === 1")


def test_a_server_that_went_away_is_told_and_found_again(browser: "Browser", methods: list[Performer]):
    context = browser.new_context(viewport=DESKTOP)
    seen = watched(context)
    with shown(Play(methods, seed=SEED)) as first:
        opened(seen, first)
        seen.page.evaluate("window.sameDocument = true")
        table = seen.page.locator(".lane canvas").bounding_box()
    assert until(seen.page, "!document.getElementById('banner').hidden")
    assert seen.page.locator(".lane canvas").bounding_box() == table, "the banner moves nothing"
    until(seen.page, "getComputedStyle(document.querySelector('main')).opacity < 0.5")
    assert "reconnecting" in seen.page.locator("#banner").inner_text()
    seen.page.click("#retry")
    with shown(Play(methods, seed=55), port=first.port):
        until(seen.page, "viewer.state?.seed === 55 && document.getElementById('banner').hidden", 30)
        until(seen.page, "viewer.frame.last > 3")
        assert seen.page.evaluate("window.sameDocument")
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser: "Browser", live: Shown, theme: Any):
    context = browser.new_context(viewport=PHONE, color_scheme=theme, has_touch=True, is_mobile=True)
    seen = watched(context)
    opened(seen, live)
    page = seen.page
    page.tap("#beside")
    until(page, "viewer.state.lanes.length === 2")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.tap("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    small = page.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter((e) => e.offsetParent)"
        ".map((e) => [e.id, (e.closest('.switch') ?? e).getBoundingClientRect()])"
        ".filter(([, box]) => Math.min(box.height, box.width) < 40)"
        ".map(([id, box]) => [id, box.width, box.height])"
    )
    assert small == [], "too small for a finger"
    tops = page.evaluate("viewer.lanes.map((lane) => lane.canvas.getBoundingClientRect().toJSON())")
    assert tops[1]["top"] > tops[0]["bottom"], "one above the other"
    assert min(box["width"] for box in tops) > 340
    assert page.locator(".button kbd").first.is_hidden()
    context.close()
    assert not seen.errors


def test_everything_that_can_be_turned_has_a_name(page: "Page"):
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, canvas')].filter((e) => e.offsetParent && "
        "!(e.labels?.length || e.getAttribute('aria-label') || e.innerText?.trim())).map((e) => e.outerHTML)"
    )
    assert unnamed == []


def test_a_finger_drags_the_block_and_does_not_scroll_the_page(browser: "Browser", live: Shown):
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    seen = watched(context)
    opened(seen, live)
    page = seen.page
    page.tap("#pause")
    until(page, "viewer.state.paused")
    page.wait_for_timeout(400)
    scrolled = page.evaluate("scrollY")
    start, end = on_screen(page, *middle(page)), on_screen(page, 120, 400)
    touch = context.new_cdp_session(page)

    def finger(kind: str, *points: tuple[float, float]) -> None:
        places = [{"x": x, "y": y} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    finger("touchStart", start)
    for k in range(1, 11):
        finger("touchMove", tuple(a + (b - a) * k / 10 for a, b in zip(start, end, strict=True)))  # type: ignore[arg-type]
        page.wait_for_timeout(30)
    finger("touchEnd")
    until(page, "(([, , x, y]) => Math.hypot(x - 120, y - 400) < 60)(viewer.frame.lanes[0].trail.at(-1))")
    assert page.evaluate("scrollY") == scrolled
    context.close()
    assert not seen.errors
