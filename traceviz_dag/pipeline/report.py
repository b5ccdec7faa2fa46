"""The report of an iteration, from the lake to a file: ``HOME/reports/RUN/ITERATION.html`` unless a path is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.lake.read_ahead import ReadAhead
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.certainty import stored_verdict
from traceviz_dag.pipeline.completeness import stored_completeness
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.read.events import MISSING
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.report import report_page
from traceviz_dag.system.whole_files import write_atomically
from traceviz_dag.vocabulary import REPORTS_FOLDER


@dataclass(frozen=True, slots=True)
class StoredReportSource(LakeSource):
    """The tables of one iteration in the lake, and answers to queries."""

    def holds(self, table: str) -> bool:
        """Whether a table of the iteration was written, with or without rows."""
        return bool(self.lake.partitions(table, self.run, self.iteration))

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query about the iteration, with ``$run`` and ``$iteration`` bound."""
        return self.lake.query_iteration(sql, run=self.run, iteration=self.iteration)

    def ask_run(self, sql: str) -> pa.Table:
        """The rows of a query about all iterations of the run, with ``$run`` bound."""
        return self.lake.query(sql, {"run": self.run})

    def replays(self) -> Iterator[tuple[int | None, WhatIf]]:
        """The training steps, ready to be replayed: the number of each, None without one.

        Raises:
            NoEvidenceError: nothing can be replayed, with the reason.
        """
        stored = StoredIteration(self.lake, self.run, self.iteration)
        for ranked in ranked_steps(stored, stored.table("collectives"), stored.table("messages")):
            number = None if ranked.number == MISSING else ranked.number
            yield number, ranked.what_if()


def report_path(home: Path, run: str, iteration: int) -> Path:
    """HOME/reports/RUN/ITERATION.html, the run's name escaped as in the lake."""
    return home / REPORTS_FOLDER / escape(run) / f"{iteration}.html"


def write_report(
    lake: Lake,
    run: str,
    iteration: int,
    path: Path | None = None,
    most_kernels: int = MOST_KERNELS,
    against: tuple[str, int] | None = None,
) -> Path:
    """Write the report of an iteration; returns its file.

    Args:
        path: by default where the home keeps reports.
        most_kernels: that its timeline carries.
        against: run and iteration in the same lake to compare with.
    """
    with _source(lake, run, iteration) as source, _source(lake, *against) if against else nullcontext() as other:
        mark = stored_completeness(source.lake, run, iteration).mark
        page = report_page(
            source,
            mark=mark,
            verdict=stored_verdict(source.lake, run, iteration, mark),
            most_kernels=most_kernels,
            against=other,
            against_mark=stored_completeness(lake, *against).mark if against else "",
        )
    path = path or report_path(lake.home, run, iteration)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


@contextmanager
def _source(lake: Lake, run: str, iteration: int) -> Iterator[StoredReportSource]:
    with lake.session(run=run, iteration=iteration) as session:
        held = session.within()
        yield StoredReportSource(held, run, iteration, ReadAhead(held, run, iteration))
