"""What an answer about a profile lacks, in words: rows of its export that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from traceviz_dag.analyze.wording import counted
from traceviz_dag.read.nsys.profile import NsysProfile, RowFault

KERNEL_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
"""How tables of an export that hold kernels begin."""


def lost_rows(faults: Iterable[RowFault]) -> str:
    """How many rows of which table cannot be used; empty without faults."""
    rows = Counter[tuple[str, bool]]()
    for fault in faults:
        rows[fault.source, fault.nameless] += fault.rows
    return ", ".join(
        _nameless(source, count)
        if nameless
        else f"{counted(count, 'row', 'rows')} of table {source} without usable times or numbers, left out"
        for (source, nameless), count in rows.items()
    )


def partial_mark(profile: NsysProfile, gpus: Collection[int] = ()) -> str:
    """What pictures of a profile say of what they lack; empty where they lack nothing.

    Args:
        gpus: that are shown; empty takes all.
    """
    mine = [one for one in profile.facts.faults if not gpus or one.device is None or one.device in gpus]
    return f"PARTIAL: {lost_rows(mine)}" if mine else ""


def _nameless(source: str, count: int) -> str:
    if source.startswith(KERNEL_TABLES):
        return f"{counted(count, 'kernel', 'kernels')} without a name, so what communicates is not known"
    return f"{counted(count, 'call', 'calls')} without a name"
