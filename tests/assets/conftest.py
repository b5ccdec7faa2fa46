"""What the tests of assets share: ranks are computed in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import in_process


@pytest.fixture(scope="module", autouse=True)
def ranks_in_this_process() -> Iterator[None]:
    """What the pool does is tested elsewhere."""
    with in_process.ranks_in_this_process():
        yield
