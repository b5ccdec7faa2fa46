"""What the tests of assets share: ranks are computed in the process of the test, findings only where they are asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import in_process
from tests.assets.loop import no_findings

_ASK_FINDINGS = ("test_across_ranks", "test_pictures", "test_rules_of_a_home")


@pytest.fixture(scope="module", autouse=True)
def ranks_in_this_process() -> Iterator[None]:
    """What the pool does is tested elsewhere."""
    with in_process.ranks_in_this_process():
        yield


@pytest.fixture(scope="module", autouse=True)
def _findings_left_empty(request, ranks_in_this_process) -> Iterator[None]:
    """In all modules but those that ask what findings say: all rules take as long as all other tables."""
    if request.module.__name__.rpartition(".")[2] in _ASK_FINDINGS:
        yield
        return
    with no_findings():
        yield
