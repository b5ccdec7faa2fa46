"""Whether an export is finished: nothing is still being written to it."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.errors import BadInputError


def check_finished(path: Path) -> None:
    """See that nothing is being written to a SQLite file.

    Raises:
        BadInputError: SQLite's own file of what is not in it yet is beside it.
    """
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            raise BadInputError(
                path,
                f"it is still being written, or its writer died ({beside.name} is beside it)",
                "wait until nsys export has ended, or export it again",
            )
