"""``traceviz overlap``: how much communication is hidden behind computation, from a trace or from the lake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from traceviz_dag.analyze.findings.verdict import RELATIONS
from traceviz_dag.analyze.wording import counted
from traceviz_dag.commands.common.across import (
    IterationOption,
    RunOption,
    each_printed,
    end_stored,
    print_limit,
    refuse_run,
)
from traceviz_dag.commands.common.failures import gone_iterations
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.savings import print_savings
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.answers.overlap import (
    Chosen,
    Span,
    check_window,
    dimension_means,
    of_dimension,
    overlap_of,
    overlap_statement,
    refuse_none,
    refuse_outside,
    spans_of,
)
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import ALL_DIMENSIONS

if TYPE_CHECKING:
    from traceviz_dag.analyze.findings.verdict import Lead
    from traceviz_dag.lake.inputs import IterationInputs
    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.pipeline.formats.trace_format import RankTrace

_TITLES = {
    "file": "overlap in each file, from its first kernel to its last",
    "step": "overlap in each training step",
    "kernels": "overlap from each rank's first kernel to its last",
}
_OF_RANK = ("exposed", "hidden", "communication", "compute", "idle")


def overlap(
    path: Annotated[
        Path | None, typer.Argument(help="Trace, iteration or run to measure; default: what the home holds.")
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            help="Window to measure: file, step (each ProfilerStep), or kernels (first start to last end, per device)."
        ),
    ] = "step",
    start_ns: Annotated[
        int | None, typer.Option(help="Start of your own window, in ns on the clock of each rank.")
    ] = None,
    end_ns: Annotated[int | None, typer.Option(help="End of your own window, in ns.")] = None,
    rank: Annotated[int | None, typer.Option(help="Measure only this rank of what the home holds.")] = None,
    dimension: Annotated[
        str | None, typer.Option(help="Show only this dimension of communication, for example tp; all = all together.")
    ] = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    rules: Annotated[
        Path | None, typer.Option(help="TOML file of rules that are tried before the built-in ones.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show computation, communication, and how much of it is hidden, per rank, window and dimension.

    Times are unions, never sums of durations. Of what the home holds, the net saving is shown, too: hidden
    communication less the time that the computation beside it takes longer. hidden_share is hidden / communication;
    hidden_over_min is hidden / min(computation, communication). A rank that was read only in part is marked. The exit
    code is 2 if a rank was not read completely, or nothing can be measured.
    """
    check_window(window, start_ns, end_ns)
    refuse_run(path, home)
    explicit = start_ns is not None or end_ns is not None
    if path is None and rules is not None:
        raise UsageError("--rules is for traces: give their path")
    if path is not None and rank is not None:
        raise UsageError("--rank chooses from what a home holds; name the trace of that rank instead")
    chosen = Chosen(run, iteration)
    lake = Lake(real_path(home))
    gone = {} if path is not None else gone_iterations(lake, run, iteration, "overlap", "traces")
    if path is None:
        rows, found = overlap_of(home, window, start_ns, end_ns, rank, chosen)
    else:
        rows, found = _from_path(path, window, start_ns, end_ns, rules, real_path(home), chosen)
    chosen_ranks = {(one.run, one.iteration): one.chosen or None for one in found}
    rows = [{**row, "chosen": chosen_ranks.get((row["run"], row["iteration"]))} for row in rows]
    rows = of_dimension(rows, dimension)
    if json:
        print_json(rows)
    elif rows:
        name = "overlap in the window" if explicit else _TITLES[window]
        held = lake if path is None else None
        _print(rows, dimension, found, name, partial(_lead, held), partial(_savings, None if explicit else held))
    if path is None:
        printed = "findings" if explicit or dimension is not None else "findings overlap_savings"
        end_stored(lake, found, gone, printed if rows else "")
    end_partial(found)


def _print(
    rows: Sequence[dict[str, Any]],
    dimension: str | None,
    found: Sequence[Completeness],
    name: str,
    lead: Callable[[str, int], Lead | None],
    savings: Callable[[str, int], Sequence[dict[str, Any]]],
) -> None:
    """Print each iteration: what limits it, the mean by dimension, and the ranks, the most exposed first.

    Args:
        found: the iterations. name: what is measured of them. lead: what limits one, where that is known.
        savings: what overlap saves in it.
    """
    groups = {place: list(group) for place, group in groupby(rows, lambda row: (row["run"], row["iteration"]))}
    places = [one for one in found if (one.run, one.iteration) in groups]
    for one, every in each_printed(places, [groups[each.run, each.iteration] for each in places]):
        run, iteration = one.run, one.iteration
        first = lead(run, iteration)
        title = f"{run} · iteration {iteration} · {f'{one.mark} · ' if one.mark else ''}{name}"
        print_limit(title, first, RELATIONS["overlap"])
        if dimension is None:
            _print_dimensions(every)
            print_savings(savings(run, iteration))
        together = [row for row in every if dimension is None and row["dimension"] == ALL_DIMENSIONS]
        _print_ranks(together or every, first.ranks if first is not None else ())


