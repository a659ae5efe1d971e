"""The picture of the live page in the README: a block dragged off its goal, and the policy bringing it back.

    python benchmarks/viewer_pictures.py --out docs/images/play.png

Drives headless Chromium as a person would; how the episode goes after the drag depends on its timing.
"""

import argparse
import asyncio
import io
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.viewer.door import ViewerSettings
from nsde_policy.viewer.play import Play
from nsde_policy.viewer.server import ViewerServer
from nsde_policy.viewer.showing import performers

SEED = 100_003
AFTER_DRAG = 24
"""Control periods from letting go of the block to the picture."""


def until(page: Any, script: str) -> None:
    ends = time.monotonic() + 60
    while not page.evaluate(f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"):
        if time.monotonic() > ends:
            raise TimeoutError(script)
        page.wait_for_timeout(20)


def picture(url: str, theme: Any, size: tuple[int, int], after: int) -> bytes:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless=new", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
        page.goto(url)
        until(page, "viewer.frame.lanes[0].solved")
        page.wait_for_timeout(500)
        box = page.locator(".lane canvas").bounding_box()
        assert box is not None
        x, y = page.evaluate("viewer.lanes[0].pose.slice(2, 4)")
        scale = box["width"] / 512
        at = box["x"] + (x - 15 * 0.7) * scale, box["y"] + (y + 15 * 0.7) * scale
        page.mouse.move(*at)
        page.mouse.down()
        page.mouse.move(at[0] + 110 * scale, at[1] - 120 * scale, steps=25)
        page.wait_for_timeout(300)
        page.mouse.up()
        page.mouse.move(5, 5)
        let_go = page.evaluate("viewer.frame.last")
        until(page, f"viewer.frame.last >= {let_go + after}")
        shot: bytes = page.screenshot()
        browser.close()
    return shot


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--theme", choices=["light", "dark"], default="light")
    parser.add_argument("--size", type=int, nargs=2, default=(1440, 900))
    parser.add_argument("--after", type=int, default=AFTER_DRAG, help="control periods after the drag")
    args = parser.parse_args()
    from PIL import Image

    stage = Play(performers([SHIPPED_POLICY]), seed=SEED)
    server = ViewerServer(stage, ViewerSettings(port=0), lambda *a, **k: None)
    ready, ports = threading.Event(), list[int]()
    thread = threading.Thread(
        target=lambda: asyncio.run(server.run(lambda port: (ports.append(port), ready.set())))  # type: ignore[arg-type,func-returns-value]
    )
    thread.start()
    ready.wait()
    try:
        shot = picture(f"http://127.0.0.1:{ports[0]}/", args.theme, tuple(args.size), args.after)
    finally:
        server.stop()
        thread.join()
    Image.open(io.BytesIO(shot)).convert("RGB").save(args.out, optimize=True)
    print(f"wrote {args.out}, {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
