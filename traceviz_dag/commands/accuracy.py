"""``traceviz accuracy``: how right the classification of a simulated job is, against its truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import typer

from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.commands.common.partial import end_partial

if TYPE_CHECKING:
    from traceviz_dag.analyze.accuracy import Shares
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def accuracy(
    path: Annotated[Path, typer.Argument(help="Simulated run, or one of its iterations, with its truth/ folder.")],
    home: HomeOption = DEFAULT_HOME,
    rules: Annotated[
        Path | None,
        typer.Option(help="TOML file of rules; classifies the traces anew with them, whatever the home holds."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare the analysis of a simulated job with what really happened in it.

    What the home does not hold is analysed for the comparison, and not kept. Shares are of kernel time, the sum of the
    kernels' durations: right, told (reported, where there is something to report), wrong. share_of_time_right counts
    kernels whose category is right and, if the truth has them, micro-batch and chunk. Kernels of a CUDA graph that
    spans several micro-batches cannot be distinguished; if there are any, the shares are also given without them.
    """
    from traceviz_dag.read.truth import truth_folder

    truth = truth_folder(path)
    with _iterations(path, home, rules) as (source, iterations):
        answer = {"source": source, **_answer(iterations, truth)}
        found = [replace(each.completeness, missing=()) for each in iterations]
    if json:
        print_json(answer)
    else:
        _print(path, answer)
    end_partial(found)


@contextmanager
def _iterations(path: Path, home: Path, rules: Path | None) -> Iterator[tuple[str, list[StoredIteration]]]:
    """The path's iterations: from the lake where it has all of them, else analysed into one that is gone afterwards."""
    from traceviz_dag.lake.inputs import registered_if_any
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.lake.under_way import was_left_half_renewed
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at

    if rules is None:
        below = inputs_below([path], home=home)
        known = [registered_if_any(home, inputs.key) for inputs in below]
        lake = open_lake(home)
        stored = [
            StoredIteration(lake, inputs.run, inputs.iteration, inputs)
            for inputs, kept in zip(below, known, strict=True)
            if kept is not None
            and [rank.look for rank in kept.ranks] == [rank.look for rank in inputs.ranks]
            # The list is written before the tables: of an analysis that was killed, they are not yet made of it.
            and not was_left_half_renewed(home, inputs.key)
        ]
        if len(stored) == len(below) and all(each.ranks for each in stored):
            yield "lake", stored
            return
    with iterations_at(path, home, rules) as analysed:
        yield "traces", analysed


def _answer(iterations: list[StoredIteration], truth: Path) -> dict[str, Any]:
    from traceviz_dag.analyze import accuracy as analysis

    tables: list[pd.DataFrame] = []
    spans = overlap = analysis.NOTHING_COMPARED
    for rank in sorted({rank for each in iterations for rank in each.ranks}):
        parts = [each for each in iterations if rank in each.ranks]
        found = [each.kernels(rank, analysis.KERNEL_COLUMNS).to_pandas() for each in parts]
        for each, kernels, really in zip(parts, found, _truths(truth, rank, parts, found), strict=True):
            table = analysis.compared(kernels, really)
            stored = {
                name: each.lake.table(name, each.run, each.iteration, rank).arrow()
                for name in ("microbatches", "overlap")
            }
            spans += analysis.microbatch_agreement(table, stored["microbatches"])
            overlap += analysis.overlap_agreement(table, stored["overlap"])
            tables.append(table.assign(rank=rank, iteration=each.iteration))
    table = pd.concat(tables, ignore_index=True)
    spanning = analysis.spanning_graphs(table, ("rank", "iteration"))
    shares = analysis.shares(table)
    time_ns = table.duration_ns_true.fillna(0)
    return {
        "runs": sorted({each.run for each in iterations}),
        "iterations": sorted({each.iteration for each in iterations}),
        "ranks": int(table["rank"].nunique()),
        "kernels": int(table.category_true.notna().sum()),
        "kernels_read": int((table.kernel_id.notna() & table.category_true.notna()).sum()),
        "kernels_not_in_truth": int(table.category_true.isna().sum()),
        "kernel_time_ns": int(time_ns.sum()),
        "spanning_graph_time_ns": int(time_ns[spanning].sum()),
        **_named(shares),
        "without_spanning_graphs": _named(analysis.shares(table[~spanning])) if spanning.any() else None,
        "categories": analysis.by_category(table),
        "confusion": analysis.confusion(table),
        "rules": analysis.by_rule(table),
        "microbatch_spans": asdict(spans),
        "overlap": asdict(overlap),
    }


