"""What a screen costs until it is seen: a terminal, or a page in headless Chromium. `screens.py` runs this.

Run: ``python benchmarks/screens_shown.py terminal EXPORT FOLDER 80 24`` or ``... page EXPORT FOLDER 1280 800``; with
``--of nsys-ai`` that of nsys-ai instead. FOLDER keeps what is kept of a profile: a second run looks at that again.
A terminal is run by the python that has the package; a page always by that of this project, which has the browser,
and ``--server PYTHON`` then serves it. Prints processor seconds as JSON:

- first: from the call to the screen at rest, imports apart; of a page the server (imports with it) and the browser
- pan, zoom, search: of one key each, or of the expression ``nccl``, to the screen at rest; the mean of many keys
- peak: memory of the process that reads the profile, MiB
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMES = 20
"""Keys of a kind; half of them one way, half back."""

PAGE_TIMES = 10
SEARCHED = "nccl"
MOST_SECONDS = 600.0
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def spent() -> float:
    """Processor seconds of this process and of the ones it ended."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + below.ru_utime + below.ru_stime


def of_traceviz(export: Path, folder: Path) -> tuple[Callable[[], Any], dict[str, str]]:
    """What makes the app, and its keys."""
    from traceviz_dag.pipeline.screens import profile_model
    from traceviz_dag.show.terminal.look import Look
    from traceviz_dag.show.terminal.timeline.screen import TimelineApp

    return lambda: TimelineApp(profile_model(export, folder), Look()), {"in": "up", "out": "down"}


def of_nsys_ai(export: Path, folder: Path) -> tuple[Callable[[], Any], dict[str, str]]:
    """As ``of_traceviz``: all GPUs over the time of all kernels, which its command must be given."""
    import nsys_ai.nvtx_tree
    import nsys_ai.profile  # noqa: F401
    from nsys_ai.timeline.app import NsysTimelineApp

    with sqlite3.connect(f"file:{export}?mode=ro", uri=True) as connection:
        whole = connection.execute('SELECT min(start), max("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
    # It keeps sessions in the folder that it runs in, and its cache beside the export.
    os.chdir(folder)
    return lambda: NsysTimelineApp(str(export), 0, tuple(whole)), {"in": "plus", "out": "minus"}


async def terminal(make: Callable[[], Any], keys: dict[str, str], size: tuple[int, int]) -> dict[str, float]:
    """Drive an app without a terminal; it draws all the same."""
    started = spent()
    app = make()
    found: dict[str, float] = {}
    async with app.run_test(size=size) as pilot:

        async def settled() -> None:
            await pilot.pause()
            await app.workers.wait_for_complete()
            await pilot.pause()

        async def cost(*pressed: str) -> float:
            before = spent()
            for key in pressed:
                await pilot.press(key)
                await settled()
            return (spent() - before) / len(pressed)

        await settled()
        found["first"] = spent() - started
        half = TIMES // 2
        found["zoom"] = await cost(*[keys["in"]] * half, *[keys["out"]] * half)
        await cost(*[keys["in"]] * 4)
        found["pan"] = await cost(*["right"] * half, *["left"] * half)
        before = spent()
        await cost("slash", *SEARCHED, "enter")
        found["search"] = spent() - before
    # Not what getrusage reports: that counts the process that started this one, too.
    status = Path("/proc/self/status").read_text()
    found["peak"] = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024
    return found


@contextmanager
def served(of: str, python: str, export: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server and the address that it prints."""
    if of == "traceviz":
        words = ["-m", "traceviz_dag.commands.main", "nsys", "timeline-web", str(export), "--home", str(folder)]
    else:
        words = ["-u", "-m", "nsys_ai", "timeline-web", str(export), "--no-browser"]
    words += ["--port", "0"] if of == "traceviz" else ["--port", "8944"]
    said = folder / "served.txt"
    with said.open("w") as out:
        server = subprocess.Popen([python, *words], cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        address = None
        while address is None:
            if server.poll() is not None:
                raise SystemExit(f"{of} serves nothing; see {said}")
            time.sleep(0.05)
            address = re.search(r"http://127\.0\.0\.1:\d+(/[\w/?=&-]+)?\s", said.read_text())
        yield server, address[0].strip()
    finally:
        server.terminate()
        server.wait()


def spent_by(process: int) -> float:
    """Processor seconds of a running process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def peak_of(process: int) -> float:
    """Most memory of a running process, MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def page(of: str, python: str, export: Path, folder: Path, size: tuple[int, int]) -> dict[str, float]:
    """Serve a profile, open it in a browser, and press keys."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, served(of, python, export, folder) as (server, address):
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=FLAGS
        )
        devtools = browser.new_browser_cdp_session()

        def both() -> float:
            drawn = sum(one["cpuTime"] for one in devtools.send("SystemInfo.getProcessInfo")["processInfo"])
            return float(drawn) + spent_by(server.pid)

        opened = browser.new_page(viewport={"width": size[0], "height": size[1]})
        # An empty page is paid by both.
        started = both() - spent_by(server.pid)

        def settled() -> None:
            opened.wait_for_load_state("networkidle", timeout=MOST_SECONDS * 1000)
            opened.wait_for_timeout(300)

        opened.goto(address, timeout=MOST_SECONDS * 1000)
        settled()
        found = {"first": both() - started}

        def cost(*keys: str) -> float:
            before = both()
            for key in keys:
                opened.keyboard.press(key)
                settled()
            return (both() - before) / len(keys)

        half = PAGE_TIMES // 2
        keys = {"traceviz": ("ArrowUp", "ArrowDown"), "nsys-ai": ("+", "-")}[of]
        found["zoom"] = cost(*[keys[0]] * half, *[keys[1]] * half)
        cost(*[keys[0]] * 2)
        found["pan"] = cost(*["ArrowRight"] * half, *["ArrowLeft"] * half)
        found["peak"] = peak_of(server.pid)
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("screen", choices=("terminal", "page"))
    parser.add_argument("export", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("width", type=int)
    parser.add_argument("height", type=int)
    parser.add_argument("--of", choices=("traceviz", "nsys-ai"), default="traceviz")
    parser.add_argument("--server", default=sys.executable, help="python that serves a page")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    export, folder, size = given.export.resolve(), given.folder.resolve(), (given.width, given.height)
    if given.screen == "page":
        found = page(given.of, given.server, export, folder, size)
    else:
        make, keys = (of_traceviz if given.of == "traceviz" else of_nsys_ai)(export, folder)
        found = asyncio.run(terminal(make, keys, size))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
