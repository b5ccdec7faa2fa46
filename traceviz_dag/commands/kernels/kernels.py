"""``traceviz kernels``: what each operation computes and moves, against what the GPU could do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import of_ranks, print_columns, print_json, print_wrapped
from traceviz_dag.commands.common.savings import print_savings
from traceviz_dag.commands.kernels.by_length import lengths_of, print_lengths
from traceviz_dag.commands.kernels.by_module import modules_of, print_modules
from traceviz_dag.commands.kernels.measured import measured_of, print_measured
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.pipeline.answers.iterations import heading, place

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration
    from traceviz_dag.read.ncu import MeasuredKernel


def kernels(
    path: PathArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rank: Annotated[int | None, typer.Option(help="Take only this rank.")] = None,
    by: Annotated[
        str,
        typer.Option(
            help="What to sum up: operation, module (the model's modules as a tree; needs call stacks), or length "
            "(short kernels, gaps, spread)."
        ),
    ] = "operation",
    ncu: Annotated[
        Path | None,
        typer.Option(help="Show operations beside what Nsight Compute measured of their kernels: CSV of ncu --csv."),
    ] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Compare each operation with the roofline of its GPU: FLOPs, bytes, efficiency, and what perfect ones would save.

    An operation is an operator with its input sizes; its time is that of all kernels that it launches. The roofline is
    the longer of FLOPs / peak and bytes / memory bandwidth. Headroom is kernel time above it. Where input sizes are not
    recorded (record_shapes), nothing is known, and the reason is printed. Add peaks of other GPUs to the settings of
    the home. Operations that run beside communication and alone show what it slows, and what overlap really saves. Of
    what the home holds, ranks of a stage are compared in the same work, too. The exit code is 2 if a rank was not read
    completely, or there is no kernel.
    """
    ways = {
        "operation": (_rows, _print),
        "module": (modules_of, print_modules),
        "length": (lengths_of, print_lengths),
    }
    if by not in ways:
        raise UsageError(f"--by {by}: there are operation, module and length")
    rows_of, print_one = ways[by]
    if ncu is not None:
        if by != "operation":
            raise UsageError("--ncu shows operations: leave --by out")
        measured = _measured(ncu)
        rows_of, print_one = partial(measured_of, measured), partial(print_measured, measured)
    read = " ".join(_queries()) if rows_of is _rows else ""
    with chosen_iterations(path, home, run, iteration, rules, by_rank=True, printed=read) as iterations:
        asked = [each for each in iterations if rank is None or rank in _ranks(each)]
        if not asked:
            raise UsageError(f"no kernels of rank {rank} there; see traceviz topology")
        printed: list[bool] = []
        if json:
            rows = [row for each in asked for row in rows_of(each, rank)]
            print_json(rows)
        else:
            printed = [print_one(each, rank) for each, _ in each_printed(asked, asked)]
            rows = [] if any(printed) else [row for each in asked for row in rows_of(each, rank)]
        found = any(printed) or any(ncu is None or row["reason"] is None for row in rows)
        if not found:
            lacks = "these traces hold no kernels" if ncu is None else f"no operation runs a kernel that {ncu} has"
            raise NoEvidenceError(lacks)


def _measured(path: Path) -> list[MeasuredKernel]:
    from traceviz_dag.read.ncu import read_ncu

    return read_ncu(path)


def _ranks(iteration: StoredIteration) -> set[int | None]:
    return {part.rank for part in iteration.lake.partitions("operations", iteration.run, iteration.iteration)}


def _rows(iteration: StoredIteration, rank: int | None) -> list[dict[str, Any]]:
    where = place(iteration)
    table = iteration.lake.table("operations", iteration.run, iteration.iteration, rank).arrow()
    stored = sorted(table.to_pylist(), key=lambda row: (row["rank"], row["operation_id"]))
    return [{**where, **{name: value for name, value in row.items() if name not in where}} for row in stored]


def _queries() -> tuple[str, ...]:
    """What is asked of the lake where an iteration is printed."""
    from traceviz_dag.lake import operation_summaries as summaries

    return (
        *(summaries.CLASSES_SQL, summaries.PEAKS_SQL, summaries.OPERATIONS_SQL, summaries.MODULES_SQL),
        *(summaries.CONTENTION_SQL, summaries.SAVINGS_SQL, summaries.SAME_WORK_SQL, summaries.REASONS_SQL),
    )


