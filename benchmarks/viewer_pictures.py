"""Take the screenshots of docs/play.md: a block dragged off its goal, and the policy moving it back.

    python benchmarks/viewer_pictures.py --out docs/images

writes play.png, play_two.png (beside nearest neighbours) and play_phone.png; --only play writes one of them.
--only play_pixels shows a policy with a camera, the one of the package or --run.
Uses headless Chromium; how an episode continues after the drag depends on its timing.
"""

import argparse
import asyncio
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsde_policy.assets import SHIPPED_POLICY, find_shipped
from nsde_policy.tasks import get_task
from nsde_policy.training.progress import train
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from nsde_policy.viewer.server import ViewerServer

SEED = 100_003


@dataclass(frozen=True)
class Picture:
    """Settings of one screenshot."""

    theme: Literal["light", "dark"]
    size: tuple[int, int]
    after: int
    """Control periods from the release of the block to the screenshot."""
    by: tuple[float, float]
    """How far the block is dragged, pixels of the table."""
    turns: int = 0
    """Notches of the wheel during the drag."""
    two: bool = False
    phone: bool = False
    field: bool = False
    camera: bool = False


PICTURES = {
    "play": Picture("light", (1440, 900), after=17, by=(120, -105), turns=9, field=True),
    "play_two": Picture("dark", (1440, 900), after=26, by=(75, -70), turns=-7, two=True),
    "play_phone": Picture("light", (390, 844), after=20, by=(80, -90), turns=-6, phone=True),
    "play_pixels": Picture("light", (1440, 900), after=17, by=(120, -105), turns=9, camera=True),
}


def until(page: Any, script: str) -> None:
    ends = time.monotonic() + 90
    while not page.evaluate(f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"):
        if time.monotonic() > ends:
            raise TimeoutError(script)
        page.wait_for_timeout(20)


def take_screenshot(url: str, picture: Picture) -> bytes:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless=new", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport={"width": picture.size[0], "height": picture.size[1]},
            color_scheme=picture.theme,
            is_mobile=picture.phone,
            has_touch=picture.phone,
            device_scale_factor=2 if picture.phone else 1,
        )
        page.goto(url)
        until(page, "viewer.frame")
        if picture.two:
            page.click("#compare")
            until(page, "viewer.frame.panels.length === 2")
        page.locator("#speed").fill("4")
        until(page, "viewer.frame.panels[0].solved")
        page.locator("#speed").fill("1")
        if picture.field:
            page.locator("#drift_field").check()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.wait_for_timeout(500)
        drag(page, picture)
        released = page.evaluate("viewer.frame.last")
        until(page, f"viewer.frame.last >= {released + picture.after}")
        shot: bytes = page.screenshot()
        browser.close()
    return shot


def drag(page: Any, picture: Picture) -> None:
    """Drag the block by its bar and release it."""
    box = page.locator(".frame canvas").first.bounding_box()
    x, y = page.evaluate("viewer.panels[0].pose.slice(2, 4)")
    scale = box["width"] / 512
    at = box["x"] + (x - 15 * 0.7) * scale, box["y"] + (y + 15 * 0.7) * scale
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + picture.by[0] * scale, at[1] + picture.by[1] * scale, steps=25)
    for _ in range(abs(picture.turns)):
        page.mouse.wheel(0, 60 if picture.turns > 0 else -60)
        page.wait_for_timeout(40)
    page.wait_for_timeout(300)
    page.mouse.up()
    page.mouse.move(5, 5)


@contextmanager
def run_viewer(first: Path, two: bool) -> Iterator[str]:
    """Serve a policy, and nearest neighbours, which need no training, if there are two."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [first]
        if two:
            runs.append(Path(folder) / "neighbours")
            config = get_task("pusht").preset("default", "knn")
            options: dict[str, Any] = {"seed": 0, "device": "cpu", "resume": False, "eval_every": 0}
            train(None, config, runs[1], task="pusht", tensorboard=False, **options)
        server = ViewerServer(
            PlayApp(load_runners(runs), seed=SEED), ViewerSettings(port=0), lambda *a, **k: None
        )
        ready, ports = threading.Event(), list[int]()
        thread = threading.Thread(
            target=lambda: asyncio.run(server.run(lambda port: (ports.append(port), ready.set())))  # type: ignore[arg-type,func-returns-value]
        )
        thread.start()
        ready.wait()
        try:
            yield f"http://127.0.0.1:{ports[0]}/"
        finally:
            server.stop()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--only", choices=list(PICTURES))
    parser.add_argument("--run", type=Path, help="run directory with a camera, for play_pixels")
    args = parser.parse_args()
    from PIL import Image

    for name, picture in PICTURES.items():
        if args.only not in (None, name) or (picture.camera and args.only is None):
            continue
        run = (args.run or find_shipped("pixels")) if picture.camera else SHIPPED_POLICY
        with run_viewer(run, picture.two) as url:
            shot = take_screenshot(url, picture)
        path = args.out / f"{name}.png"
        Image.open(io.BytesIO(shot)).convert("RGB").save(path, optimize=True)
        print(f"wrote {path}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
