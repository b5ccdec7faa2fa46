"""``traceviz classify``: one trace, or one rank of a profile, to classified kernels; nothing of it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.commands.common.overwriting import check_output
from traceviz_dag.errors import IncompleteError, UsageError
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import whole_file

if TYPE_CHECKING:
    from traceviz_dag.pipeline.formats.trace_format import RankTrace
    from traceviz_dag.read.events import TraceEvents


_ENGINES = ("own", "perfetto")


def classify(
    path: Annotated[Path | None, typer.Argument(help="Trace file or Nsight Systems profile.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="The trace file, as TraceViz's core analyzer takes it.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the kernels to this .parquet, .csv or .json file.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of a file that does not name its rank; in a profile, the rank to classify.")
    ] = None,
    traceviz: Annotated[
        Path | None,
        typer.Option(help="Folder to write <trace>_kernel_analysis to, as TraceViz's core analyzer does."),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(help="TOML file of rules that are tried before the built-in ones.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Reader to use: own, or perfetto (its trace processor and PerfettoSQL).")
    ] = "own",
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Classify the kernels of one trace by phase, dimension, category and micro-batch, each with its evidence.

    Process groups come from the headers of the file and of its neighbours. If an Nsight Systems profile holds several
    ranks, --rank chooses one; the home keeps what was read of the profile for the next command. A trace that was read
    only in part is marked, and the exit code is 2.
    """
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.formats.registry import format_of_file
    from traceviz_dag.pipeline.iteration import rank_traces, read_topology
    from traceviz_dag.pipeline.ranks import classify_trace, read_events, trace_fault
    from traceviz_dag.read.formats import format_of

    if engine not in _ENGINES:
        raise UsageError(f"no reader {engine!r}; there are {', '.join(_ENGINES)}")
    trace_path = path or input_
    if trace_path is None or (path is not None and input_ is not None):
        raise UsageError("give one trace file, as an argument or with --input")
    if output is not None:
        check_output(output, trace_path, what="the trace")
    if trace_path.is_dir() and format_of(trace_path) is None:
        raise UsageError(f"{trace_path} is a folder; use traceviz analyze for many files")
    one = format_of_file(trace_path)
    if (engine == "perfetto" and not one.perfetto_imports) or (traceviz is not None and one.several_ranks):
        raise UsageError(
            f"--engine perfetto and --traceviz are for PyTorch traces, not {one.title}; analyze takes those the whole "
            "way"
        )
    inputs = inputs_below([trace_path], rank=rank, home=real_path(home))[0]
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks}, real_path(home))
    trace = _chosen(traces, rank if len(traces) > 1 else None)
    topology, table = read_topology(inputs, home=real_path(home)), load_rules(rules)
    events = _by_perfetto(trace.path) if engine == "perfetto" else read_events(trace, topology, table)
    classified = classify_trace(events, trace.rank, topology, table)
    kernels = classified.kernels
    if output is not None:
        _write(kernels, output)
    if traceviz is not None:
        _write_kernel_analysis(trace_path, rank, rules, traceviz, real_path(home))
    rows, fault = _by_category(kernels), trace_fault(events, classified, None)
    if json:
        answer = {"file": trace.name, "rank": trace.rank, "partial": fault is not None, "fault": fault}
        print_json({**answer, "categories": rows})
    else:
        _print(trace, kernels.num_rows, rows, partial=fault is not None)
    if fault is not None:
        raise IncompleteError(f"rank {trace.rank} is read in part, {trace.path}: {fault}")


def _print(trace: RankTrace, kernels: int, rows: Sequence[dict[str, Any]], *, partial: bool) -> None:
    mark = ", PARTIAL: read in part" if partial else ""
    print_columns(
        f"{trace.name}, rank {trace.rank}{mark}: {kernels} kernels and memory operations",
        rows,
        ["category", "phase_evidence", "dimension_evidence", ("kernels", "operations"), "time_ns", "share"],
    )


def _chosen(traces: Sequence[RankTrace], rank: int | None) -> RankTrace:
    """The trace of a rank; without one the first, which is said where there are others."""
    ranks = [trace.rank for trace in traces]
    if rank is None:
        if len(traces) > 1:
            typer.echo(f"traceviz: ranks {ranks[0]} to {ranks[-1]} are in it; --rank chooses another", err=True)
        return traces[0]
    for trace in traces:
        if trace.rank == rank:
            return trace
    raise UsageError(f"no rank {rank} in {traces[0].path}; there are {', '.join(map(str, ranks))}")


def _write_kernel_analysis(path: Path, rank: int | None, rules: Path | None, folder: Path, home: Path) -> None:
    """Its pictures show micro-batches and overlap, so the file goes the whole way, into a lake that is not kept."""
    from traceviz_dag.pipeline.stored_iteration import iterations_at
    from traceviz_dag.pipeline.traceviz_export import Export, export_ranks

    with iterations_at(path, home, rules, rank) as analysed:
        for each in analysed[:1]:
            for written in export_ranks(Export(each.lake.home, each.run, each.iteration, folder)):
                typer.echo(f"written: {written}", err=True)


def _by_perfetto(path: Path) -> TraceEvents:
    from traceviz_dag.read.perfetto.reader import read_with_perfetto

    events = read_with_perfetto(path)
    for name, count in events.report.dropped.items():
        typer.echo(f"traceviz: Perfetto's importer lost something: {name}: {count}", err=True)
    return events


def _by_category(kernels: pa.Table) -> list[dict[str, Any]]:
    keys = ["category", "phase_evidence", "dimension_evidence"]
    plain = pa.table({name: kernels[name].cast(pa.string()) for name in keys} | {"duration_ns": kernels["duration_ns"]})
    grouped = plain.group_by(keys).aggregate([("duration_ns", "count"), ("duration_ns", "sum")])
    total = pc.sum(kernels["duration_ns"]).as_py() or 0
    rows = [
        {
            **{name: row[name] for name in keys},
            "kernels": row["duration_ns_count"],
            "time_ns": row["duration_ns_sum"],
            "share": row["duration_ns_sum"] / total if total else None,
        }
        for row in grouped.to_pylist()
    ]
    return sorted(rows, key=lambda row: -row["time_ns"])


def _without_lists(table: pa.Table) -> pa.Table:
    """The same with lists as texts, their values separated by spaces, as CSV has no lists."""
    columns = [
        pa.array([value and " ".join(map(str, value)) for value in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, table.column_names)


def _write(kernels: pa.Table, output: Path) -> None:
    plain = pa.table(
        {
            name: column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
            for name, column in zip(kernels.column_names, kernels.columns, strict=True)
        }
    )
    if output.suffix not in {".parquet", ".csv", ".json"}:
        raise UsageError(f"{output}: no format {output.suffix!r}; name the file .parquet, .csv or .json")
    with whole_file(real_path(output)) as file:
        if output.suffix == ".parquet":
            pyarrow.parquet.write_table(kernels, file, compression="zstd")
        elif output.suffix == ".csv":
            pyarrow.csv.write_csv(_without_lists(plain), file)
        else:
            import msgspec

            file.write(msgspec.json.encode(plain.to_pylist()))
