"""Draw docs/images/play*.png, the live page with the shipped policies, and report.png of a report.

    python -m benchmarks.page_pictures [--report report.html] [--out docs/images]

Needs Chromium and the extra `dev`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsde_policy.assets import SHIPPED_POLICIES
from nsde_policy.torch_threads import use_threads
from nsde_policy.viewer.messages import ClientMessage, Drag, Pause, Release, Reset, SelectMethods, SetControl
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from tests.helpers.browser import DESKTOP, chromium, wait_until
from tests.helpers.viewer_servers import SEED, run_events, run_viewer, train_neighbours

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DRAGS = [Drag("block", 245.0 + 9 * k, 270.0 - 8 * k, 0.8 + 0.07 * k) for k in range(12)]
"""Poses of the block while it is dragged off its goal, one for each control period."""
DISTURBED = SetControl("obs_noise", 1), SelectMethods(("shipped", "neighbours"))
PICTURES: dict[str, tuple[str, Sequence[ClientMessage | int], dict[str, Any]]] = {
    "play": ("shipped", (150, *(each for drag in DRAGS for each in (drag, 1)), Release(), 16), {}),
    "play_two": ("shipped", (*DISTURBED, Reset(SEED), 60), {"color_scheme": "dark"}),
    "play_pixels": ("shipped-pixels", (35,), {}),
}
"""By the name of a picture: the policy, what happens before, and options of the browser."""


def take_picture(browser: "Browser", url: str, ready: str, path: Path, **options: Any) -> None:
    """Open a page, wait until a JavaScript expression is true, and write what is seen."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    page = context.new_page()
    page.goto(url)
    wait_until(page, ready)
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    context.close()
    print(path, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--report", type=Path, help="a report page, whose episodes are shown in report.png")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    with use_threads(1), chromium() as browser, tempfile.TemporaryDirectory() as folder:
        neighbours = train_neighbours(Path(folder))
        for name, (shipped, events, options) in PICTURES.items():
            app = PlayApp(load_runners([SHIPPED_POLICIES[shipped], neighbours]), seed=SEED, plan_timeout_s=60)
            run_events(app, *events, Pause(True))
            with run_viewer(app) as viewer:
                take_picture(browser, viewer.url, "viewer.drawn > 3", args.out / f"{name}.png", **options)
        if args.report:
            url = args.report.resolve().as_uri() + "#explorer"
            take_picture(browser, url, "state.episodes.length > 1", args.out / "report.png")


if __name__ == "__main__":
    main()
