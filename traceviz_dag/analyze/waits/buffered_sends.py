"""Sends that do not wait for their receiver.

Over a network NCCL copies what is sent into buffers of its own (``NCCL_BUFFSIZE``, 4 MiB a channel) and ends the kernel
when all is there, whether or not the other rank receives yet. On solved clocks such a send ends before its receive has
begun. One case shows how all messages from that rank to that other one go: the way between them is the same.
"""

from __future__ import annotations

import numpy as np

from traceviz_dag.analyze.clocks.clocks import WIDEST_RESIDUAL_NS, SolvedClocks
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.events import MISSING


def buffered_sends(matches: Matches, clocks: SolvedClocks) -> Int64:
    """Per message, 1 if its sender does not wait for its receiver, 0 if nothing shows that, ``MISSING`` where the two
    clocks cannot be compared."""
    rows, sender, receiver = matches.rows, matches.messages.sender, matches.messages.receiver
    ends = clocks.align(rows.rank[sender], rows.end_ns[sender])
    starts = clocks.align(rows.rank[receiver], rows.start_ns[receiver])
    comparable = (ends != MISSING) & (starts != MISSING) & clocks.together(rows.rank[sender], rows.rank[receiver])
    shown = comparable & (ends + WIDEST_RESIDUAL_NS < starts)
    way = rows.rank[sender] * (int(rows.rank.max(initial=0)) + 1) + rows.rank[receiver]
    return np.where(comparable, np.isin(way, way[shown]), MISSING).astype(np.int64)


def waits_for_other(matches: Matches, buffered: Int64) -> Bool:
    """Per entry of ``matches.end``, whether that kernel waits for the one at the other end.

    Args:
        buffered: as ``buffered_sends`` gives them.
    """
    width, sender, receiver = len(matches.rows), matches.messages.sender, matches.messages.receiver
    bound = buffered != 1
    waiting = np.concatenate((receiver * width + sender, (sender * width + receiver)[bound]))
    return np.isin(matches.end * width + matches.other, waiting)
