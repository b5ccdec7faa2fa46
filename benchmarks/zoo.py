"""Real traces, each taken the whole way: what is read, classified, matched and found, and what it costs.

    python benchmarks/zoo.py FOLDER [FOLDER ...] [--write]

Traces that lie in one folder are one job; where they contradict each other, each is a job of its own, and one that
states no rank is rank 0. Every job is analysed by ``traceviz analyze`` in a process and a home of its own. Seconds are
of the processor, peak memory is of the largest process. Shares are of kernel time, matches of communication kernels.
``--write`` replaces the section of docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy_page import write_real_traces

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.formats import all_suffixes

COLUMNS = ("trace", "ranks", "read", "classified", "matched", "findings", "seconds", "MB")
_LINE = "{:46} {:>5} {:>9} {:>10} {:>13} {:>8} {:>7} {:>6}"
_ANALYZE = "from traceviz_dag.commands.main import main; main()"
_TEXT = """\
`python benchmarks/zoo.py FOLDER [FOLDER ...] --write` analyzes traces that others recorded. *Classified* is a share of
kernel time, *matched* counts communication kernels. Most of these traces have no truth. These are verified
independently:

- megatron_tp8_a100 (PeisongZhang/astra-sim): every wait, every last rank and all forward computation, to the
  microsecond, against a separate count (`tests/analyze/waits/megatron_tp8.py`); both late ranks are named.
- dlrm8 (facebookresearch/param): waits and transfers are those published (`tests/analyze/waits/test_collectives.py`).
- hta (facebookresearch/HolisticTraceAnalysis), tracelens (AMD-AGI/TraceLens): overlap equals the known values of both
  tools (`tests/end_to_end/test_real_traces.py`).
- hta: operations are those of the annotations around launches. Nothing shows which kernels of its 2 ranks of 128 met,
  so none is matched (`tests/analyze/matching/test_unnamed_groups.py`).
- pp2_dp2_distopt_overlap and the three below it: Megatron's own schedules, run without a GPU. Their GPU rows come from
  a model, and every kernel is compared with it (`tests/classify/test_ground_truth.py`).

On a real GPU, pipelines, data and tensor parallelism were tried [in one small model](#predicted-gains-on-a-real-gpu);
FSDP and ZeRO are verified on simulated GPU rows alone. The PyTorch profiler's traces of AMD GPUs are read, such as the
two of tracelens. rocprofv3's JSON is not: no such trace was available to verify a reader.
"""
_READ_SQL = """
SELECT count(DISTINCT rank) AS ranks, count(*) FILTER (status = 'read') AS whole, count(*) AS files,
    sum(classified_ns) / sum(kernel_ns) AS classified
FROM traces
"""
_MATCHED_SQL = """
SELECT count(*) AS rows, count(*) FILTER (communication IS NOT NULL AND members_found > 1) AS matched FROM collectives
"""
_FOUND_SQL = "SELECT count(*) AS found FROM findings WHERE severity = 'finding'"


@dataclass(frozen=True)
class Job:
    """What is analysed together; ``alone`` where a file has to be given its rank."""

    path: Path
    name: str
    alone: bool = False


def jobs_below(root: Path) -> Iterator[Job]:
    """The jobs below a folder, by path."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name.lower().endswith(all_suffixes()):
            folders[path.parent].append(path)
    for folder, files in folders.items():
        try:
            together = not any(
                each.problems or each.disputed or any(rank.refusal for rank in each.ranks)
                for each in inputs_below([folder])
            )
        except BadInputError:
            together = False
        if together:
            yield Job(folder, str(folder.relative_to(root)))
            continue
        for file in files:
            try:
                inputs_below([file])
                yield Job(file, str(file.relative_to(root)))
            except BadInputError:
                yield Job(file, str(file.relative_to(root)), alone=True)


def measure(job: Job, home: Path) -> tuple[object, ...]:
    """Analyse one job and ask its tables."""
    command = [sys.executable, "-c", _ANALYZE, "analyze", str(job.path), "--home", str(home)]
    process = subprocess.Popen(
        [*command, *(["--rank", "0"] if job.alone else [])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cost = (f"{used.ru_utime + used.ru_stime:.1f}", f"{used.ru_maxrss / 1024:.0f}")
    lake = open_lake(home)
    if not lake.partitions("traces"):
        return (job.name, 0, "no", "-", "-", "-", *cost)
    told = lake.query(_READ_SQL).to_pylist()[0]
    classified = "-" if told["classified"] is None else f"{100 * told['classified']:.2f} %"
    read = f"{told['whole']} of {told['files']}"
    return (job.name, told["ranks"], read, classified, _matched(lake), _found(lake), *cost)


def _matched(lake: Lake) -> str:
    if not lake.partitions("collectives"):
        return "-"
    row = lake.query(_MATCHED_SQL).to_pylist()[0]
    return f"{row['matched']} of {row['rows']}"


def _found(lake: Lake) -> str:
    return str(lake.query(_FOUND_SQL).to_pylist()[0]["found"]) if lake.partitions("findings") else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="write the section of docs/accuracy.md, too")
    options = parser.parse_args(arguments)
    rows: list[tuple[object, ...]] = []
    print(_LINE.format(*COLUMNS))
    for root in options.folders:
        for job in jobs_below(root):
            with tempfile.TemporaryDirectory(prefix="zoo-") as home:
                rows.append(measure(job, Path(home)))
            print(_LINE.format(*map(str, rows[-1])), flush=True)
    if options.write:
        write_real_traces(section(rows))


def section(rows: Sequence[tuple[object, ...]]) -> str:
    """The section of docs/accuracy.md; what the jobs cost is no part of it."""
    table = [COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 1)), *rows]
    return "\n".join([_TEXT, *(f"| {' | '.join(map(str, row[:-2]))} |" for row in table)])


if __name__ == "__main__":
    main()
