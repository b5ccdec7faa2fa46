"""The report of large jobs: build time, size of the file, time to be ready, and time a frame while zooming.

python benchmarks/report.py HOME [--only 64] [--keep FOLDER]
python benchmarks/report.py --only export

HOME holds an analysed job (`traceviz demo --home HOME`). Its last iteration is laid side by side, and one after the
other, until there are as many ranks and kernels as wanted, durations scattered by up to 30 %; the page is made of these
by the product itself. Frames are those of its own drawing in headless Chromium at 1280 × 800, of 40 steps of zoom
around the middle, beside as many of an empty canvas of that size. Times of a loaded machine compare rows of
one run, no more. `export` is an Nsight Systems export of a simulated node of 8 GPUs, analysed as it is.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from eight_gpus import eight_gpus
from playwright.sync_api import Browser, sync_playwright

from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.report import StoredReportSource
from traceviz_dag.show.report.report import report_page

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
JOBS = {"16": (16, 1), "64": (64, 25), "1024": (1024, 1)}
"""Name → ranks, and how often the kernels of each are repeated: about 2,000, 50,000 and 2,000 a rank."""

EXPORT = "export"

_TIMES = ("start_ns", "launch_start_ns", "span_start_ns", "span_end_ns", "host_start_ns", "host_end_ns")
_FRAMES = """async ([empty]) => {
    const { timeline, model } = window.traceviz, found = [];
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const canvas = timeline.canvas, other = document.createElement("canvas");
    other.width = canvas.width; other.height = canvas.height;
    const context = other.getContext("2d", { alpha: false });
    if (empty) canvas.replaceWith(other);
    timeline.looking.show(0, model.end, false);
    for (let step = 0; step < 40; step++) {
        await frame();
        const started = performance.now();
        if (empty) {
            context.fillStyle = step % 2 ? "#fff" : "#eee";
            context.fillRect(0, 0, other.width, other.height);
        } else { timeline.looking.zoom(step < 20 ? 0.75 : 1 / 0.75, model.end * 0.47, false); timeline.repaint(); }
        await frame();
        found.push(performance.now() - started);
    }
    return found;
}"""


@dataclass(frozen=True, slots=True)
class Enlarged(StoredReportSource):
    """An iteration whose ranks are handed out again and again, and whose kernels are repeated one after the other."""

    ranks: int = 16
    times: int = 1
    own: tuple[int, ...] = ()

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """As the iteration's own, enlarged."""
        source = super(Enlarged, self)
        if rank is not None:
            found = source.table(name, columns, self.own[rank % len(self.own)])
            return self._repeated(found, rank) if name in ("kernels", "microbatches") else found
        found = source.table(name, columns)
        if "rank" not in columns or name not in ("topology", "traces", "rank_clocks", "collectives"):
            return found
        copies = []
        for copy in range(-(-self.ranks // len(self.own))):
            part = found
            for column, step in (("rank", len(self.own)), ("pipeline", 4), ("last_rank_aligned", len(self.own))):
                if column in columns:
                    moved = pa.array(np.asarray(part[column].cast(pa.int64()).fill_null(0)) + copy * step)
                    part = part.set_column(columns.index(column), column, moved.cast(found[column].type))
            if name == "traces" and "kernels" in columns:
                many = pa.array(np.asarray(part["kernels"]) * self.times)
                part = part.set_column(columns.index("kernels"), "kernels", many.cast(found["kernels"].type))
            copies.append(part)
        whole = pa.concat_tables(copies)
        return whole.filter(pa.array(np.asarray(whole["rank"]) < self.ranks))

    def _repeated(self, table: pa.Table, rank: int) -> pa.Table:
        parts = []
        for number in range(self.times):
            part = table
            for column in table.column_names:
                if column in _TIMES and number:
                    moved = pa.compute.add(table[column], number * 400_000_000)
                    part = part.set_column(table.column_names.index(column), column, moved)
                if column == "kernel_id" and number:
                    moved = pa.compute.add(table[column], number * table.num_rows)
                    part = part.set_column(table.column_names.index(column), column, moved)
            parts.append(part)
        whole = pa.concat_tables(parts)
        if "duration_ns" not in whole.column_names:
            return whole
        scatter = np.random.default_rng(rank).uniform(0.7, 1.0, whole.num_rows)
        shorter = pa.array((np.asarray(whole["duration_ns"]) * scatter).astype(np.int64))
        return whole.set_column(whole.column_names.index("duration_ns"), "duration_ns", shorter)


def shown(browser: Browser, path: Path) -> tuple[float, list[float], list[float]]:
    """Seconds until the page is ready; milliseconds of its frames, and of an empty canvas's."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    started = time.perf_counter()
    page.goto(f"{path.as_uri()}#part=timeline", timeout=180_000)
    page.wait_for_selector("body[data-ready=yes]", timeout=180_000)
    ready = time.perf_counter() - started
    frames = page.evaluate(_FRAMES, [False])
    empty = page.evaluate(_FRAMES, [True])
    page.close()
    return ready, frames, empty


def exported(folder: Path) -> StoredReportSource:
    """Make and analyse the export: tensor, pipeline and data 2, 24 layers, 32 micro-batches, one iteration."""
    export = eight_gpus(folder / "job", layers=24, microbatches=32, iterations=1)
    analyse = [
        sys.executable,
        "-m",
        "traceviz_dag.commands.main",
        "analyze",
        str(export),
        "--home",
        str(folder / "home"),
    ]
    subprocess.run(analyse, check=True, stdout=subprocess.DEVNULL)
    lake = open_lake(folder / "home")
    (part,) = lake.partitions("topology")
    return StoredReportSource(lake, part.run, part.iteration)


def sources(home: Path | None, only: str | None, folder: Path) -> Iterator[tuple[str, StoredReportSource, int]]:
    """Each job that is asked for: its name, its source, and how many kernels it has."""
    if home is not None:
        lake = open_lake(home)
        last = max(lake.partitions("topology"), key=lambda part: part.iteration)
        own = tuple(part.rank for part in lake.partitions("kernels", last.run, last.iteration) if part.rank is not None)
        source = Enlarged(lake, last.run, last.iteration, own=own)
        kernels = sum(source.table("traces", ["rank", "kernels"])["kernels"].to_pylist())
        for name, (ranks, times) in JOBS.items():
            if only in (None, name):
                yield name, replace(source, ranks=ranks, times=times), kernels * times * ranks // len(own)
    if only in (None, EXPORT):
        source = exported(folder)
        yield EXPORT, source, sum(source.table("traces", ["kernels"])["kernels"].to_pylist())


def main() -> None:
    """Measure each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, nargs="?")
    parser.add_argument("--only", choices=[*JOBS, EXPORT])
    parser.add_argument("--keep", type=Path, help="folder in which the pages stay")
    given = parser.parse_args()
    if given.home is None and given.only != EXPORT:
        parser.error("name a home, or --only export")
    folder = given.keep or Path(tempfile.mkdtemp())
    print("job      kernels     kept  build s  MB     ready s  frame ms  empty ms")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, source, kernels in sources(given.home, given.only, folder):
            started = time.process_time()
            page = report_page(source)
            build = time.process_time() - started
            path = folder / f"{name}.html"
            path.write_text(page)
            ready, frames, empty = shown(browser, path)
            print(
                f"{name:6} {kernels:9,} {min(kernels, 1_000_000):8,} {build:8.1f} {len(page) / 1e6:5.1f} {ready:8.1f} "
                f"{statistics.median(frames):9.0f} {statistics.median(empty):9.0f}"
            )
        browser.close()
    if given.keep is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
