"""Screens on a large profile: the model behind them, the terminal and the page as they are seen, and nsys-ai beside.

Run: ``python benchmarks/screens.py EXPORT --rows 10000000 --keep FOLDER``. It repeats a small export, one behind the
other in time, until operations, calls and ranges together are so many rows, reads that into a home below FOLDER, and
makes its tiles; an export of a former run is used again. Then it opens the model anew and measures processor
time:

- first paint: opening the kept profile, the strip, and every lane of a screen of 45 lines, 140 letters wide, imports
  of this package apart;
- pan, zoom: the strip and those lanes at windows that move by a tenth and that halve, down to single slices;
- search: a regular expression over all lanes; detail: of what it found; measured: ``aggregate`` of a tenth of the time.

The middle and the most of many are printed, with the peak of memory, beside the limits that they must keep.

Then `screens_shown.py` drives the terminal's timeline and the live page on that profile, each in a separate process,
and on every profile given by ``--beside``, once with nothing kept and once more with what the first look kept. With
``--nsys-ai PYTHON`` the timeline and timeline-web of nsys-ai 0.3.0 are driven on these in the same run::

    python -m venv OTHER && OTHER/bin/pip install nsys-ai==0.3.0 duckdb==1.5.5 duckdb-extensions \
        duckdb-extension-sqlite-scanner==1.5.5
    OTHER/bin/python -c "import duckdb_extensions as e; e.import_extension('sqlite_scanner')"

(Its cache needs that extension of DuckDB; without it, it reads SQLite directly.) It gets copies of the profiles, as it
writes beside them. A process that takes longer than ``--most-seconds`` of processor time is ended and reported as such.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

LIMITS = {"first paint": 1.0, "pan": 0.05, "zoom": 0.05}
"""Processor seconds."""

LINES, LETTERS, STRIP = 45, 140, 140
_REPEATED = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "RUNTIME", "MEMORY")
_COUNTED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API")


def repeated(export: Path, rows: int, out: Path) -> Path:
    """A copy of an export whose rows are repeated one behind the other until there are so many."""
    unfinished = out.with_suffix(".partial")
    shutil.copy(export, unfinished)
    unfinished.chmod(0o644)
    connection = sqlite3.connect(unfinished)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    tables = [f"CUPTI_ACTIVITY_KIND_{name}" for name in _REPEATED] + ["NVTX_EVENTS", "OSRT_API"]
    tables = [name for name in tables if name in there]
    columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in tables}
    tables = [name for name in tables if {"start", "end"} <= set(columns[name])]
    counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    bounds = [connection.execute(f'SELECT min(start), max(coalesce("end", start)) FROM {name}') for name in tables]
    ends = [row for row in (cursor.fetchone() for cursor in bounds) if row[0] is not None]
    period = max(high for _, high in ends) - min(low for low, _ in ends) + 1000
    ids = [
        connection.execute(f"SELECT coalesce(max(correlationId), 0) FROM {name}").fetchone()[0]
        for name in tables
        if "correlationId" in columns[name]
    ]
    step = max(ids, default=0) + 1
    times = max(rows // max(sum(counts[name] for name in (*_COUNTED, *_CALLS) if name in counts), 1), 1)
    moved = {"start": f"+ n * {period}", "end": f"+ n * {period}", "correlationId": f"+ n * {step}"}
    for name in tables:
        selected = ", ".join(f'"{column}" {moved.get(column, "")}' for column in columns[name])
        numbers = f"WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < {times})"
        if times > 1:
            connection.execute(f"INSERT INTO {name} {numbers} SELECT {selected} FROM number CROSS JOIN {name}")
    connection.commit()
    connection.close()
    return unfinished.replace(out)


def lanes_of(model: object) -> Iterator[object]:
    """The lanes of a screen, from the top, everything unfolded."""

    def walk(parent: str | None) -> Iterator[object]:
        for lane in model.lanes(parent):  # type: ignore[attr-defined]
            yield lane
            if lane.holds_lanes:
                yield from walk(lane.key)

    for number, lane in enumerate(walk(None)):
        if number == LINES:
            return
        yield lane


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Processor seconds of some work, and what it gave."""
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def measure(export: Path, home: Path) -> list[tuple[str, list[float]]]:
    """What is measured → processor seconds, each time."""
    from traceviz_dag.pipeline.screens import profile_model
    from traceviz_dag.show.lanes.lane import LaneKind, Window

    def paint(model: object, lanes: list[object], window: Window) -> int:
        model.overview(window, STRIP)  # type: ignore[attr-defined]
        boxes = 0
        for lane in lanes:
            if lane.kind is LaneKind.COUNTER:
                model.counter(lane.key, window, LETTERS)
            else:
                boxes += len(model.slices(lane.key, window, LETTERS))
        return boxes

    def first() -> tuple[object, list[object]]:
        model = profile_model(export, home)
        lanes = list(lanes_of(model))
        paint(model, lanes, model.span)
        return model, lanes

    # Anew each time: what is mapped of former tiles would say nothing of making them.
    for kept in home.rglob("*.lanes"):
        kept.unlink()
    found = [("first paint, tiles made", [timed(first)[0]])]
    size = sum(kept.stat().st_size for kept in home.rglob("*.lanes"))
    print(f"{size / 1e6:,.0f} MB of tiles\n")
    spent, (model, lanes) = timed(first)
    found.append(("first paint", [spent]))
    span = model.span
    windows = []
    for share in (2, 10, 100, 1000, 10_000, 100_000):
        length = max(span.length_ns // share, 1)
        for place in range(1, 9):
            start = span.start_ns + (span.length_ns - length) * place // 9
            windows += [Window(at, at + length) for at in (start, start + length // 10)]
    pans = [timed(partial(paint, model, lanes, window))[0] for window in windows]
    windows = [span]
    while windows[-1].length_ns > 10_000:
        length = windows[-1].length_ns
        middle = windows[-1].start_ns + length * 3 // 7
        windows.append(Window(middle - length // 4, middle + length // 4))
    zooms = [timed(partial(paint, model, lanes, window))[0] for window in windows]
    found += [("pan", pans), ("zoom", zooms)]
    spent, hits = timed(lambda: model.search("nccl.*kernel|gemm"))
    again, _ = timed(lambda: model.search("copy_"))
    found.append(("search", [spent, again]))
    if hits.hits:
        found.append(("detail", [timed(lambda: model.detail(hits.hits[-1].slice))[0] for _ in range(3)]))
    tenth = Window(span.start_ns, span.start_ns + span.length_ns // 10)
    found.append(("measured", [timed(lambda: model.aggregate(tenth))[0] for _ in range(2)]))
    return found


SCREENS = (("terminal", 80, 24), ("terminal", 200, 50), ("page", 1280, 800))
_SHOWN = Path(__file__).parent / "screens_shown.py"


def shown(words: list[str], most_seconds: int) -> dict[str, float] | None:
    """What `screens_shown.py` measures; None where that took too long."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))

    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit, check=False)
    if done.returncode < 0:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def driven(export: Path, kept: Path | None, nsys_ai: str | None, most_seconds: int) -> None:
    """Print a row per screen and program; where a program takes too long for a profile, its other screens are left out.

    Args:
        kept: a home that holds the profile, which is looked at once; None begins with nothing kept, and looks twice.
    """
    programs = [("traceviz", sys.executable), *([("nsys-ai", nsys_ai)] if nsys_ai else [])]
    late: set[str] = set()
    for screen, width, height in SCREENS:
        for of, python in programs:
            if of in late:
                continue
            with tempfile.TemporaryDirectory() as folder:
                home, copy = kept, export
                if home is None or of == "nsys-ai":
                    home = Path(folder) / "kept"
                    copy = Path(shutil.copy(export, folder))
                    copy.chmod(0o644)
                run = python if screen == "terminal" else sys.executable
                words = [run, str(_SHOWN), screen, str(copy), str(home), str(width), str(height), "--of", of]
                looks = [shown([*words, "--server", python], most_seconds)]
                if home != kept and looks[0] is not None:
                    looks.append(shown([*words, "--server", python], most_seconds))
            cells = _cells(looks, known=home == kept)
            if None in looks:
                late.add(of)
                cells = [f"over {most_seconds:,} s", "", "", "", "", ""]
            print(f"| {export.stem} | {screen} {width} × {height} | {of} | {' | '.join(cells)} |", flush=True)


def _cells(looks: list[dict[str, float] | None], *, known: bool) -> list[str]:
    """First look, and the last one: again, pan, zoom, search in ms, peak in MiB."""
    first, again = looks[0] or {}, looks[-1] or {}
    times = [{} if known else first, again]
    told = [f"{one['first'] * 1e3:,.0f}" if "first" in one else "" for one in times]
    told += [f"{again[name] * 1e3:,.0f}" if name in again else "" for name in ("pan", "zoom", "search")]
    return [*told, f"{again.get('peak', 0):,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, required=True, help="folder in which the large export and its home stay")
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="further profiles to drive screens on")
    parser.add_argument("--nsys-ai", metavar="PYTHON", help="of an environment with nsys-ai 0.3.0")
    parser.add_argument("--most-seconds", type=int, default=600, help="processor seconds of one process")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    large = given.keep / f"{given.export.stem}_{given.rows}.sqlite"
    if not large.is_file():
        spent, _ = timed(lambda: repeated(given.export, given.rows, large))
        print(f"{large.name}: {large.stat().st_size / 1e6:,.0f} MB, repeated in {spent:.1f} processor seconds")
    from traceviz_dag.read.nsys.cache import open_profile

    spent, profile = timed(lambda: open_profile(large, given.keep / "home"))
    total = sum(int(profile.store.runs(name).count.sum()) for name in ("operations", "calls", "system_calls", "ranges"))
    print(f"{total:,} rows; opened in {spent:.2f} processor seconds")
    measured = measure(large, given.keep / "home")
    print("| what | middle, ms | most, ms | of | limit, ms |\n| --- | ---: | ---: | ---: | ---: |")
    missed = []
    for name, spans in measured:
        limit = LIMITS.get(name)
        cells = f"{statistics.median(spans) * 1e3:,.1f} | {max(spans) * 1e3:,.1f} | {len(spans)}"
        print(f"| {name} | {cells} | {'' if limit is None else f'{limit * 1e3:,.0f}'} |")
        if limit is not None and statistics.median(spans) > limit:
            missed.append(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nPeak memory, with making tiles, and with the first read where that was now: {peak:,.0f} MiB.")
    print(f"Beyond its limit: {', '.join(missed)}." if missed else "Nothing is beyond its limit.")
    print("\n| profile | screen | of | first look, ms | again | pan | zoom | search | peak, MiB |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    driven(large, given.keep / "home", given.nsys_ai, given.most_seconds)
    for export in given.beside:
        driven(export, None, given.nsys_ai, given.most_seconds)


if __name__ == "__main__":
    main()
