"""``traceviz what-if``: how much shorter the step would be if something were fixed, as the replay predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.analyze.causes.gains import EDIT_COLUMNS, MEAN_COLUMNS, SUMMED_COLUMNS, over_steps
from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    SteadyOption,
    by_run,
    chosen_iterations,
    end_untold,
    place,
    place_of_all,
    print_lead,
    print_reason,
    print_steady,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, print_json
from traceviz_dag.commands.common.records import StepsOption
from traceviz_dag.commands.what_if.gains_table import print_gains
from traceviz_dag.commands.what_if.of_records import what_if_of_records
from traceviz_dag.commands.what_if.wanted import Wanted, counts, listed, once, speed
from traceviz_dag.errors import NoEvidenceError, UsageError

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def what_if(
    path: PathArgument = None,
    fix_rank: Annotated[
        list[int] | None, typer.Option(help="Give this rank its peers' kernel times and no host pauses. Repeatable.")
    ] = None,
    fix_link: Annotated[
        list[int] | None,
        typer.Option(help="Give this rank's transfers the time of similar transfers between others. Repeatable."),
    ] = None,
    fix_ranks: Annotated[
        list[str] | None,
        typer.Option(help="Fix the GPUs of these ranks together, such as 0-3,6. Repeatable."),
    ] = None,
    fix_links: Annotated[
        list[str] | None,
        typer.Option(help="Fix the links that these ranks share, where one group's transfers are slow. Repeatable."),
    ] = None,
    fix_group: Annotated[
        list[int] | None, typer.Option(help="Fix the GPUs of this rank's tensor-parallel group. Repeatable.")
    ] = None,
    fix_node: Annotated[list[int] | None, typer.Option(help="Fix all GPUs of this rank's node. Repeatable.")] = None,
    hide: Annotated[
        list[str] | None, typer.Option(help="Let transfers of a dimension (tp, dp, ... all) take no time. Repeatable.")
    ] = None,
    faster: Annotated[
        list[str] | None, typer.Option(help="Make transfers K times faster: DIMENSION=K, as in dp=2. Repeatable.")
    ] = None,
    even_layers: Annotated[
        bool, typer.Option("--even-layers", help="Give all pipeline stages the same number of layers (needs stacks).")
    ] = False,
    equal_stages: Annotated[
        bool, typer.Option("--equal-stages", help="Give all pipeline stages the same computation.")
    ] = False,
    no_jitter: Annotated[
        bool, typer.Option("--no-jitter", help="Give all micro-batches of a stage the same computation.")
    ] = False,
    no_pauses: Annotated[bool, typer.Option("--no-pauses", help="Remove the pauses of all hosts.")] = False,
    no_hidden_waits: Annotated[
        bool, typer.Option("--no-hidden-waits", help="Let no host wait for its GPU except where Megatron does.")
    ] = False,
    host_free: Annotated[bool, typer.Option("--host-free", help="Let the host take no time.")] = False,
    balanced_experts: Annotated[
        bool, typer.Option("--balanced-experts", help="Spread tokens evenly over the experts of each layer.")
    ] = False,
    no_congestion: Annotated[
        bool, typer.Option("--no-congestion", help="Let no transfer take far longer than similar ones of its rank.")
    ] = False,
    microbatches: Annotated[
        int | None, typer.Option(help="Run this many micro-batches per step, in a new order.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Run another schedule: 1f1b, interleaved or interleaved-overlapped.")
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="Run this many model chunks per stage (interleaving).")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Give the pipeline stages these numbers of layers, such as 7,8,8,7.")
    ] = None,
    no_recompute: Annotated[
        str | None, typer.Option(help="Let these pipeline stages recompute nothing, such as 0,1.")
    ] = None,
    steady: SteadyOption = False,
    records: RecordsOption = None,
    steps: StepsOption = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Predict how long the step takes with something fixed: a slow rank, uneven stages, communication, a busy host.

    Without an edit, it ranks the usual ones. Several edits are predicted one by one and together; their gains do not
    add up. Another number of micro-batches, schedule, chunks or layers make the order of the work anew. The error bar
    spans replays with the measured delays of the host and without any, and all training steps. Gains are ceilings.
    Steps that follow one another show a steady period, too (--steady). Records give the slowdown of the job.
    """
    flags = {
        **{"even_layers": even_layers, "equal_stages": equal_stages, "no_jitter": no_jitter},
        **{"no_pauses": no_pauses, "no_hidden_waits": no_hidden_waits, "host_free": host_free},
        **{"balanced_experts": balanced_experts, "no_congestion": no_congestion},
    }
    change = {
        **{"microbatches": microbatches, "schedule": schedule, "chunks": chunks},
        "layers": None if layers is None else counts(layers, "--layers"),
        "no_recompute": None if no_recompute is None else counts(no_recompute, "--no-recompute"),
    }
    wanted = Wanted(
        once(fix_rank or ()),
        once(fix_link or ()),
        once(hide or ()),
        once(speed(text) for text in faster or ()),
        tuple(name for name, chosen in flags.items() if chosen),
        (
            *(("fix_ranks", ranks) for ranks in once(listed(text) for text in fix_ranks or ())),
            *(("fix_links", ranks) for ranks in once(listed(text, "links") for text in fix_links or ())),
            *(("fix_group", (rank,)) for rank in once(fix_group or ())),
            *(("fix_node", (rank,)) for rank in once(fix_node or ())),
        ),
        {name: value for name, value in change.items() if value is not None},
    )
    for option, count, what in (("--microbatches", microbatches, "step"), ("--chunks", chunks, "stage")):
        if count is not None and count < 1:
            raise UsageError(f"{option} {count}: a {what} has at least one")
    if records is not None:
        refuse_both(path, run, iteration)
        if steady:
            raise UsageError("--steady is for traces; records hold whole steps")
        what_if_of_records(records, steps, json, wanted)
        return
    if steps is not None:
        raise UsageError("--steps is for --records")
    with chosen_iterations(path, home, run, iteration, rules) as iterations:
        answers = []
        for several in by_run(iterations) if steady else ():
            answers.append(_steady(several, wanted))
            if not json:
                print_gains(partial(print_steady, several), answers[-1]["rows"], several[-1].lead, answers[-1]["of"])
                print_reason(answers[-1])
        for each in () if steady else iterations:
            rows, reason = _predicted(each, wanted) if wanted else _stored(each)
            answers.append({**place(each), "certain": reason is None, "reason": reason, "rows": rows})
            if not json:
                print_gains(partial(print_lead, each), rows, each.lead)
                if wanted:
                    print_reason(answers[-1])
        if json:
            print_json(_flat(answers))
    end_untold(answers)


