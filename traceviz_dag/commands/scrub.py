"""``traceviz scrub``: traces that a site may give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze.wording import counted
from traceviz_dag.commands.common.output import print_wrapped
from traceviz_dag.errors import IncompleteError


def scrub(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A trace, an export, a snapshot of GPU memory, or a folder of them.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is not there yet.")],
) -> None:
    """Write traces again without names, paths, arguments and texts of your site; their analysis has the same numbers.

    It takes PyTorch traces, topology files, Nsight Systems exports in SQLite and snapshots of GPU memory.

    Times, sizes, shapes and identifiers stay, and so do names of public libraries. In all other names, words by which
    traces are classified stay (attention, forward, layer); every other word becomes a made-up one, the same in all
    files. Nothing keeps which word was which. Read the result before you give it away. The exit code is 2 where a file
    was left out.
    """
    from traceviz_dag.pipeline.scrub.folder import scrub as scrub_folder

    found = scrub_folder(source, target, lambda path: typer.echo(f"written: {path}"))
    print_wrapped(
        f"{counted(len(found.written), 'file', 'files')}; {counted(found.words, 'word', 'words')} replaced", 2, "  "
    )
    if found.left_out:
        for line in found.left_out:
            print_wrapped(line, 4, "  left out: ")
        raise IncompleteError(f"{counted(len(found.left_out), 'file was', 'files were')} left out")
