"""What the two sides of a comparison name: a run or an iteration of a home, a home, or traces that are analysed now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.catalogue import LAKE_FOLDER
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partition_keys import split_name
from traceviz_dag.pipeline.baselines import baselines
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at


@dataclass(frozen=True, slots=True)
class Side:
    """What a text names.

    Attributes:
        given: the text. traces: what is analysed; None where the side is in a home.
        home: the home that holds it; of traces, where exports are kept once they were read.
        run, iteration: which of them; None where the text does not say.
    """

    given: str
    traces: Path | None
    home: Path
    run: str | None
    iteration: int | None

    @contextmanager
    def opened(self) -> Iterator[list[StoredIteration]]:
        """Its iterations, of one run, in order.

        Raises:
            UsageError: there are none, or several runs.
            BadInputError: the traces cannot be read, or the home holds none.
        """
        with iterations_at(self.traces, self.home) as found:
            yield _chosen(self, found)


def side_at(given: str, home: Path) -> Side:
    """What a text names, without a look at what is in it.

    Args:
        given: a folder of traces, a trace, an export of Nsight Systems or a home; ``HOME/RUN``; or a run of ``home``:
            each with ``@ITERATION`` for one iteration of it; or, if ``home`` has no such run, one of its named
            baselines. What is a file or folder counts as such.

    Raises:
        UsageError: it names no file, folder or home.
    """
    # A file whose name ends like an iteration is a file.
    name, number = (given, None) if Path(given).exists() else split_name(given, ())
    path = Path(name)
    if path.exists():
        return Side(given, None, path, None, number) if _is_home(path) else Side(given, path, home, None, number)
    is_below = path.parent != Path()
    if not _is_home(path.parent if is_below else home):
        raise UsageError(
            f"{given}: there is no such file or folder"
            if is_below
            else f"{given}: no file or folder, and {home} is no home that could hold a run of that name"
        )
    home, text = (path.parent, Path(given).name) if is_below else (home, given)
    runs = {one.run for one in open_lake(home, refresh=False).partitions("kernels")}
    run, number = split_name(text, runs)
    named = None if is_below or run in runs else baselines(home).get(given)
    if named is not None:
        run, number = named.run, named.iteration
    return Side(given, None, home, run, number)


def _is_home(path: Path) -> bool:
    return (path / LAKE_FOLDER).is_dir()


def _chosen(side: Side, found: Sequence[StoredIteration]) -> list[StoredIteration]:
    runs = sorted({each.run for each in found})
    if side.run is None and len(runs) > 1:
        raise UsageError(f"{side.given}: there are {len(runs)} runs; name one: {', '.join(runs[:5])}")
    mine = sorted((each for each in found if side.run in (None, each.run)), key=lambda each: each.iteration)
    if not mine:
        raise UsageError(f"{side.given}: no such run; there are {', '.join(runs[:5])}")
    chosen = [each for each in mine if side.iteration in (None, each.iteration)]
    if not chosen:
        there = ", ".join(str(each.iteration) for each in mine[:5])
        raise UsageError(f"{side.given}: no such iteration; there are {there}")
    return chosen
