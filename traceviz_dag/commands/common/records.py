"""Records of pipeline operations as what a command replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from traceviz_dag.errors import IncompleteError, NoEvidenceError

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.records_work import RecordsWork


def work_at(path: Path) -> tuple[RecordsWork, list[str]]:
    """The work of all whole steps in a file of records, and what of it was left out.

    Raises:
        BadInputError: the file or its meta file cannot be read.
        NoEvidenceError: no step has all its operations.
    """
    from traceviz_dag.analyze.causes.records_work import records_work
    from traceviz_dag.read.records.pipeline_records import read_pipeline_records

    records = read_pipeline_records(path)
    with naming(path):
        work = records_work(records)
    return work, [*records.faults, *work.faults]


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
