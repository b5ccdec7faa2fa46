"""What workers of a cluster do in tests, in the place of analysing a rank; each leaves a mark in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.workers import RankOutcome
from traceviz_dag.read.stated_bounds import ROWS


def traces(folder: Path, ranks: int) -> list[RankTrace]:
    """Files that are there, and that nobody reads."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        (folder / f"{rank}.json").touch()
    return [RankTrace(folder / f"{rank}.json", f"{rank}.json", rank) for rank in range(ranks)]


def double(trace: RankTrace, _marks: Path) -> RankOutcome:
    """The rank's number, twice."""
    return RankOutcome(trace.rank, {}, {"double": 2 * trace.rank})


def die_or_double(trace: RankTrace, marks: Path) -> RankOutcome:
    """Rank 2 kills its worker the first time; rank 3 always does."""
    if trace.rank == 3 or (trace.rank == 2 and not (marks / "2").exists()):
        (marks / str(trace.rank)).open("a").write("died\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return double(trace, marks)


def die_with_its_task(trace: RankTrace, marks: Path) -> RankOutcome:
    """Rank 0 has Slurm cancel its task of a job array the first time; rank 1 always does."""
    if trace.rank == 1 or (trace.rank == 0 and not (marks / "0").exists()):
        (marks / str(trace.rank)).open("a").write("died\n")
        task = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        subprocess.run(["scancel", task], check=True)
        time.sleep(60)
    return double(trace, marks)


def take_a_while(trace: RankTrace, marks: Path) -> RankOutcome:
    """Says that it began, and ends after some seconds."""
    (marks / f"{trace.rank}.began").touch()
    time.sleep(4)
    (marks / f"{trace.rank}.ended").touch()
    return double(trace, marks)


def complain_about_the_first(trace: RankTrace, marks: Path) -> RankOutcome:
    """An error from rank 0; others take a moment and leave a mark."""
    if trace.rank == 0:
        raise OSError(28, "No space left on device", str(marks))
    time.sleep(0.5)
    (marks / str(trace.rank)).touch()
    return double(trace, marks)


def sleep_long(trace: RankTrace, marks: Path) -> RankOutcome:
    """Says that it began, and ends after a minute."""
    (marks / f"{trace.rank}.{os.getpid()}.began").touch()
    time.sleep(60)
    (marks / f"{trace.rank}.ended").touch()
    return double(trace, marks)


def wait_for_death(trace: RankTrace, marks: Path) -> RankOutcome:
    """Rank 0 waits for somebody to kill its worker the first time, and says which that is."""
    if trace.rank == 0 and not list(marks.glob("0.*.began")):
        (marks / f"0.{os.getpid()}.began").touch()
        time.sleep(60)
    return double(trace, marks)


def stated_rows(trace: RankTrace, _marks: Path) -> RankOutcome:
    """The bound of rows that is stated in the worker."""
    return RankOutcome(trace.rank, {}, {"rows": ROWS.stated()})