def _print(iteration: StoredIteration, rank: int | None) -> bool:
    """Print an iteration's operations; returns whether it has any."""
    from traceviz_dag.lake import operation_summaries as summaries

    # Together: a table that several of them name is read once.
    with iteration.lake.session(run=iteration.run, iteration=iteration.iteration) as session:
        found = [rows.to_pylist() for rows in session.ask_each([summaries.of_rank(sql, rank) for sql in _queries()])]
    classes, peaks, rows, modules, slowed, saved, same, unknowns = found
    ranks = of_ranks(rank)
    own = [row for row in classes if row["name"] != "communication"]
    total = sum(row["kernel_ns"] for row in own)
    unknown = sum(row["unknown_ns"] or 0 for row in own)
    headroom = sum(row["headroom_ns"] or 0 for row in own)
    what = f"kernel time {milliseconds(total)} ms without communication"
    known = f", {wording.percent((total - unknown) / total)} of it with a roofline" if unknown < total else ""
    typer.echo()
    print_wrapped(heading(iteration, f"{what}{known}"), 2)
    if unknown < total:
        print_wrapped(f"Perfect kernels would save {milliseconds(headroom)} ms at most, {ranks}", 4, "  ")
        print_wrapped(f"Peaks used: {_peaks(peaks)}", 4, "  ")
    _print_operations(f"Operations, the longest first, {ranks}", rows, total)
    known_rows = [row for row in rows if row["headroom_ns"]]
    if known_rows:
        first = f"Operations, the most headroom first, {ranks}"
        _print_operations(first, sorted(known_rows, key=_headroom), total)
    _print_groups(f"Innermost modules, the longest first, {ranks}", "module", modules)
    _print_groups(f"Classes, the longest first, {ranks}", "class", classes)
    _print_contention(slowed, ranks)
    print_savings(saved)
    _print_same_work(same)
    reasons = [row for row in unknowns if row["kernel_ns"]]
    if reasons:
        print_columns("Kernel time without a roofline", reasons, ["reason", "kernel_ns"])
    return bool(classes)


def _print_contention(rows: Sequence[dict[str, Any]], ranks: str) -> None:
    if rows:
        print_columns(
            f"Operations beside communication and alone, the most extra time first, {ranks}",
            rows,
            [
                *(("name", "operation"), "kernel", "shapes", "phase", "alone", ("alone_ns", "each"), "beside"),
                *(("beside_ns", "each"), ("slowdown", "slow-down"), "extra_ns"),
            ],
        )


def _print_same_work(rows: Sequence[dict[str, Any]]) -> None:
    """How long ranks take for the same work; nothing of a path, whose ranks are not compared."""
    if rows:
        classes = ("products", "attention", "memory_bound", "transfers")
        print_columns(
            "The same work on each rank, times as long as on the median of its peers; the slowest first",
            [row | {f"{name}_ratio": row[name] for name in classes} for row in rows],
            ["rank", "stage", *((f"{name}_ratio", name.replace("_", "-")) for name in classes), "kind"],
        )


def _headroom(row: dict[str, Any]) -> tuple[int, str]:
    return -row["headroom_ns"], row["name"]


def _peaks(rows: Sequence[dict[str, Any]]) -> str:
    """The peaks of each GPU, as people read them."""
    of_gpu: dict[str, list[str]] = {}
    for row in rows:
        named = of_gpu.setdefault(f"{row['gpu']} {row['memory_bytes_per_s'] / 1e12:,.2f} TB/s", [])
        if row["peak_flops_per_s"] is not None:
            named.append(f"{row['number_format']} {row['peak_flops_per_s'] / 1e12:,.1f} TFLOP/s")
    return "; ".join(", ".join([gpu, *formats]) for gpu, formats in of_gpu.items())


def _print_operations(title: str, rows: Sequence[dict[str, Any]], total: int) -> None:
    print_columns(
        title,
        [{**row, "share": row["kernel_ns"] / total if total else None} for row in rows],
        [
            *(("name", "operation"), "shapes", "phase", ("number_format", "format"), "calls", "kernel_ns", "share"),
            *(("tera_flops_per_s", "TFLOP/s"), ("tera_bytes_per_s", "TB/s"), "efficiency", "headroom_ns", "bound"),
        ],
    )


def _print_groups(title: str, column: str, rows: Sequence[dict[str, Any]]) -> None:
    print_columns(
        title,
        [{**row, "unknown_ns": row["unknown_ns"] or 0} for row in rows],
        [("name", column), "kernel_ns", "unknown_ns", "efficiency", "headroom_ns"],
    )
