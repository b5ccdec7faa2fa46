"""``traceviz kernels --by length``: short kernels, what gaps wait for, and how far equal work spreads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import of_ranks, print_columns, print_wrapped
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_SHORT_NS = 10_000


def lengths_of(iteration: StoredIteration, rank: int | None) -> list[dict[str, Any]]:
    """What ``--json`` prints of an iteration: one object with the rows of ``lengths``, ``gaps`` and ``spread``.

    Raises:
        NoEvidenceError: there is no computation.
    """
    from traceviz_dag.lake.kernel_lengths import gap_causes, kernel_lengths, kernel_spread

    where = (iteration.lake, iteration.run, iteration.iteration, rank)
    found = {"lengths": kernel_lengths(*where), "gaps": gap_causes(*where), "spread": kernel_spread(*where)}
    if not found["lengths"].num_rows:
        raise NoEvidenceError("these traces hold no computation kernels")
    return [{**place(iteration), **{name: rows.to_pylist() for name, rows in found.items()}}]


def print_lengths(iteration: StoredIteration, rank: int | None) -> bool:
    """Print an iteration's kernels by length, its gaps by cause, and its spread.

    Raises:
        NoEvidenceError: as for :func:`lengths_of`.
    """
    (found,) = lengths_of(iteration, rank)
    lengths = found["lengths"]
    total, bound = (sum(row[name] for row in lengths) for name in ("kernel_ns", "launch_bound_ns"))
    short = [row for row in lengths if row["from_ns"] < _SHORT_NS]
    part, took = (sum(row[name] for row in short) for name in ("kernel_share", "kernel_ns"))
    words = [wording.percent(part), *(wording.percent(each / total if total else None) for each in (took, bound))]
    what = f"{milliseconds(total)} ms of computation: {words[0]} of the kernels are shorter than {_edge(_SHORT_NS)}"
    what += f", {words[1]} of the time; {words[2]} of the time is launch-bound"
    print_wrapped(heading(iteration, what), 2, "\n")
    print_columns(
        f"Computation kernels by length, {of_ranks(rank)}",
        [{**row, "length": _class(row["from_ns"])} for row in lengths],
        [
            *("length", "kernels", ("kernel_share", "of kernels"), "kernel_ns", ("time_share", "of time")),
            *(
                ("launch_bound", "launch-bound"),
                ("launch_bound_ns", "launch-bound time"),
                ("starved_ns", "wait before"),
            ),
        ],
    )
    print_columns(
        f"Gaps of computation by what the GPU waits for, {of_ranks(rank)}",
        found["gaps"],
        [("cause", "waits for"), "host_work", ("gap_ns", "gaps"), ("share", "of step")],
    )
    print_columns(
        "Spread of equal work, p95 to median, weighted by time",
        found["spread"],
        [("work_class", "class"), "kernel_ns", ("over_microbatches", "over micro-batches"), "over_ranks"],
    )
    return True


def _class(from_ns: int) -> str:
    from traceviz_dag.lake.kernel_lengths import EDGES_NS

    edges = [0, *EDGES_NS]
    following = edges[edges.index(from_ns) + 1 :]
    if not following:
        return f"{_edge(from_ns)} and more"
    return f"{_edge(from_ns)} to {_edge(following[0])}" if from_ns else f"below {_edge(following[0])}"


def _edge(nanoseconds: int) -> str:
    return f"{nanoseconds // 1_000_000} ms" if nanoseconds >= 1_000_000 else f"{nanoseconds // 1_000} µs"
