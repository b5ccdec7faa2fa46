"""``traceviz analyze`` and ``traceviz batch``: the whole way from files to tables."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from traceviz_dag.commands.common.across import end_untold
from traceviz_dag.commands.common.failures import end_failed, tell_results
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import home_option, print_json, terminal
from traceviz_dag.commands.common.partial import end_partial, tell_partial
from traceviz_dag.commands.common.summary import iteration_summary, print_summary, print_verdict
from traceviz_dag.errors import IncompleteError, UsageError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.answers.iterations import untold_waits
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.pipeline.completeness import Completeness

RulesOption = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of rules that are tried before the built-in ones, here and in all later runs of this home; "
        "- goes back to the built-in ones. Default: what the home has."
    ),
]
WorkersOption = Annotated[
    int, typer.Option(min=0, help="Number of ranks to analyse at once; 0 = as many as cores and memory allow.")
]
PartialOption = Annotated[
    bool,
    typer.Option(
        "--allow-partial",
        help="Aggregate even if some ranks are unreadable or missing, and count those read in part.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Recompute ranks whose inputs have not changed.")]
PatternOption = Annotated[str | None, typer.Option(help="Analyse only files whose name matches this glob.")]

TablesOption = Annotated[
    bool, typer.Option("--tables", help="Print the measures and tables of each iteration before the verdict.")
]
ReportOption = Annotated[
    bool,
    typer.Option(
        "--report/--no-report",
        envvar="TRACEVIZ_REPORT",
        help="Write the report (HTML) of each run's last iteration, where it is older than the findings.",
    ),
]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="local|ADDRESS|FILE",
        envvar="TRACEVIZ_CLUSTER",
        help="Analyse ranks on workers of Dask: local ones, those of a scheduler, or those that a file describes, also "
        "in a Slurm job. They must see home and traces at the same paths.",
    ),
]

Started = Callable[[IterationInputs, Sequence[int]], None]

_POLL_SECONDS = 0.2


def analyze(
    paths: Annotated[
        list[Path], typer.Argument(help="Run folders, iteration folders or trace files, in any mix; also at s3://.")
    ],
    pattern: PatternOption = None,
    rank: Annotated[int | None, typer.Option(help="Rank of a single file that does not name its rank.")] = None,
    workers: WorkersOption = 0,
    cluster: ClusterOption = None,
    rules: RulesOption = None,
    allow_partial: PartialOption = False,
    force: ForceOption = False,
    tables: TablesOption = False,
    report: ReportOption = True,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Analyse traces and give the verdict: what limits the step, what fixing it would save, and how sure that is.

    Ranks whose inputs have not changed are skipped, so the same command continues after an interruption. If you name
    some ranks of an iteration, those that the home holds already are brought up to date with them. `traceviz dev` shows
    the lineage.

    A file that cannot be read, or only in part, is reported; the other ranks are analysed, and the exit code is 2.
    Measures across ranks leave out ranks read in part, unless --allow-partial counts them. Missing ranks make the
    result partial as well, unless you chose the ranks by naming files, by --pattern, or accept them by --allow-partial.
    The exit code is also 2 where it is not known who waited for whom among ranks that were read, as where traces lost
    1 % or more of their kernels of communication, or where they contradict each other in what they communicate.
    """
    from traceviz_dag.pipeline.analysis import BUILT_IN_RULES, AnalysisSettings, analyse
    from traceviz_dag.pipeline.certainty import stored_lost_kernels
    from traceviz_dag.pipeline.cluster.opening import open_cluster
    from traceviz_dag.pipeline.completeness import ranks_chosen_by_name, stored_completeness
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.workers import prepare_workers

    folder = real_path(home)
    prepare = None if cluster else partial(prepare_workers, workers=workers or None)
    inputs = inputs_below(paths, pattern=pattern, rank=rank, home=folder, with_known=True, prepare=prepare)
    settings = AnalysisSettings(
        home=folder,
        workers=workers,
        rules=real_path(rules) if rules not in (None, BUILT_IN_RULES) else rules,
        allow_partial=allow_partial,
        with_partial=allow_partial,
        force=force,
    )
    console = terminal(stderr=True)

    def tell(line: str) -> None:
        console.print(f"traceviz: {line}", soft_wrap=True, highlight=False, markup=False)

    found: list[Completeness] = []
    summaries: list[dict[str, Any]] = []
    reports: dict[tuple[str, int], str] = {}
    with ExitStack() as last:
        with open_cluster(cluster, folder, workers, tell) as engine, _progress(console, folder) as started:
            results = analyse(replace(settings, engine=engine), inputs, started, last)
        warn = partial(console.print, style="yellow", soft_wrap=True, highlight=False, markup=False)
        tell_results(inputs, results, warn)
        lake = open_lake(folder)
        # The last one first: its report is written while its tables are at hand.
        for entry, result in zip(reversed(inputs), reversed(results), strict=True):
            with (result.lake or lake).session(run=entry.run, iteration=entry.iteration) as session:
                held = session.within()
                found.insert(0, stored_completeness(held, entry.run, entry.iteration, entry))
                summaries.insert(0, iteration_summary(held, result, found[0]))
                if report and summaries[0]["verdict"] and entry.run not in {run for run, _ in reports}:
                    reports[entry.run, entry.iteration] = _written_report(held, entry.run, entry.iteration)
    if json:
        print_json([{**each, "report": reports.get((each["run"], each["iteration"]))} for each in summaries])
    else:
        _print(summaries, reports, home, tables=tables)
    chosen = allow_partial or pattern is not None
    meant = [
        replace(one, missing=()) if chosen or ranks_chosen_by_name(entry, paths) else one
        for entry, one in zip(inputs, found, strict=True)
    ]
    if any(result.failures for result in results):
        tell_partial(meant)
    end_failed(results)
    end_partial(meant)
    untold = []
    for one in summaries:
        lost = stored_lost_kernels(lake, one["run"], one["iteration"])
        why = one["waits_unknown"] or (None if lost is None else asdict(lost))
        untold.append(untold_waits(one["run"], one["iteration"], why))
    end_untold(untold)


