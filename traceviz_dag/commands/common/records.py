"""Records of pipeline operations as what a command replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.spans import unspanned

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.analyze.causes.records_work import RecordsWork


StepsOption = Annotated[
    str | None, typer.Option("--steps", help="Take only these steps of the records, such as 4-15; needs --records.")
]


def work_at(path: Path, steps: str | None = None) -> tuple[RecordsWork, list[str]]:
    """The work of all whole steps in a file of records, or a folder of Primus' dumps, and what of it was left out.

    Args:
        steps: the only ones to take, such as 4-15; None: all.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        UsageError: there are no such steps.
        NoEvidenceError: no step has all its operations.
    """
    from traceviz_dag.analyze.causes.records_work import records_work
    from traceviz_dag.read.records.pipeline_records import read_pipeline_records
    from traceviz_dag.read.records.primus_records import read_primus_records

    records = read_primus_records(path) if path.is_dir() else read_pipeline_records(path)
    if steps is not None:
        records = replace(records, rows=_of_steps(records.rows, steps))
    with naming(path):
        work = records_work(records)
    return work, [*records.faults, *work.faults]


def _of_steps(rows: pa.Table, steps: str) -> pa.Table:
    try:
        wanted = unspanned(steps)
    except ValueError as error:
        raise UsageError(f"--steps {steps}: name steps, as in 4-15") from error
    found = rows.filter(np.isin(rows["step"].to_numpy(), wanted))
    if not found.num_rows:
        raise UsageError(f"--steps {steps}: the records have no such step")
    return found


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let what the records do not show name their file and what to do.

    Raises:
        NoEvidenceError: as it was raised inside, with both.
    """
    try:
        yield
    except NoEvidenceError as error:
        raise NoEvidenceError(f"{path}: {error}; name records of whole steps of all ranks") from None


def titled(path: Path, faults: Sequence[str], text: str) -> str:
    """The first line about records: their file, whether something was left out, and a text."""
    return f"\n{path.name} · {'PARTIAL · ' * bool(faults)}{text}"


def end_of_records(faults: Sequence[str]) -> None:
    """End an answer about records.

    Raises:
        IncompleteError: something was left out.
    """
    if faults:
        raise IncompleteError("; ".join(faults))
