"""Ranks computed in the process of the test: what the pool does is tested elsewhere, and it takes longer to start than
small traces to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from traceviz_dag.pipeline import making, path_analysis
from traceviz_dag.pipeline.engines import Engine
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.workers import Beside, IterationTask, RankOutcome, analyse_into_lake, analyse_ranks


def one_by_one(
    task: IterationTask,
    traces: Sequence[RankTrace],
    workers: int | None = None,
    beside: Beside = (),
    engine: Engine | None = None,
) -> Iterator[RankOutcome]:
    """In the place of ``analyse_ranks``, where no engine is given."""
    if engine is not None:
        return analyse_ranks(task, traces, workers, beside, engine)
    return (analyse_into_lake(task, trace, beside) for trace in traces)


@contextmanager
def ranks_in_this_process() -> Iterator[None]:
    """While it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (making, path_analysis):
            patch.setattr(module, "analyse_ranks", one_by_one)
        yield
