"""``traceviz aggregate``: TraceViz's third program; its options, its folders and file names, our classification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, terminal
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.shown import AlignmentOption, ProcessesOption, completeness_of, iterations_of
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import TimeAlignment


def aggregate(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Folders to aggregate; after --iterations, more iteration names."),
    ] = None,
    input_: Annotated[Path | None, typer.Option("--input", "-i", help="Iteration folder.")] = None,
    base_folder: Annotated[Path | None, typer.Option(help="Run folder that holds the --iterations.")] = None,
    iterations: Annotated[
        list[str] | None, typer.Option(help="Names or numbers of iterations in --base-folder.")
    ] = None,
    time_alignment: AlignmentOption = TimeAlignment.GLOBAL,
    processes: ProcessesOption = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to; default: HOME/traceviz/RUN, never beside the traces.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Write the files that TraceViz's analyzers and its aggregator write, under the same names.

    Each rank gets <trace>_kernel_analysis with nine Parquet tables, two CSV tables and two pictures; PP_group_X and
    Model_Group_X hold timelines of pipelines and models. New or changed traces are analysed first. Without folders,
    every iteration of the home is written.
    """
    from traceviz_dag.pipeline.engines import default_workers
    from traceviz_dag.pipeline.traceviz_export import Export, export_folder, export_groups, export_ranks

    folders = _folders(names or [], input_, base_folder, iterations)
    with iterations_of(real_path(home), folders, None, None) as chosen:
        written = []
        console = terminal(stderr=True)
        for source in chosen:
            folder = export_folder(real_path(home), source.run, source.iteration)
            if output is not None:
                folder = real_path(output) / folder.name
            export = Export(real_path(home), source.run, source.iteration, folder)
            ranks = list(export_ranks(export, processes or default_workers()))
            pictures = list(export_groups(export, time_alignment))
            console.print(
                f"{source.run}, iteration {source.iteration}: {len(ranks)} ranks, "
                f"{len(pictures)} timelines in {folder}",
                highlight=False,
                soft_wrap=True,
            )
            written.append(
                {
                    "run": source.run,
                    "iteration": source.iteration,
                    "folder": str(folder),
                    "ranks": [str(path) for path in ranks],
                    "timelines": [str(path) for path in pictures],
                }
            )
        if json:
            print_json(written)
        end_partial(completeness_of(chosen, folders))


def _folders(
    names: Sequence[str], input_: Path | None, base_folder: Path | None, iterations: Sequence[str] | None
) -> list[Path]:
    """The folders that the options name; TraceViz's own spelling of several iterations is understood."""
    if iterations is None:
        chosen = [Path(name) for name in names] + [path for path in (input_, base_folder) if path is not None]
        missing = [path for path in chosen if not path.exists()]
        if missing:
            raise BadInputError(missing[0], "does not exist", "name a folder of traces")
        return chosen
    if base_folder is None:
        raise UsageError("--iterations needs --base-folder, the run that holds the iteration folders")
    words = [word for text in (*iterations, *names) for part in text.split(",") if (word := part.strip())]
    return [*([] if input_ is None else [input_]), *(_iteration_folder(base_folder, word) for word in words)]


def _iteration_folder(base_folder: Path, word: str) -> Path:
    for name in (word, f"iteration_{word}"):
        if (base_folder / name).is_dir():
            return base_folder / name
    raise BadInputError(base_folder, f"has no iteration {word}", "give the name of one of its folders, or its number")