def _print_dimensions(rows: Sequence[dict[str, Any]]) -> None:
    windows, means = dimension_means(rows)
    if not windows:
        print_wrapped(f"{overlap_statement(windows, means)}.", 2, "\n")
        return
    print_columns(
        f"Communication by dimension, mean of {counted(windows, 'window', 'windows')}",
        means,
        ["dimension", "communication_ns", "hidden_ns", "exposed_ns", "hidden_share"],
    )


def _print_ranks(rows: Sequence[dict[str, Any]], first: Sequence[int]) -> None:
    place = {rank: number for number, rank in enumerate(first)}
    devices = {(row["rank"], row["device"]) for row in rows}
    told_apart = {
        "device": len(devices) > len({rank for rank, _ in devices}),
        **{name: len({row[name] for row in rows}) > 1 for name in ("step", "dimension")},
    }
    named = [name for name, wanted in told_apart.items() if wanted]
    print_columns(
        f"Ranks, {'those at fault first, then the most exposed' if first else 'the most exposed first'}",
        [
            {
                **row,
                "rank": f"{row['rank']} (in part)" if row["partial"] else row["rank"],
                "window_ns": row["window_end_ns"] - row["window_start_ns"],
            }
            for row in sorted(rows, key=lambda row: (place.get(row["rank"], len(place)), -row["exposed_ns"]))
        ],
        [
            *("rank", *named, "window_ns", "exposed_ns", "hidden_ns", "communication_ns", "compute_ns", "idle_ns"),
            *("hidden_share", "hidden_over_min"),
        ],
    )


def _lead(lake: Lake | None, run: str, iteration: int) -> Lead | None:
    """What limits the step of a lake's iteration; of a path, without a lake, nothing across ranks is computed."""
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

    return None if lake is None else StoredIteration(lake, run, iteration).lead


def _savings(lake: Lake | None, run: str, iteration: int) -> Sequence[dict[str, Any]]:
    """What overlap saves in a lake's iteration; of a path, ``traceviz kernels`` shows it."""
    return [] if lake is None else lake.rows("overlap_savings", run, iteration).to_pylist()


def _from_path(
    path: Path,
    window: str,
    start_ns: int | None,
    end_ns: int | None,
    rules_file: Path | None,
    home: Path,
    chosen: Chosen,
) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """The rows, and what of the iterations was not read."""
    from traceviz_dag.analyze.overlap import window_overlap
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.completeness import RankFault, ranks_chosen_by_name, read_completeness
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.iteration import rank_traces, read_topology
    from traceviz_dag.pipeline.ranks import (
        classify_trace,
        gpu_step_windows,
        measured_overlap,
        read_events,
        read_fault,
        trace_fault,
    )

    explicit = start_ns is not None or end_ns is not None
    whole = window == "file" or explicit
    rules = load_rules(rules_file)
    rows: list[dict[str, Any]] = []
    spans: list[Span] = []
    # A rank's trace, which may hold several iterations, is classified once.
    of_trace: dict[tuple[Path, str], list[tuple[IterationInputs, RankTrace]]] = {}
    every = inputs_below([path], home=home)
    below = [inputs for inputs in every if chosen.holds(inputs.run, inputs.iteration)]
    topologies = {inputs.key: read_topology(inputs, home=home) for inputs in below}
    faults: dict[str, list[RankFault]] = {inputs.key: [] for inputs in below}
    for inputs in below:
        for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home):
            of_trace.setdefault((trace.path, trace.part), []).append((inputs, trace))
    for places in of_trace.values():
        inputs, first = places[0]
        topology = topologies[inputs.key]
        try:
            events = read_events(first, topology, rules)
        except BadInputError as error:
            for inputs, trace in places:
                faults[inputs.key].append(RankFault(trace.rank, trace.name, str(error), failed=True))
            continue
        classified = classify_trace(events, first.rank, topology, rules)
        for inputs, trace in places[:1] if whole else places:
            # A window that is asked for by its times need not be a training step.
            fault = read_fault(events) if whole else trace_fault(events, classified, trace.step)
            if fault is not None:
                faults[inputs.key].append(RankFault(trace.rank, trace.name, fault, failed=False))
            table: pa.Table
            if whole:
                spans += spans_of(trace.rank, classified.kernels)
                table = window_overlap(classified.kernels, "clip" if explicit else "file", start_ns, end_ns)
            else:
                table = measured_overlap(classified, trace.step, gpu_step_windows(classified, trace.step))
            place = {"run": inputs.run, "iteration": inputs.iteration, "rank": trace.rank}
            rows += [
                {**place, **row, "partial": fault is not None}
                for row in table.to_pylist()
                if whole or row["window_name"] == window
            ]
    if explicit:
        refuse_outside(spans, start_ns, end_ns)
    found = []
    for inputs in below:
        expected = None if ranks_chosen_by_name(inputs, [path]) else topologies[inputs.key].world_size
        found.append(read_completeness(inputs, expected, faults[inputs.key]))
    if not rows and not any(faults.values()):
        refuse_none([(inputs.run, inputs.iteration) for inputs in every], chosen, window)
    return sorted(rows, key=lambda row: (row["run"], row["iteration"], row["rank"])), found
