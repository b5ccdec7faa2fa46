"""The report of each small job, written once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.commands.jobs import home_of
from tests.made_once import made_once
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.report import write_report


@cache
def pages_of(job: str) -> list[Path]:
    """The page of each iteration of a job, in order."""
    folder = made_once(f"pages_{job}", lambda folder: _write(job, folder))
    return sorted(folder.iterdir(), key=lambda page: int(page.stem))


def _write(job: str, folder: Path) -> None:
    lake = open_lake(home_of(job))
    for part in lake.partitions("topology"):
        write_report(lake, part.run, part.iteration, folder / f"{part.iteration}.html")


def text_of(job: str) -> str:
    """The page of a job of one iteration."""
    (page,) = pages_of(job)
    return page.read_text()
