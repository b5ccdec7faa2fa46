"""``traceviz kernels --by module``: time, FLOPs and efficiency of a model's modules, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import of_ranks, percent, print_table, print_wrapped
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def modules_of(iteration: StoredIteration, rank: int | None) -> list[dict[str, Any]]:
    """The rows that ``--json`` prints.

    Raises:
        NoEvidenceError: no kernel shows its modules.
    """
    from traceviz_dag.lake.module_summaries import modules

    found = modules(iteration.lake, iteration.run, iteration.iteration, rank)
    return [{**place(iteration), **row} for row in _rows(found)]


def _rows(modules: pa.Table) -> list[dict[str, Any]]:
    if not modules.num_rows:
        raise NoEvidenceError("no module is recorded around any launch: capture with call stacks (with_stack=True)")
    return modules.to_pylist()


def print_modules(iteration: StoredIteration, rank: int | None) -> bool:
    """Print the tree of an iteration, and its layers.

    Raises:
        NoEvidenceError: as for :func:`modules_of`.
    """
    from traceviz_dag.lake.module_summaries import modules_and_layers

    tree, layers = modules_and_layers(iteration.lake, iteration.run, iteration.iteration, rank)
    rows = _rows(tree)
    total = sum(row["kernel_ns"] for row in rows if row["depth"] == 1)
    print_wrapped(
        heading(iteration, f"kernel time {milliseconds(total)} ms in modules, without communication"), 2, "\n"
    )
    print_table(
        f"Modules, each with all that is in it, {of_ranks(rank)}",
        [
            *("module", "part", "ms", "share", "of step", "forward", "backward", "recompute", "TFLOP", "efficiency"),
            *("headroom ms", "without roofline ms", "exposed ms"),
        ],
        [
            [
                f"{'· ' * (row['depth'] - 1)}{row['name']}",
                row["part"],
                milliseconds(row["kernel_ns"]),
                *(percent(share) for share in (row["kernel_ns"] / total if total else None, row["step_share"])),
                *(milliseconds(row[f"{phase}_ns"]) for phase in ("forward", "backward", "recompute")),
                None if row["flops"] is None else f"{row['flops'] / 1e12:,.3f}",
                percent(row["efficiency"]),
                *(milliseconds(row[name]) for name in ("headroom_ns", "unknown_ns", "exposed_ns")),
            ]
            for row in rows
        ],
    )
    _print_layers(layers.to_pylist())
    return True


def _print_layers(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        "Layers, to the median of the rank's layers with the same work, the slowest first",
        ["rank", "layer", "class", "ms", "forward", "backward", "ratio"],
        [
            [
                *(row["rank"], row["layer"], row["name"]),
                *(milliseconds(row[name]) for name in ("kernel_ns", "forward_ns", "backward_ns")),
                None if row["ratio"] is None else f"{row['ratio']:.2f}",
            ]
            for row in rows
        ],
    )
