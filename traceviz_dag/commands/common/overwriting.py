"""Refuses to write an answer over what the command reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from traceviz_dag.errors import UsageError
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from traceviz_dag.pipeline.lake_source import LakeSource


def check_output(output: Path, *read: Path, option: str = "--output", what: str = "the profile") -> None:
    """Refuse to write over what is read.

    Raises:
        UsageError: the file to write is one of those that are read, or in one that is a folder.
    """
    written = real_path(output)
    for path in read:
        same = output.exists() and path.exists() and output.samefile(path)
        if same or real_path(path) in (written, *written.parents):
            raise UsageError(f"{option} {output} would write over {what}; give the name of a new file")


def check_output_of(output: Path, sources: Iterable[LakeSource]) -> None:
    """Refuse to write over a trace, snapshot or topology file of the iterations that are shown.

    Raises:
        UsageError: the file to write is one of these.
    """
    from traceviz_dag.lake.inputs import registered_if_any
    from traceviz_dag.lake.partition_keys import iteration_key

    for source in sources:
        inputs = registered_if_any(source.lake.home, iteration_key(source.run, source.iteration))
        if inputs is not None:
            files = [Path(entry.path) for entry in inputs.files]
            files += [Path(inputs.topology_file)] if inputs.topology_file else []
            check_output(output, *files, option="--out", what="a file of this iteration")
