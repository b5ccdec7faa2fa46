"""What the tests of assets share: ranks are computed in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traceviz_dag.pipeline import making
from traceviz_dag.pipeline.workers import analyse_into_lake


@pytest.fixture(scope="module", autouse=True)
def ranks_in_this_process() -> Iterator[None]:
    """What the pool does is tested elsewhere; starting it takes longer than these traces."""

    def one_by_one(task, traces, _workers):
        return (analyse_into_lake(task, trace) for trace in traces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "analyse_ranks", one_by_one)
        yield
