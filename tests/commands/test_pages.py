"""The commands that the pages show do what the pages say, on a small job in the place of the reader's."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.analyze.across_ranks import SMALL
from tests.damage import call
from tests.sets import fast
from tests.show.home import fill_home
from tests.snapshot_file import write_snapshot
from tests.test_docs import PAGES, REPOSITORY
from traceviz_dag.lake.lake import Lake
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LEFT_OUT = {
    # tests/end_to_end/test_main_job.py::test_the_demo_says_what_it_found runs it.
    "traceviz demo": "takes a job of 16 ranks the whole way",
    # tests/read/hub and tests/assets/test_nsys_download.py download from a server of their own.
    "traceviz nsys download": "needs internet",
    # tests/commands/nsys reads files as CUTracer writes them.
    "traceviz nsys instructions": "needs what CUTracer counted on a GPU",
    # tests/commands/test_causes_handbook.py runs it where the records are.
    "traceviz what-if --records": "needs the records of a real job",
    "traceviz advise --records": "needs the records of a real job",
    # tests/show/perfetto/test_ui.py and tests/end_to_end/test_perfetto_ui.py run it.
    "traceviz perfetto open": "serves until Ctrl-C",
    # tests/commands/memory/test_memory.py runs them.
    "traceviz memory diff before after ": "needs two runs with snapshots of GPU memory",
    "traceviz memory diff before@100": "needs two runs with snapshots of GPU memory",
    # tests/end_to_end/test_slurm.py and tests/pipeline/cluster/test_scheduler.py run them.
    "traceviz analyze /traces/job-7 --home /shared/home --cluster": "needs Slurm, or a scheduler of Dask",
    # tests/storage runs them.
    "traceviz analyze s3://": "needs a store of objects",
    "traceviz findings --home s3://": "needs a store of objects",
    # tests/end_to_end/test_serve.py runs it.
    "traceviz serve": "serves until Ctrl-C",
    # tests/commands/mcp/test_mcp.py asks it.
    "traceviz mcp": "serves until its client is gone",
    # tests/commands/test_screens_and_servers.py and tests/end_to_end/test_live_page.py open their pages.
    "traceviz timeline --web": "serves until Ctrl-C",
    "traceviz nsys timeline-web": "serves until Ctrl-C",
    "traceviz nsys web": "serves until Ctrl-C",
    # tests/commands/test_screens_and_servers.py opens them, tests/show/terminal drives them.
    "traceviz top": "draws on a terminal",
    "traceviz timeline": "draws on a terminal",
    "traceviz nsys timeline": "draws on a terminal",
    "traceviz nsys tui": "draws on a terminal",
}
"""Beginnings of commands that no test here runs, and why."""

OF_PERFETTO = ("traceviz perfetto query", "traceviz perfetto compare", "traceviz classify rank0.json.gz --engine")
"""Beginnings of commands that need a trace processor."""

THROUGH_DAGSTER = ("README.md", "analyze.md", "memory.md")
"""Pages whose ``analyze`` runs as a user's does; in those of other commands it only fills the home."""

AS_IT_IS = ("tutorial.md",)
"""Pages whose simulated job has the ranks and steps that the page says."""


_JOB = JobSettings(tp=2, pp=2, microbatches=2, first_iteration=120, **{**SMALL, "layers": 4})


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    """A folder in the place of /traces, /profiles and /tmp: run job-7 with iteration 120, and a home that holds it."""
    folder = tmp_path_factory.mktemp("places")
    simulate(_JOB, folder / "traces/job-7", workers=1)
    for number, name in enumerate(("snapshot", "before", "after")):
        write_snapshot(folder / f"{name}.pickle", leak_bytes=number << 20)
    fill_home(folder / "home", [folder / "traces/job-7"])
    return folder


def _fill(places: Path, page: Path) -> None:
    """Make what few pages speak of: another run, analysed into the home, and one of Nsight Systems."""
    text, other, profiled = page.read_text(encoding="utf-8"), places / "traces/job-6", places / "profiles/job-7"
    if "job-6" in text:
        if not other.exists():
            simulate(_JOB, other, workers=1)
        assert call("analyze", other).code == 0
    if "nightly-31" in text:
        for night in (places / f"traces/nightly-{night}" for night in (31, 33)):
            shutil.copytree(places / "traces/job-7", night, dirs_exist_ok=True)
            assert call("analyze", night).code == 0
    if ("/profiles/" in text or "node0.sqlite" in text) and not profiled.exists():
        simulate(replace(_JOB, node_size=4, format=Format.NSYS), profiled, workers=1)