def _steady(iterations: Sequence[StoredIteration], wanted: Wanted) -> dict[str, Any]:
    """Edits and what they gain in each steady period of iterations of one run."""
    from traceviz_dag.pipeline.across_ranks import sets_of_ranks
    from traceviz_dag.pipeline.causes import steady_steps

    rows: list[dict[str, Any]] = []
    whole: list[str] = []
    refused: list[str] = []
    period = "no steady period"
    try:
        steps = steady_steps(iterations)
        steady, (first, last) = steps.steady, steps.numbers
        period = (
            f"steady period {milliseconds(steady.period_ns)} ms, from the end of step {first} to that of step {last}"
        )
        if wanted:
            _check_ranks(iterations[-1], wanted)
            each = [wanted.edits(one, partial(sets_of_ranks, iterations[-1])) for one in steady.steps]
            single = list(zip(*each, strict=True))
            choices = [[[edit] for edit in edits] for edits in single] + ([each] if len(single) > 1 else [])
        else:
            stored = [row for one in iterations for row in one.table("what_if").to_pylist()]
            whole = [row["refusal"] for row in stored if row["refusal"] is not None and row["edit"] is None]
            refused = [row["refusal"] for row in stored if row["refusal"] is not None]
            usual = steady.usual(row for row in stored if row["refusal"] is None)
            choices = [[[edit] for edit in edits] for edits in usual]
        for choice in choices:
            try:
                found = steady.predict(choice)
            except NoEvidenceError as error:
                refused.append(str(error))
                continue
            if wanted or found.undecided is None:
                rows.append(found.as_row())
            else:
                refused.append(found.undecided)
    except NoEvidenceError as error:
        whole = [str(error)]
    reason = next(iter([*whole, *(refused if wanted or not rows else [])]), None)
    told = [{**row, "steps": len(steps.ranked)} for row in over_steps(rows)]
    return {**place_of_all(iterations), "certain": reason is None, "reason": reason, "of": period, "rows": told}


def _flat(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each edit of each iteration; one without an edit where nothing can be predicted, with the reason."""
    rows = []
    for answer in answers:
        where = {name: value for name, value in answer.items() if name not in ("rows", "of")}
        rows += [
            {**where, **row}
            for row in answer["rows"] or [dict.fromkeys((*EDIT_COLUMNS, "steps", *SUMMED_COLUMNS, *MEAN_COLUMNS))]
        ]
    return rows


def _stored(iteration: StoredIteration) -> tuple[list[dict[str, Any]], str | None]:
    """The usual edits, from the table."""
    rows = iteration.table("what_if").to_pylist()
    told = over_steps([row for row in rows if row["refusal"] is None])
    refusals = [row["refusal"] for row in rows if row["refusal"] is not None and (row["edit"] is None or not told)]
    return told, next(iter(refusals), None if told else _NO_STEP)


def _predicted(iteration: StoredIteration, wanted: Wanted) -> tuple[list[dict[str, Any]], str | None]:
    from traceviz_dag.pipeline.across_ranks import sets_of_ranks
    from traceviz_dag.pipeline.causes import ranked_steps

    _check_ranks(iteration, wanted)
    rows: list[dict[str, Any]] = []
    reason = None
    try:
        for ranked in ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")):
            what_if = ranked.what_if()
            edits = wanted.edits(what_if, partial(sets_of_ranks, iteration))
            for each in [*([edit] for edit in edits), *([edits] if len(edits) > 1 else [])]:
                try:
                    rows.append(what_if.predict(*each).as_row())
                except NoEvidenceError as error:
                    reason = reason or str(error)
    except NoEvidenceError as error:
        reason = str(error)
    return over_steps(rows), reason if rows or reason else _NO_STEP


def _check_ranks(iteration: StoredIteration, wanted: Wanted) -> None:
    """Refuse edits of ranks that were not read."""
    from traceviz_dag.pipeline.completeness import ranks_in_words

    asked = [(f"--{name.replace('_', '-')}", ranks) for name, ranks in wanted.together]
    for option, ranks in (("--fix-rank", wanted.ranks), ("--fix-link", wanted.links), *asked):
        unknown = sorted(set(ranks) - set(iteration.ranks))
        if unknown:
            raise UsageError(
                f"{option} {unknown[0]}: no such rank was read of {iteration.run} {iteration.iteration}; "
                f"there are {ranks_in_words(iteration.ranks)}"
            )


_NO_STEP = "no training step is known"
