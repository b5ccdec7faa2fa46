"""How long one tick of the sensor takes over many iteration folders: the first look, settled ones, long-settled ones.

Run: ``python benchmarks/scan_folders.py [--iterations 1000] [--ranks 1024] [--folder DIR]``. It creates that many small
files once (a million files take about half a minute and as many inodes) and deletes them at the end.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg

from assets.resources import TracevizHome
from sensors.ledger import FolderRecord, FolderState, update_ledger
from sensors.listing import FolderLook, LocalFolders, walk
from sensors.trace_folders import look_once

ROTATIONS = 4


def make_folders(root: Path, iterations: int, ranks: int) -> None:
    """Write empty files with the names that Megatron-LM's traces have."""
    for iteration in range(iterations):
        folder = root / f"job/iteration_{iteration}"
        folder.mkdir(parents=True)
        for rank in range(ranks):
            (folder / f"rank_{rank:04d}_iter_{iteration}.pt.trace.json").touch()


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print a line for each state that the folders can be in."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--iterations", type=int, default=1000)
    options.add_argument("--ranks", type=int, default=1024)
    options.add_argument("--folder", type=Path, default=None, help="where the files are made; by default in /tmp")
    chosen = options.parse_args()
    base = Path(tempfile.mkdtemp(prefix="scan-folders-", dir=chosen.folder))
    try:
        measure(base, chosen.iterations, chosen.ranks)
    finally:
        shutil.rmtree(base)


def measure(base: Path, iterations: int, ranks: int) -> None:
    """Take the folders from unknown to long-settled, and time the ticks."""
    root, home = base / "runs", base / "home"
    home.mkdir()
    made = seconds(lambda: make_folders(root, iterations, ranks))
    print(f"{iterations} iterations x {ranks} ranks; made in {made:.1f} s")
    (home / "traceviz.toml").write_text(f'[sensor]\nbudget_seconds = 1000\n[[watch]]\npath = "{root}"\n')
    instance = dg.DagsterInstance.ephemeral()
    traceviz = TracevizHome(home=str(home))
    cursor: list[str | None] = [None]

    def tick(now: float) -> None:
        context = dg.build_sensor_context(instance, cursor=cursor[0])
        cursor[0] = look_once(context, traceviz, now).cursor

    now = time.time()
    report("first tick, every folder new", seconds(lambda: tick(now)), cursor[0])
    records = {
        look.folder: FolderRecord(
            look.digest, FolderState.REGISTERED, ranks, look.changed_ns, look.newest_ns, look.is_leaf, is_iteration=True
        )
        for look in walk(LocalFolders(), str(root))
        if isinstance(look, FolderLook)
    }
    update_ledger(home, records)
    report("registered within the last six hours", seconds(lambda: tick(now + 30)), cursor[0])
    later = now + 7 * 3600
    ticks = [seconds(lambda turn=turn: tick(later + 30 * turn)) for turn in range(ROTATIONS)]
    report(f"long settled, the slowest of {ROTATIONS} ticks", max(ticks), cursor[0])
    (root / "job/iteration_0" / "rank_9999_iter_0.pt.trace.json").touch()
    report("long settled, one late rank", seconds(lambda: tick(later + 30 * ROTATIONS)), cursor[0])


def report(state: str, taken: float, cursor: str | None) -> None:
    """Print one line of the table."""
    print(f"{state:<40} {taken:7.2f} s   cursor {len(cursor or ''):>6} bytes")


if __name__ == "__main__":
    main()
