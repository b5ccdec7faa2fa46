"""A file that holds several training steps, each an iteration, is read once for all of them."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.in_process import ranks_in_this_process
from traceviz_dag.pipeline import making, ranks
from traceviz_dag.pipeline.analysis import AnalysisSettings, IterationResult, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Layout

JOB = JobSettings(tp=1, pp=2, dp=1, layers=2, microbatches=2, iterations=3, layout=Layout.TORCH_PROFILE)

COUNTED = "SELECT count(*) AS kernels FROM kernels WHERE run = $run AND iteration = $iteration"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(JOB, tmp_path_factory.mktemp("steps") / "job", workers=1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rank of each reading of a trace."""
    found: list[int] = []
    read = ranks.read_events

    def counted(trace, *others, **named):
        found.append(trace.rank)
        return read(trace, *others, **named)

    monkeypatch.setattr(ranks, "read_events", counted)
    return found


def analysed(home: Path, run: Path, *only: int, force: bool = False) -> list[IterationResult]:
    inputs = [each for each in inputs_below([run], home=home) if not only or each.iteration in only]
    with ranks_in_this_process():
        return analyse(AnalysisSettings(home, force=force), inputs)


def digests(home: Path) -> dict[str, str]:
    files = sorted((home / "lake").rglob("*.parquet"))
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_it_is_read_once_and_its_tables_are_those_of_each_step_alone(run, tmp_path, reads):
    results = analysed(tmp_path / "together", run)
    assert sorted(reads) == [0, 1]
    assert [(each.iteration, each.computed, each.skipped) for each in results] == [
        (number, [0, 1], []) for number in (10, 11, 12)
    ]
    for number in (10, 11, 12):
        analysed(tmp_path / "alone", run, number)
    assert len(reads) == 2 + 6
    assert digests(tmp_path / "together") == digests(tmp_path / "alone")
    reads.clear()
    assert [each.skipped for each in analysed(tmp_path / "together", run)] == [[0, 1]] * 3
    assert not reads, "nothing changed"
    # What is asked for anew is made anew, each step for itself.
    assert [each.computed for each in analysed(tmp_path / "together", run, force=True)] == [[0, 1]] * 3


def test_who_goes_on_with_the_last_iteration_gets_what_was_read_of_it(run, tmp_path, monkeypatch: pytest.MonkeyPatch):
    inputs = inputs_below([run])
    with ranks_in_this_process(), ExitStack() as last:
        *others, result = analyse(AnalysisSettings(tmp_path), inputs, last=last)
        assert [each.lake for each in others] == [None, None]
        assert result.lake is not None
        with result.lake.session(run=result.run, iteration=result.iteration) as first:
            first.ask(COUNTED)
        with result.lake.session(run=result.run, iteration=result.iteration) as session:
            assert session is first, "it stays open"
    with ranks_in_this_process(), ExitStack() as last:
        monkeypatch.setattr(making, "aggregate", lambda *_, **__: 1 / 0)
        *_, failed = analyse(AnalysisSettings(tmp_path, force=True), inputs, last=last)
        assert failed.failures and failed.lake is None, "what failed is asked anew"


@pytest.mark.long
def test_what_is_wrong_with_one_step_costs_no_other(run, tmp_path, reads, monkeypatch: pytest.MonkeyPatch):
    tables = ranks._tables

    def broken(trace, *others):
        if trace.step == 11 and trace.rank == 1:
            raise RuntimeError("no such step")
        return tables(trace, *others)

    monkeypatch.setattr(ranks, "_tables", broken)
    results = analysed(tmp_path / "home", run)
    assert [(each.iteration, each.computed, each.failed) for each in results] == [
        (10, [0, 1], []),
        (11, [0], [1]),
        (12, [0, 1], []),
    ]
    monkeypatch.setattr(ranks, "_tables", tables)
    assert [each.computed for each in analysed(tmp_path / "home", run)] == [[], [1], []]
    analysed(tmp_path / "whole", run)
    assert digests(tmp_path / "home") == digests(tmp_path / "whole")


@pytest.mark.long
def test_a_rank_that_comes_late_is_read_once_as_well(run, tmp_path, reads):
    late = tmp_path / "job"
    shutil.copytree(run, late)
    (missing,) = late.rglob("rank-1*")
    kept = missing.rename(tmp_path / missing.name)
    analysed(tmp_path / "home", late, 10)
    kept.rename(missing)
    reads.clear()
    results = analysed(tmp_path / "home", late)
    assert sorted(reads) == [0, 1]
    assert [each.computed for each in results] == [[0, 1]] * 3 and not any(each.failures for each in results)
