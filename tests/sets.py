"""Which of several like cases `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def fast(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases for ``parametrize``: those chosen, and, marked as long, the others, which take no path of their own."""
    known = list(cases)
    assert set(chosen) <= set(known), "a case that is chosen is none"
    return [case if case in chosen else _long(case) for case in known]


def _long(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
