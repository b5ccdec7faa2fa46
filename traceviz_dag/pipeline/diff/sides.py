"""What the two sides of a comparison name: a run or an iteration of a home, a home, or traces that are analysed now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.catalogue import LAKE_FOLDER
from traceviz_dag.pipeline.across_ranks import StoredIteration, iterations_at


@contextmanager
def side_at(given: str, home: Path) -> Iterator[list[StoredIteration]]:
    """The iterations of one run that a text names, in order.

    Args:
        given: a folder of traces, a trace, an export of Nsight Systems or a home; ``HOME/RUN``; or a run of ``home``:
            each with ``@ITERATION`` for one iteration of it. What is a file or folder counts as such.

    Raises:
        UsageError: it names nothing, or several runs.
        BadInputError: the traces cannot be read, or the home holds none.
    """
    name, number = _split(given)
    path = Path(name)
    if path.exists():
        run, below, of = None, None if _is_home(path) else path, path if _is_home(path) else home
    elif path.parent != Path() and _is_home(path.parent):
        run, below, of = path.name, None, path.parent
    elif path.parent != Path():
        raise UsageError(f"{given}: there is no such file or folder")
    elif not _is_home(home):
        raise UsageError(f"{given}: no file or folder, and {home} is no home that could hold a run of that name")
    else:
        run, below, of = name, None, home
    with iterations_at(below, of) as found:
        yield _chosen(given, found, run, number)


def _split(given: str) -> tuple[str, int | None]:
    """A name and the iteration behind it; a file whose name ends so is a file."""
    name, _, number = given.rpartition("@")
    if not name or Path(given).exists() or not (number.isascii() and number.isdigit()):
        return given, None
    return name, int(number)


def _is_home(path: Path) -> bool:
    return (path / LAKE_FOLDER).is_dir()


def _chosen(given: str, found: Sequence[StoredIteration], run: str | None, number: int | None) -> list[StoredIteration]:
    runs = sorted({each.run for each in found})
    if run is None and len(runs) > 1:
        raise UsageError(f"{given}: there are {len(runs)} runs; name one: {', '.join(runs[:5])}")
    mine = sorted((each for each in found if run in (None, each.run)), key=lambda each: each.iteration)
    if not mine:
        raise UsageError(f"{given}: no such run; there are {', '.join(runs[:5])}")
    chosen = [each for each in mine if number in (None, each.iteration)]
    if not chosen:
        there = ", ".join(str(each.iteration) for each in mine[:5])
        raise UsageError(f"{given}: no such iteration; there are {there}")
    return chosen
