"""``traceviz what-if``: how much shorter the step would be if something were fixed, as the replay predicts it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from traceviz_dag.commands.common.across import (
    IterationOption,
    PathArgument,
    RecordsOption,
    RulesOption,
    RunOption,
    SteadyOption,
    chosen_iterations,
    each_printed,
    end_untold,
    print_lead,
    print_reason,
    print_steady,
    refuse_both,
)
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.common.records import StepsOption
from traceviz_dag.commands.what_if.gains_table import print_gains, print_refused
from traceviz_dag.commands.what_if.of_records import what_if_of_records
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.answers.iterations import by_run
from traceviz_dag.pipeline.answers.wanted import wanted_edits
from traceviz_dag.pipeline.answers.what_if import steady_what_if_answer, what_if_answer, what_if_rows


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
    equal_ranks: Annotated[
        bool, typer.Option("--equal-ranks", help="Give all ranks of a pipeline stage the same computation.")
    ] = False,
    no_jitter: Annotated[
        bool, typer.Option("--no-jitter", help="Give all micro-batches of a rank the same computation.")
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
        str | None,
        typer.Option(
            help="Run another schedule: 1f1b, interleaved, interleaved-overlapped, zero-bubble (ZB-H1) or "
            "combined-1f1b."
        ),
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
    wanted = wanted_edits(
        fix_rank=fix_rank or (),
        fix_link=fix_link or (),
        fix_ranks=fix_ranks or (),
        fix_links=fix_links or (),
        fix_group=fix_group or (),
        fix_node=fix_node or (),
        hide=hide or (),
        faster=faster or (),
        microbatches=microbatches,
        schedule=schedule,
        chunks=chunks,
        layers=layers,
        no_recompute=no_recompute,
        even_layers=even_layers,
        equal_stages=equal_stages,
        equal_ranks=equal_ranks,
        no_jitter=no_jitter,
        no_pauses=no_pauses,
        no_hidden_waits=no_hidden_waits,
        host_free=host_free,
        balanced_experts=balanced_experts,
        no_congestion=no_congestion,
    )
    if records is not None:
        refuse_both(path, run, iteration)
        if steady:
            raise UsageError("--steady is for traces; records hold whole steps")
        what_if_of_records(records, steps, json, wanted)
        return
    if steps is not None:
        raise UsageError("--steps is for --records")
    with chosen_iterations(path, home, run, iteration, rules, printed="findings") as iterations:
        if steady:
            answers = [steady_what_if_answer(several, wanted) for several in by_run(iterations)]
        else:
            answers = [what_if_answer(each, wanted) for each in iterations]
        if json:
            print_json(what_if_rows(answers))
        elif steady:
            for several, answer in zip(by_run(iterations), answers, strict=True):
                print_gains(partial(print_steady, several), answer["rows"], several[-1].lead, answer["of"])
                if not print_refused(answer["refused"]):
                    print_reason(answer)
        else:
            for each, answer in each_printed(iterations, answers):
                print_gains(partial(print_lead, each), answer["rows"], each.lead)
                if not print_refused(answer["refused"]) and wanted:
                    print_reason(answer)
    end_untold(answers)
