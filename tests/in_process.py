"""Ranks computed in the process of the test: what the pool does is tested elsewhere, and it takes longer to start than
small traces to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from traceviz_dag.pipeline import making, path_analysis
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.workers import Beside, IterationTask, RankOutcome, analyse_into_lake


def one_by_one(
    task: IterationTask,
    traces: Sequence[RankTrace],
    _workers: int | None = None,
    beside: Beside = (),
    _engine: object = None,
) -> Iterator[RankOutcome]:
    """In the place of ``analyse_ranks``."""
    return (analyse_into_lake(task, trace, beside) for trace in traces)


@contextmanager
def ranks_in_this_process() -> Iterator[None]:
    """While it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (making, path_analysis):
            patch.setattr(module, "analyse_ranks", one_by_one)
        yield