def _written_report(lake: Lake, run: str, iteration: int) -> str:
    """The file of an iteration's report, which is written unless it is there and newer than the findings."""
    from traceviz_dag.pipeline.report import report_path, write_report

    path = report_path(lake.home, run, iteration)
    made = lake.path("findings", run=run, iteration=iteration).stat().st_mtime_ns
    if not path.exists() or path.stat().st_mtime_ns < made:
        write_report(lake, run, iteration)
    return str(path)


def _print(
    summaries: Sequence[dict[str, Any]], reports: Mapping[tuple[str, int], str], home: Path, *, tables: bool
) -> None:
    """Print each run's verdict for people; before it, where there is none or it is asked for, what was measured."""
    for summary in summaries:
        if tables or summary["verdict"] is None:
            print_summary(summary, tables=tables and summary is summaries[-1])
    runs = {part.run for part in open_lake(real_path(home)).partitions("topology")}
    for run in dict.fromkeys(summary["run"] for summary in summaries):
        mine = [summary for summary in summaries if summary["run"] == run]
        judged = [summary["iteration"] for summary in mine if summary["verdict"] is not None]
        if not judged:
            continue
        which = f" --run {shlex.quote(run)}" if runs != {run} else ""
        which += f" --iteration {judged[-1]}" if len(judged) > 1 else ""
        where = "" if home == DEFAULT_HOME else f" {home_option(home)}"
        after = [f"Next: traceviz findings{where}{which}"]
        after += [f"Report: {path}" for path in [reports.get((run, judged[-1]))] if path is not None]
        print_verdict(mine, after)