def _measured(lake: Lake) -> str:
    """What Nsight Compute would have written of the first product that the home holds."""
    sql = "SELECT any_value(kernel) AS kernel FROM operations WHERE operation_class = 'gemm'"
    [row] = lake.query(sql).to_pylist()
    return f"ID,Kernel Name,gpu__time_duration.sum\n,,usecond\n0,{row['kernel']},80\n"


def _blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [block for said, block in _BLOCK.findall(text) if said == language]


def _lines(page: Path) -> list[str]:
    return [line for block in _blocks(page, "") for line in block.splitlines() if line.startswith("traceviz ")]


def _is_left_out(line: str) -> bool:
    return any(line.startswith(beginning) for beginning in LEFT_OUT)


_WITH_COMMANDS = [page for page in PAGES if any(not _is_left_out(line) for line in _lines(page))]


def test_nothing_is_left_out_that_no_page_shows():
    lines = [line for page in PAGES for line in _lines(page)]
    for beginning in (*LEFT_OUT, *OF_PERFETTO):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert sum(not _is_left_out(line) for line in lines) >= 50


FAST = ("README.md", "capture.md")
"""Pages whose commands most people try; tests of their own run the commands of the others, too."""


@pytest.mark.parametrize(
    "page",
    fast(_WITH_COMMANDS, *(page for page in _WITH_COMMANDS if page.name in FAST)),
    ids=lambda page: page.relative_to(REPOSITORY).as_posix(),
)
def test_every_command_of_the_page_succeeds(page, places, tmp_path, monkeypatch, request):
    [rank] = (places / "traces/job-7/iteration_120").glob("rank_0000*")
    for example in _blocks(page, "toml"):
        # The entry points of another package are no rules: tests/pipeline/test_tables_of_others.py installs them.
        if "[project" not in example:
            (tmp_path / "mine.toml").write_text(example)
            (tmp_path / "capture.toml").write_text(example)
    given = {"rank_0000.json.gz": rank, "rank0.json.gz": rank}
    given |= {"node0.sqlite": places / "profiles/job-7/node0.sqlite", "trace.pftrace.gz": "replica.pftrace.gz"}
    given |= {f"{name}.pickle": places / f"{name}.pickle" for name in ("snapshot", "before", "after")}
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", StringIO())
    monkeypatch.chdir(tmp_path)
    shutil.copytree(places / "home", tmp_path / "home")
    if page.name not in THROUGH_DAGSTER:
        request.getfixturevalue("ranks_in_this_process")
    _fill(places, page)
    if "kernel.csv" in page.read_text(encoding="utf-8"):
        (tmp_path / "kernel.csv").write_text(_measured(Lake(tmp_path / "home")))
    for line in _lines(page):
        if _is_left_out(line):
            continue
        if line.startswith(OF_PERFETTO):
            request.getfixturevalue("trace_processor")
        words = shlex.split(line.split(" > ")[0], comments=True)[1:]
        # What simulated jobs are is as large as their options say, and no larger than it must be.
        words += ["--layers", "4", "--microbatches", "4"] if words[0] == "simulate" else []
        if "--slow-gpu" in words and page.name not in AS_IT_IS:
            # What all commands of a page are asked of is analysed: four ranks and a step of it; several steps of a file
            # are what the page speaks of.
            words += ["--dp", "1", "--iterations", "2" if "--layout" in words else "1"]
        # tests/show/page writes every figure in every format, and the figures of a rank are like those of the next.
        if words[0] == "figures":
            words += [] if "--formats" in words else ["--formats", "png"]
            words += [] if "--ranks" in words else ["--ranks", "0"]
            # tests/commands/test_figures.py draws all kinds, over several processes.
            words += [] if "--kind" in words else ["--kind", "pipeline_group"]
            words += ["--processes", "1"]
        words = [str(given.get(word, re.sub("^/(traces|profiles|tmp)/", rf"{places}/\1/", word))) for word in words]
        words = [word.replace("/data/home", str(tmp_path / "home")) for word in words]
        answer = call(*words)
        assert (answer.code, bool(answer.out.strip())) == (0, True), (line, answer.err)
