"""All events of a snapshot at once say what a walk back through them, event by event, says: also of broken ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.analyze.memory.plain_snapshots import read_here
from traceviz_dag.analyze.memory.replay import replayed

ACTIONS = ("alloc", "free_requested", "free_completed")


def walked_back(snapshot: dict[str, Any]) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """Address, bytes, and the events of allocation, requested and completed free of each block; what contradicts."""
    wrong: Counter[str] = Counter()
    live: dict[int, list[Any]] = {}
    found = []
    for block in snapshot["segments"][0]["blocks"]:
        if block["address"] in live:
            wrong["live blocks at the address of another"] += 1
        else:
            found.append(live.setdefault(block["address"], [block["address"], block["requested_size"], -1, -1, -1]))
    for place, event in reversed([*enumerate(snapshot["device_traces"][0])]):
        address, size, block = event["addr"], event["size"], live.get(event["addr"])
        if event["action"] == "free_completed":
            if block is not None:
                wrong["frees of a block that is live after them"] += 1
            else:
                live[address] = [address, size, -1, -1, place]
                found.append(live[address])
        elif block is None:
            allocated = event["action"] == "alloc"
            wrong["allocations that were neither freed nor are live at the end"] += allocated
            wrong["frees that were requested of no live block"] += not allocated
        elif event["action"] == "free_requested":
            block[3] = place
        else:
            wrong["blocks freed with another size than they were allocated with"] += block[1] != size
            block[1:3] = size, place
            del live[address]
    return sorted(map(tuple, found)), +wrong


@pytest.mark.parametrize("seed", range(40))
def test_blocks_and_contradictions_are_those_of_a_walk_back(seed):
    drawn = random.Random(seed)
    events = [
        {"action": drawn.choice(ACTIONS), "addr": drawn.randrange(3), "size": drawn.randint(1, 2), "stream": 0}
        for _ in range(drawn.randrange(12))
    ]
    blocks = [
        {"address": drawn.randrange(3), "size": 2, "requested_size": drawn.randint(1, 2), "state": "active_allocated"}
        for _ in range(drawn.randrange(3))
    ]
    segment = {"address": 0, "total_size": 9, "stream": 0, "blocks": blocks}
    snapshot = {"segments": [segment], "device_traces": [events]}

    replay = replayed(read_here(snapshot), 0)

    lifetimes = replay.lifetimes
    rows = zip(
        *(lifetimes.address, lifetimes.requested, lifetimes.begin, lifetimes.requested_free, lifetimes.end),
        strict=True,
    )
    expected, wrong = walked_back(snapshot)
    assert sorted(tuple(map(int, row)) for row in rows) == expected
    assert replay.contradictions == wrong


def test_times_that_run_backwards_contradict_the_order_of_events():
    times = (40, None, 60, 50, 55, 0, 54)
    events = [{"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": time} for time in times]
    replay = replayed(read_here({"segments": [], "device_traces": [events]}), 0)
    assert replay.contradictions_in_words == ["2 events that are earlier than the one before them"]