def batch(
    folders: Annotated[
        list[Path],
        typer.Option("--folders", help="Folder of traces; repeat the option for more, or list folders after --."),
    ] = [],  # noqa: B006
    paths: Annotated[list[Path] | None, typer.Argument(help="More folders or files.")] = None,
    inputs: Annotated[
        list[Path], typer.Option("--input", help="As --folders: TraceViz's other programs call it --input.")
    ] = [],  # noqa: B006
    base_folder: Annotated[Path | None, typer.Option(help="Run folder that holds the --iterations.")] = None,
    iterations: Annotated[
        str | None, typer.Option(help="Iteration numbers in --base-folder, separated by commas.")
    ] = None,
    pattern: PatternOption = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            "--workers",
            min=0,
            help="Number of ranks to analyse at once; 0 = as many as cores and memory allow.",
        ),
    ] = 0,
    traceviz: Annotated[
        Path | None,
        typer.Option(help="Folder to write iteration_N/<trace>_kernel_analysis to, as TraceViz's batch analyzer does."),
    ] = None,
    rules: RulesOption = None,
    allow_partial: PartialOption = False,
    force: ForceOption = False,
    tables: TablesOption = False,
    report: ReportOption = True,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Analyse many folders at once, with the options of TraceViz's batch analyzer."""
    chosen = [*folders, *inputs, *(paths or [])]
    if iterations is not None:
        if base_folder is None:
            raise UsageError("--iterations needs --base-folder, the run that holds the iteration folders")
        chosen += [base_folder / f"iteration_{_number(text)}" for text in iterations.split(",")]
    elif base_folder is not None:
        chosen.append(base_folder)
    if not chosen:
        raise UsageError("no folder given; name one, or use --folders or --base-folder")
    try:
        analyze(
            chosen,
            pattern=pattern,
            workers=processes,
            rules=rules,
            allow_partial=allow_partial,
            force=force,
            tables=tables,
            report=report,
            home=home,
            json=json,
        )
    except IncompleteError:
        _write_kernel_analyses(chosen, pattern, real_path(home), traceviz, processes)
        raise
    _write_kernel_analyses(chosen, pattern, real_path(home), traceviz, processes)


def _write_kernel_analyses(
    paths: Sequence[Path], pattern: str | None, home: Path, folder: Path | None, processes: int
) -> None:
    """Write the folders of all readable ranks below the paths; does nothing without a folder."""
    if folder is None:
        return
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.pipeline.engines import default_workers
    from traceviz_dag.pipeline.traceviz_export import Export, export_ranks

    for inputs in inputs_below(paths, pattern=pattern, home=home):
        export = Export(home, inputs.run, inputs.iteration, real_path(folder) / f"iteration_{inputs.iteration}")
        written = sum(1 for _ in export_ranks(export, processes or default_workers()))
        typer.echo(f"written: {written} ranks in {export.folder}", err=True)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} in --iterations is not a number") from None


@contextmanager
def _progress(console: Console, home: Path) -> Iterator[Started]:
    """A bar an iteration that fills as ranks appear in the lake; the lake is watched, not the step that writes it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ranks"),
        TimeElapsedColumn(),
    )
    stop = threading.Event()
    watched: list[tuple[TaskID, IterationInputs, set[int], float]] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def started(inputs: IterationInputs, ranks: Sequence[int]) -> None:
            task = progress.add_task(inputs.key, total=len(ranks))
            watched.append((task, inputs, set(ranks), time.time()))

        def watch() -> None:
            lake = Lake(home)
            while not stop.wait(_POLL_SECONDS):
                for task, inputs, ranks, since in tuple(watched):
                    progress.update(task, completed=_written(lake, inputs, ranks, since))

        watcher = threading.Thread(target=watch, daemon=True)
        if console.is_terminal:
            watcher.start()
        try:
            yield started
        finally:
            stop.set()
            if watcher.is_alive():
                watcher.join()
            for task, _, ranks, _ in watched:
                progress.update(task, completed=len(ranks))


def _written(lake: Lake, inputs: IterationInputs, ranks: set[int], since: float) -> int:
    """How many of the ranks have a row in ``traces`` that is newer than ``since`` (seconds since the epoch)."""
    count = 0
    for rank in ranks:
        path = lake.path("traces", run=inputs.run, iteration=inputs.iteration, rank=rank)
        with suppress(FileNotFoundError):
            count += path.stat().st_mtime >= since
    return count