def _truths(
    truth: Path, rank: int, iterations: Sequence[StoredIteration], kernels: Sequence[pd.DataFrame]
) -> Iterable[pd.DataFrame]:
    """What the kernels of a rank really were, per iteration."""
    from traceviz_dag.analyze.accuracy import dealt_out
    from traceviz_dag.read.truth import read_truth, tells_iterations

    if tells_iterations(truth, rank):
        return (read_truth(truth, rank, each.iteration).to_pandas() for each in iterations)
    return dealt_out(read_truth(truth, rank).to_pandas(), kernels)


def _named(shares: Shares) -> dict[str, Any]:
    return {
        "share_of_time_right": shares.whole,
        "right": dict(shares.right),
        "told": dict(shares.told),
        "wrong": dict(shares.wrong),
    }


def _print(path: Path, answer: dict[str, Any]) -> None:
    print_wrapped(
        f"{path}: {answer['kernels_read']:,} of {answer['kernels']:,} kernels of {answer['ranks']} ranks read; "
        f"{_share(answer['share_of_time_right'])} of kernel time right in category, micro-batch and chunk",
        2,
        "\n",
    )
    if answer["without_spanning_graphs"] is not None:
        without = _share(answer["without_spanning_graphs"]["share_of_time_right"])
        print_wrapped(
            f"{without} without {milliseconds(answer['spanning_graph_time_ns'])} ms of kernels of CUDA graphs that "
            "span micro-batches: nothing separates these",
            4,
            "  ",
        )
    if answer["kernels_not_in_truth"]:
        print_wrapped(f"{answer['kernels_not_in_truth']:,} kernels of the traces are not in the truth", 4, "  ")
    for name, what in (("microbatch_spans", "micro-batch spans"), ("overlap", "overlap rows")):
        rows = answer[name]
        print_wrapped(
            f"{what}: {rows['equal']:,} of {rows['expected']:,} equal, {rows['missing']} missing, "
            f"{rows['unexpected']} unexpected; largest difference {rows['largest_difference_ns']:,} ns",
            4,
            "  ",
        )
    print_columns(
        "Shares of kernel time",
        [
            {"of": aspect} | {name: _share(answer[name][aspect]) for name in ("right", "told", "wrong")}
            for aspect in answer["right"]
        ],
        ["of", "right", "told", "wrong"],
    )
    shares = ("right", "unclassified", "wrong")
    print_columns(
        "By category",
        [row | {name: _share(row[name]) for name in shares} for row in answer["categories"]],
        ["category", "kernels", "time_ns", *shares],
    )
    mistaken = [row for row in answer["confusion"] if row["truth"] != row["told"]]
    if mistaken:
        print_columns("Confusion (what is not as it was)", mistaken, ["truth", "told", "kernels", "time_ns"])
    print_columns(
        "By evidence",
        [{**row, "right": _share(row["right"])} for row in answer["rules"]],
        [("aspect", "of"), "evidence", "rule", "kernels", "time_ns", "right"],
    )


def _share(value: float) -> str:
    """A share in percent, rounded down: only a whole reads 100 %."""
    return f"{value:.1%}" if value in (0.0, 1.0) else f"{int(value * 100_000) / 1000:.3f}%"
