"""Draws the browser pictures of docs/images anew, in headless Chromium, on the home of a demo with its figures.

traceviz demo --home HOME && traceviz figures --home HOME && traceviz perfetto export --home HOME --iteration 12
python benchmarks/screenshots.py HOME [--only serve]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
COLOURS = 256
_PROGRAM = [sys.executable, "-m", "traceviz_dag.commands.main"]


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """The address of ``traceviz serve``, with its token."""
    process = subprocess.Popen(
        [*_PROGRAM, "serve", "--home", str(home), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split("read-only: ")[1].strip()
    finally:
        process.terminate()
        process.wait()


def save(page: Page, name: str, full: bool = False) -> None:
    """A picture of the page as a small PNG."""
    image = Image.open(BytesIO(page.screenshot(full_page=full))).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def shoot_serve(page: Page, home: Path) -> None:
    """The first page of ``traceviz serve``."""
    with serving(home) as address:
        page.goto(address, wait_until="commit")
        page.wait_for_url("**/")
        page.wait_for_load_state("networkidle")
        page.evaluate("document.querySelector('.quiet').textContent = 'traceviz_home, read-only'")
        save(page, "serve")


SHOTS: dict[str, Callable[[Page, Path], None]] = {"serve": shoot_serve}


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
