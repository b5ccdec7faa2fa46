"""Draws the browser pictures of docs/images anew, in headless Chromium, on the home of a demo with its figures.

traceviz demo --home HOME && traceviz figures --home HOME && traceviz perfetto export --home HOME --iteration 12
python benchmarks/screenshots.py HOME [--only serve]
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
COLOURS = 256
_SETTLED = 5000
"""Milliseconds in which Dagster's pages have drawn what they loaded."""

_PROGRAM = [sys.executable, "-m", "traceviz_dag.commands.main"]


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """The address of ``traceviz serve``, with its token."""
    process = subprocess.Popen(
        [*_PROGRAM, "serve", "--home", str(home), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def dagster(home: Path) -> Iterator[str]:
    """The address of ``traceviz dev``, once it has loaded our assets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([*_PROGRAM, "dev", "--home", str(home), "--port", str(port)], start_new_session=True)
    try:
        while True:
            with suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{address}/server_info", timeout=5).close()
                break
            time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _name_no_place(page: Page, home: Path) -> None:
    """The home as others call theirs, wherever this one is."""
    page.evaluate(
        """(place) => {
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
                texts.currentNode.data = texts.currentNode.data.replaceAll(place, "/data/traceviz_home");
            }
        }""",
        str(home.resolve()),
    )


def save(page: Page, name: str, clip: FloatRect | None = None) -> None:
    """A picture of the page, or of a part of it, as a small PNG."""
    image = Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def shoot_serve(page: Page, home: Path) -> None:
    """The first page of ``traceviz serve``."""
    with serving(home) as address:
        page.goto(address, wait_until="commit")
        page.wait_for_url("**/")
        page.wait_for_load_state("networkidle")
        _name_no_place(page, home)
        save(page, "serve")


def shoot_dagster(page: Page, home: Path) -> None:
    """The asset graph by groups, the plots of iterations, and a partition of pipelines."""
    with dagster(home) as address:
        page.goto(f"{address}/asset-groups", wait_until="domcontentloaded")
        page.get_by_text("5_iterations").last.wait_for(timeout=120_000)
        page.wait_for_timeout(_SETTLED)
        save(page, "dagster_graph", {"x": 0, "y": 0, "width": 1280, "height": 640})
        page.set_viewport_size({"width": 1280, "height": 3000})
        page.goto(f"{address}/assets/iterations", wait_until="domcontentloaded")
        page.get_by_text("Plots", exact=True).click(timeout=120_000)
        page.wait_for_timeout(_SETTLED)
        heading = page.get_by_text("Metadata", exact=True).first.bounding_box()
        assert heading is not None
        save(page, "dagster_plots", {"x": 240, "y": heading["y"] - 12, "width": 720, "height": 1010})
        page.set_viewport_size({"width": 1280, "height": 1120})
        page.goto(f"{address}/assets/pipelines?view=partitions", wait_until="domcontentloaded")
        page.get_by_text("@12").first.click(timeout=120_000)
        page.get_by_text("bubble_waterfall").wait_for(timeout=120_000)
        page.wait_for_timeout(_SETTLED)
        _name_no_place(page, home)
        save(page, "dagster_table")


def shoot_report(page: Page, home: Path) -> None:
    """The first screen and the timeline of the report of the demo's last iteration."""
    reports = sorted((home / "reports" / "demo").glob("*.html"))
    page.goto(reports[-1].as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    save(page, "report_overview")
    page.click("#tab-timeline")
    page.wait_for_timeout(500)
    save(page, "report_timeline")


SHOTS: dict[str, Callable[[Page, Path], None]] = {
    "serve": shoot_serve,
    "dagster": shoot_dagster,
    "report": shoot_report,
}


def main() -> None:
    """Draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--only", choices=SHOTS)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, shoot in SHOTS.items():
            if given.only in (None, name):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                shoot(page, given.home)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
