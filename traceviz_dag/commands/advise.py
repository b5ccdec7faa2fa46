"""``traceviz advise``: which other schedule, chunks or layers would make the step shorter, as replay predicts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.analyze.causes.gains import named_change
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    chosen_iterations,
    each_printed,
    end_untold,
    print_lead,
    print_reason,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, in_bytes
from traceviz_dag.commands.common.output import percent, print_json, print_table, print_wrapped, shown
from traceviz_dag.commands.common.records import StepsOption, end_of_records, titled, work_at
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.pipeline.answers.iterations import place
from traceviz_dag.pipeline.diff.sides import side_at

if TYPE_CHECKING:
    from traceviz_dag.analyze.advice.search import Advisor
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

_KEEPS = ("vpp", "layers", "microbatches", "schedule", "recompute", "order")
_FITS = {True: "yes", False: "no", None: "unknown"}
_SIZE = {"microbatch_size", "microbatches"}
"""What a change of the size alone changes; it is printed also where it is slower, as somebody asked."""

_ORDER = ("schedule", "chunks", "microbatches", "microbatch_size", "rank_order", "no_recompute")
_FLAGGED = 3
"""Changes whose flags are printed."""


def advise(
    path: PathArgument = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Leave vpp, layers, microbatches, schedule, recompute or order as it is. Repeatable."),
    ] = None,
    gpu_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Memory of a GPU; default: as the traces state it.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            help="A capture of the same job with micro-batches of another size, given as for traceviz diff: also "
            "advise sizes from the one to the other. Of several iterations the last."
        ),
    ] = None,
    records: RecordsOption = None,
    steps: StepsOption = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Rank changes of schedule, chunks, layers per stage, recomputation, micro-batches and rank order by step time.

    Each allowed combination is predicted as traceviz what-if does it, from the measured step alone; the fastest comes
    first, with its error bar, what it needs in memory and the flags of Megatron-LM and Megatron Bridge. What would not
    fit comes last. What the capture cannot tell is named with the reason.
    """
    kept, gpu_bytes = tuple(dict.fromkeys(keep or ())), in_bytes("--gpu-gib", gpu_gib)
    for name in kept:
        if name not in _KEEPS:
            raise UsageError(f"--keep {name}: there are {', '.join(_KEEPS)}")
    if records is not None:
        refuse_both(path, run, iteration)
        for option, value in (("--beside", beside), ("--gpu-gib", gpu_gib)):
            if value is not None:
                raise UsageError(f"{option} is for traces")
        _advise_on_records(records, steps, frozenset(kept), json)
        return
    if steps is not None:
        raise UsageError("--steps is for --records")
    chosen = chosen_iterations(path, home, run, iteration, rules, printed="findings")
    with chosen as iterations, ExitStack() as opened:
        other = None if beside is None else opened.enter_context(side_at(beside, home).opened())[-1]
        answers = [{**place(each), **_answer(partial(_advisor, each, kept, gpu_bytes, other))} for each in iterations]
        if json:
            print_json(_flat(answers))
        else:
            for each, answer in each_printed(iterations, answers):
                _print(partial(print_lead, each), answer)
                print_reason(answer)
    end_untold(answers)


def _advise_on_records(path: Path, steps: str | None, keep: frozenset[str], json: bool) -> None:
    from traceviz_dag.analyze.advice.search import Advisor, not_predictable
    from traceviz_dag.analyze.causes.records_edits import RecordsWhatIf
    from traceviz_dag.analyze.causes.records_waits import with_inferred_waits

    work, faults = work_at(path, steps)
    what_if = RecordsWhatIf(with_inferred_waits(work))

    def advisor() -> tuple[Advisor, list[str]]:
        items = what_if.items()
        found = Advisor(items, what_if, {}, keep)
        return found, not_predictable(found, what_if.dimensions())

    answer = {"records": path.name, "partial": bool(faults), "faults": faults, **_answer(advisor)}
    if json:
        print_json(_flat([answer]))
    else:
        _print(lambda text: typer.echo(titled(path, faults, text)), answer)
    if answer["reason"] is not None:
        raise NoEvidenceError(f"{path.name}: {answer['reason']}")
    end_of_records(faults)


def _advisor(
    iteration: StoredIteration, keep: Sequence[str], gpu_bytes: int | None, beside: StoredIteration | None
) -> tuple[Advisor, list[str]]:
    from traceviz_dag.pipeline.advice import advisor_of

    return advisor_of(iteration, keep, gpu_bytes, beside)


def _answer(advisor: Callable[[], tuple[Advisor, list[str]]]) -> dict[str, Any]:
    try:
        found, untold = advisor()
        rows = [one.as_row() for one in found.advice]
    except NoEvidenceError as error:
        return {"certain": False, "reason": str(error), "not_predictable": [], "rows": []}
    return {"certain": True, "reason": None, "not_predictable": untold, "rows": rows, "step_ns": found.items.step_ns}


def _flat(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each change of each iteration; one without a change where nothing can be advised, with the reason."""
    rows = []
    for answer in answers:
        where = {name: value for name, value in answer.items() if name not in ("rows", "step_ns")}
        rows += [{**where, **row} for row in answer["rows"] or [{"change": None}]]
    return rows


def _print(heading: Callable[[str], None], answer: Mapping[str, Any]) -> None:
    rows = answer["rows"]
    if answer["reason"] is not None:
        heading("nothing can be advised")
        return
    heading(f"step {milliseconds(rows[0]['step_ns'] if rows else answer['step_ns'])} ms")
    print_wrapped(_verdict(rows), 4, "  ")
    faster = [row for row in rows if row["tokens_per_second"] > 1]
    same, other = ([row for row in faster if row["same_batch"] is kept] for kept in (True, False))
    _table("Steps in ms, with other settings", same)
    _table("The same with micro-batches of another size alone", [row for row in rows if {*row["change"]} == _SIZE])
    _table("The same with another global batch", other)
    for row in _first_of_orders([row for row in shown(same) if row["wins"]])[:_FLAGGED]:
        typer.echo(f"\n  {_named(row)}:")
        for name, title in (("megatron_lm", "Megatron-LM"), ("megatron_bridge", "Megatron Bridge")):
            print_wrapped(f"{title}: {', '.join(row['flags'][name])}", 6, "    ")
        for text in row["assumptions"]:
            print_wrapped(f"assumed: {text}", 6, "    ")
    typer.echo("\n  Not predictable from this capture:")
    for text in answer["not_predictable"]:
        print_wrapped(f"- {text}", 6, "    ")


def _first_of_orders(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of all rows that change the order of the work alike, whatever layers they move."""
    found = dict[tuple[Any, ...], Mapping[str, Any]]()
    for row in rows:
        found.setdefault(tuple(row["change"].get(name) for name in _ORDER), row)
    return [*found.values()]


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    best = next((row for row in rows if row["wins"]), None)
    if best is None:
        return "Nothing predicted to win over 1 %."
    gain = 1 - best["predicted_step_ns"] / best["step_ns"]
    return f"Best: {_named(best)}, {percent(gain)} of the step shorter."


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        print_table(
            title,
            ["change", "step then", "at least", "at most", "tokens/s", "in flight", "fits"],
            [
                [
                    _named(row),
                    *(milliseconds(row[name]) for name in ("predicted_step_ns", "low_ns", "high_ns")),
                    f"{row['tokens_per_second']:.3f}x",
                    f"{max(row['in_flight']):.4g}",
                    _FITS[row["fits"]],
                ]
                for row in rows
            ],
        )


def _named(row: Mapping[str, Any]) -> str:
    return named_change(row["change"])
