"""``traceviz kernels --by module``: time, FLOPs and efficiency of a model's modules, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.output import of_ranks, print_columns, print_wrapped
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
    print_columns(
        f"Modules, each with all that is in it, {of_ranks(rank)}",
        [
            {
                **row,
                "module": f"{'· ' * (row['depth'] - 1)}{row['name']}",
                "share": row["kernel_ns"] / total if total else None,
            }
            for row in rows
        ],
        [
            *("module", "part", "kernel_ns", "share", ("step_share", "of step"), "forward_ns", "backward_ns"),
            *("recompute_ns", "flops", "efficiency", "headroom_ns", "unknown_ns", "exposed_ns"),
        ],
    )
    _print_layers(layers.to_pylist())
    return True


def _print_layers(rows: Sequence[dict[str, Any]]) -> None:
    print_columns(
        "Layers, to the median of the rank's layers with the same work, the slowest first",
        rows,
        ["rank", "layer", ("name", "class"), "kernel_ns", "forward_ns", "backward_ns", "ratio"],
    )
