"""``traceviz kernels --by length``: short kernels, what gaps wait for, and how far equal work spreads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import ABSENT, milliseconds
from traceviz_dag.commands.common.output import of_ranks, percent, print_table, print_wrapped
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
    part, time = (sum(row[name] for row in short) for name in ("kernel_share", "time_share"))
    words = [wording.percent(each) for each in (part, time, bound / max(total, 1))]
    what = f"{milliseconds(total)} ms of computation: {words[0]} of the kernels are shorter than {_edge(_SHORT_NS)}"
    what += f", {words[1]} of the time; {words[2]} of the time is launch-bound"
    print_wrapped(heading(iteration, what), 2, "\n")
    print_table(
        f"Computation kernels by length, {of_ranks(rank)}",
        ["length", "kernels", "of kernels", "ms", "of time", "launch-bound", "launch-bound ms", "wait before ms"],
        [
            [
                _class(row["from_ns"]),
                row["kernels"],
                percent(row["kernel_share"]),
                milliseconds(row["kernel_ns"]),
                percent(row["time_share"]),
                row["launch_bound"],
                *(milliseconds(row[name]) for name in ("launch_bound_ns", "starved_ns")),
            ]
            for row in lengths
        ],
    )
    print_table(
        f"Gaps of computation by what the GPU waits for, {of_ranks(rank)}",
        ["waits for", "host work", "ms", "of step"],
        [[row["cause"], row["host_work"], milliseconds(row["gap_ns"]), percent(row["share"])] for row in found["gaps"]],
    )
    print_table(
        "Spread of equal work, p95 to median, weighted by time",
        ["class", "ms", "over micro-batches", "over ranks"],
        [
            [
                row["work_class"],
                milliseconds(row["kernel_ns"]),
                *(_ratio(row[name]) for name in ("over_microbatches", "over_ranks")),
            ]
            for row in found["spread"]
        ],
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


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"
