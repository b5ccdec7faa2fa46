"""What a kill leaves at each boundary of an analysis: before a file gets its name or goes, before an event is stored.

At a boundary no more than a transaction is under way, so a copy of the home is what ``kill -9`` would leave there. Runs
in processes of its own, since it puts hooks into the program:

    python -m tests.end_to_end.boundaries record TRACES HOME COPIES
    python -m tests.end_to_end.boundaries go-on TRACES HOME COPIES STEP

The first analyses the traces into the home, and copies the home at each boundary; the second analyses them again on
every STEPth copy, and on an empty home, and prints a line for each copy whose tables are then not those of that home.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import xxhash

import traceviz_dag.pipeline.workers as workers
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below


class Boundaries:
    """Copies the home whenever the analysis comes to one of its boundaries."""

    def __init__(self, home: Path, copies: Path) -> None:
        self.home = home
        self.copies = copies
        self.names: list[str] = []

    def before(self, owner: Any, method: str, name_of: Callable[..., str | None]) -> None:
        """Make the call of a method a boundary, unless the name is None."""
        original = getattr(owner, method)

        def called(*args: Any, **kwargs: Any) -> Any:
            name = name_of(*args, **kwargs)
            if name is not None:
                shutil.copytree(self.home, self.copies / f"{len(self.names):03d}")
                self.names.append(name)
            return original(*args, **kwargs)

        setattr(owner, method, called)


class _Here:
    """Instead of the pool of processes: the same work in this process, where the boundaries are seen."""

    def __init__(self, _workers: int, _context: object, initializer: Callable[..., None], given: tuple[Any]) -> None:
        initializer(*given)

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


def record(traces: Path, home: Path, copies: Path) -> None:
    """Analyse the traces, with a copy of the home at each boundary."""
    boundaries = Boundaries(home, copies)
    boundaries.before(Path, "replace", lambda _, target: f"rename to {_short(target)}")
    boundaries.before(Path, "unlink", lambda path, **_: f"removal of {_short(path)}" if path.exists() else None)
    _analyse(traces, home)
    (copies / "names").write_text("\n".join(boundaries.names))


def go_on(traces: Path, home: Path, copies: Path, step: int) -> None:
    """Analyse the traces again on every ``step``th copy, and compare the tables with those of an empty home."""
    shutil.rmtree(home)
    _analyse(traces, home)
    clean = tables(home)
    for number, name in list(enumerate((copies / "names").read_text().splitlines()))[::step]:
        shutil.rmtree(home)
        (copies / f"{number:03d}").rename(home)
        _analyse(traces, home)
        found = tables(home)
        differ = sorted(path for path in {*clean, *found} if clean.get(path) != found.get(path))
        sys.stdout.write(f"{number} {name}: {differ or 'equal'}\n")


def tables(home: Path) -> Mapping[str, str]:
    """File of a table → digest."""
    files = sorted((home / "lake").rglob("*.parquet"))
    return {str(path.relative_to(home)): xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in files}


def _analyse(traces: Path, home: Path) -> None:
    results = analyse(AnalysisSettings(home), inputs_below([traces]))
    assert all(result.aggregated and not result.failures for result in results), results


def _short(path: Path | str) -> str:
    _, in_lake, table = str(path).rpartition("/lake/")
    return table.removesuffix("/part.parquet") if in_lake else Path(path).name


if __name__ == "__main__":
    workers.ProcessPoolExecutor = _Here  # type: ignore[misc,assignment]
    mode, *paths = sys.argv[1:5]
    if mode == "record":
        record(*map(Path, paths))
    else:
        go_on(*map(Path, paths), int(sys.argv[5]))
