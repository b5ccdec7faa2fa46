"""Slow and obvious measures of a snapshot, from the pickle as the standard library reads it."""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

from traceviz_dag.read.memory.child import encoded
from traceviz_dag.read.memory.plain_pickle import read_plain
from traceviz_dag.read.memory.reader import decoded
from traceviz_dag.read.memory.snapshot import Snapshot


def loaded(path: Path) -> dict[str, Any]:
    """Our own and the published files alone: the standard library runs what a pickle asks for."""
    return pickle.loads(path.read_bytes())


def read_here(snapshot: dict[str, Any]) -> Snapshot:
    """A snapshot as the reader gives it, without a file and a process."""
    data = pickle.dumps(snapshot)
    header, *columns = encoded(read_plain(BytesIO(data)), len(data))
    return decoded(json.loads(header), b"".join(columns), 0)


def requested_over_time(snapshot: dict[str, Any]) -> list[int]:
    """Bytes requested before the first event, then after each: the sum over a dictionary of live blocks, each time."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = {block["address"]: block["requested_size"] for block in blocks if block["state"] != "inactive"}
    [events] = snapshot["device_traces"]
    held = sum(live.values())
    found = [held]
    for event in reversed(events):
        if event["action"] == "alloc":
            held -= live.pop(event["addr"])
        elif event["action"] == "free_completed":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            held += event["size"]
        found.append(held)
    return found[::-1]
