"""Measure a report on 4 runs × 200 episodes: size, time to open, requests to other hosts.

    python benchmarks/report_size.py [RUN …] --episodes 200 --json benchmarks/results/report_size.json

Without runs, four methods are trained for 200 steps: their episodes fail, so all of them last 300 steps and
the page has its largest size. Times are from the start of the navigation to the first contentful paint,
to the load event, and until every episode of every run is unpacked: medians over 5 fresh browsers.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

METHODS = ("neural_sde", "regression", "flow", "mip")
FLAGS = ["--no-sandbox", "--headless=new", "--disable-gpu", "--disable-background-networking"]
REPEATS = 5


def run_command(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "nsde_policy.cli.main", *map(str, args)], check=True)


def train_briefly(folder: Path) -> list[Path]:
    runs = []
    for method in METHODS:
        run = folder / method
        runs.append(run)
        if not (run / "model.safetensors").exists():
            quick = ["--preset", "fast", "--train.steps", 200, "--train.log-every", 1, "--device", "cpu"]
            run_command("train", "--policy", method, *quick, "--out", run)
    return runs


def open_page(page_file: Path) -> dict[str, Any]:
    """Open the page once in a new browser and return its times and outside requests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.resolve().as_uri(), wait_until="load")
        times = page.evaluate(
            """async () => {
                const loaded = performance.getEntriesByType("navigation")[0].loadEventStart;
                await Promise.all(DATA.runs.map((_, i) => columnsOf(i)));
                const unpacked = performance.now();
                const paint = performance.getEntriesByName("first-contentful-paint")[0];
                return { loaded, unpacked, painted: paint ? paint.startTime : null };
            }"""
        )
        browser.close()
    outside = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    return {**times, "outside": len(outside)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/report_size"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    runs = args.runs or train_briefly(args.out)
    file = args.out / "report.html"
    kept = ["--cache", args.out / "kept", "--latency-rounds", 10]
    run_command("report", *runs, "--episodes", args.episodes, "--out", file, *kept)
    tries = [open_page(file) for _ in range(REPEATS)]
    found = {
        "runs": len(runs),
        "episodes": args.episodes,
        "megabytes": round(file.stat().st_size / 1e6, 2),
        "outside_requests": max(each["outside"] for each in tries),
    }
    for name in ("painted", "loaded", "unpacked"):
        known = [each[name] for each in tries if each[name] is not None]
        found[f"{name}_ms"] = round(statistics.median(known)) if known else None
    print(json.dumps(found, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
