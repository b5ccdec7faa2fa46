"""How commands end of whose steps one failed: each is a line on stderr, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traceviz_dag.errors import BadInputError, IncompleteError
from traceviz_dag.lake.inputs import IterationInputs, registered_if_any
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import ANALYSE_AGAIN
from traceviz_dag.lake.under_way import was_left_half_renewed
from traceviz_dag.tables import STALE_TABLES

if TYPE_CHECKING:
    from traceviz_dag.lake.lake import Lake
    from traceviz_dag.lake.partitions import Partition
    from traceviz_dag.pipeline.analysis import IterationResult


_NAMED = 3


def tell_results(
    inputs: Sequence[IterationInputs], results: Sequence[IterationResult], warn: Callable[[str], object]
) -> None:
    """Print what is to be known of an analysis: warnings about its inputs, what changed since they were analysed, and a
    line for each step that failed: the partition, the reason, the remedy.

    Args:
        warn: prints a warning.
    """
    warnings = dict.fromkeys(warning for entry in inputs for warning in entry.warnings)
    for line in (*warnings, *(line for result in results for line in result.changed_lines)):
        warn(f"traceviz: {line}")
    for line in _lines(results):
        typer.echo(f"traceviz: {line}", err=True)


def end_failed(results: Sequence[IterationResult]) -> None:
    """End a command, after it said what is known all the same; does nothing where no step failed.

    Raises:
        IncompleteError: a step failed.
    """
    count = len(_lines(results))
    if count:
        steps = "a step" if count == 1 else f"{count} steps"
        raise IncompleteError(f"{steps} failed, see above; what was computed is kept, and the same command goes on")


def end_half_renewed(home: Path, places: Iterable[tuple[str, int]]) -> None:
    """End a command that showed what the lake holds; does nothing where all of it is of one state.

    Args:
        places: run and iteration of what was shown.

    Raises:
        IncompleteError: the last analysis of an iteration was killed or interrupted, so that the tables of its ranks
            may be newer than what was made of them.
    """
    keys = [iteration_key(run, iteration) for run, iteration in places]
    left = [key for key in dict.fromkeys(keys) if was_left_half_renewed(home, key)]
    if left:
        raise IncompleteError(
            f"the last analysis of {', '.join(left[:5])} was cut off, so what is shown may be of two states; "
            "run traceviz analyze on its traces again"
        )


def gone_iterations(lake: Lake, run: str | None, iteration: int | None, *tables: str) -> dict[str, list[Partition]]:
    """Parts that somebody deleted, of iterations of which nothing of these tables is left, for :func:`end_gone`.

    Raises:
        IncompleteError: of the given run and iteration, nothing else was written.
    """
    gone = lake.gone_parts(" ".join(tables), run, iteration)
    if not gone:
        return {}
    there = {
        (part.run, part.iteration)
        for name in tables
        for part in {*lake.partitions(name, run, iteration, with_stale=True)}.difference(gone.get(name, ()))
    }
    lost = {name: [part for part in parts if (part.run, part.iteration) not in there] for name, parts in gone.items()}
    found = {name: parts for name, parts in lost.items() if parts}
    if not there:
        end_gone(found)
    return found


def end_gone(gone: Mapping[str, Sequence[Partition]]) -> None:
    """End a command that showed the rest of what was written.

    Args:
        gone: table → its parts that somebody deleted.

    Raises:
        IncompleteError: there are some.
    """
    lines = []
    for table, parts in gone.items():
        more = f" and {len(parts) - 1} more" if parts[1:] else ""
        lines.append(f"table {table}: the rows of {parts[0].in_words}{more} are missing, as somebody deleted the file")
    if lines:
        others = [f"and of {len(lines) - _NAMED} more tables"] if len(lines) > _NAMED else []
        raise IncompleteError("; ".join([*lines[:_NAMED], *others, ANALYSE_AGAIN]))


def tell_stale(lake: Lake) -> None:
    """Name the iterations of which tables are stale, in a line; says nothing where none are."""
    keys = [
        iteration_key(part.run, part.iteration)
        for part in lake.partitions(STALE_TABLES.name)
        if not all(row.is_counted for row in lake.stale(part.run, part.iteration))
    ]
    if keys:
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        typer.echo(f"traceviz: tables of {', '.join(keys[:5])}{more} are stale: see the table stale_tables", err=True)


def end_stale(lake: Lake, places: Iterable[tuple[str, int]]) -> None:
    """End a command that showed what the lake holds: a line for all tables of an iteration that are kept and could not
    be made anew; does nothing where none are.

    Raises:
        IncompleteError: some of them are made of something that is another by now.
    """
    from traceviz_dag.pipeline.completeness import ranks_in_words

    stale = []
    for place in dict.fromkeys(places):
        key, rows = iteration_key(*place), lake.stale(*place)
        gone = [row.rank for row in rows if row.is_counted and row.rank is not None]
        # A trace that is back is as good as if it had never been away; the mark goes with the next analysis.
        back = _there_now(lake, key) if gone else set()
        gone = [rank for rank in gone if rank not in back]
        outdated = [row for row in rows if not row.is_counted]
        if gone:
            named = ranks_in_words(gone)
            typer.echo(f"traceviz: {key}: traces of {named} are gone, and their tables are still counted", err=True)
        for row in outdated:
            typer.echo(f"traceviz: {key}: {row.line}", err=True)
        stale += [key] if outdated else []
    if stale:
        raise IncompleteError(f"tables of {', '.join(stale[:5])} are stale: see above, or the table stale_tables")


def _lines(results: Sequence[IterationResult]) -> list[str]:
    return list(dict.fromkeys(line for result in results for line in result.failures))


def _there_now(lake: Lake, key: str) -> set[int]:
    """Ranks of an iteration whose registered file is there."""
    # Commands of analysis name a list that is damaged.
    with suppress(BadInputError):
        inputs = registered_if_any(lake.home, key)
        return {entry.rank for entry in inputs.ranks if Path(entry.path).exists()} if inputs else set()
    return set()
