"""What the one public trace of Megatron on 8 GPUs says, counted from its files alone: nothing of the product is used.

The k-th collective of each rank, by start, is one communication; times are whole microseconds, as recorded.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

RANKS = range(8)
FORWARD = ("LinearWithGradAccumulation", "_ReduceFromModelParallelRegion", "_VocabParallelCrossEntropy")


@dataclass(frozen=True)
class Counted:
    """Of each rank, in us: its collectives as (start, end), the time of other kernels that the host launched from the
    first to the last of Megatron's operators, and of all kernels."""

    collectives: dict[int, list[tuple[int, int]]]
    forward_us: dict[int, int]
    kernels_us: dict[int, int]

    def wait_us(self, rank: int, number: int) -> int:
        return max(self.collectives[each][number][0] for each in RANKS) - self.collectives[rank][number][0]

    def last_rank(self, number: int) -> int:
        """The last to arrive; of several the lowest."""
        return max(RANKS, key=lambda rank: (self.collectives[rank][number][0], -rank))

    def late_us(self, rank: int) -> float:
        """How much later than the median the rank arrived, where it was the last."""
        mine = [number for number in range(len(self.collectives[rank])) if self.last_rank(number) == rank]
        return sum(
            self.collectives[rank][number][0] - median(self.collectives[each][number][0] for each in RANKS)
            for number in mine
        )


def count(folder: Path) -> Counted:
    """Count the files of a folder, and check that the k-th collective has the same name on all ranks."""
    collectives, forward, kernels, names = {}, {}, {}, set()
    for rank in RANKS:
        events = json.loads(gzip.decompress((folder / f"megatron_kineto_{rank}.json.gz").read_bytes()))["traceEvents"]
        on_gpu = sorted((each for each in events if each.get("cat") == "kernel"), key=lambda each: each["ts"])
        mine = [each for each in on_gpu if each["name"].startswith("ncclDevKernel")]
        names.add(tuple(each["name"] for each in mine))
        collectives[rank] = [(each["ts"], each["ts"] + each["dur"]) for each in mine]
        launched = _launches(events)
        steps = [each for each in events if each["name"].startswith(FORWARD)]
        first, last = min(each["ts"] for each in steps), max(each["ts"] + each["dur"] for each in steps)
        forward[rank] = sum(
            each["dur"]
            for each in on_gpu
            if not each["name"].startswith("nccl") and first <= launched[each["args"]["correlation"]] < last
        )
        kernels[rank] = sum(each["dur"] for each in on_gpu)
    assert len(names) == 1
    return Counted(collectives, forward, kernels)


def _launches(events: list[dict[str, Any]]) -> dict[int, int]:
    """Correlation → when the host launched."""
    calls = (each for each in events if each.get("cat") in ("cuda_runtime", "cuda_driver"))
    return {each["args"]["correlation"]: each["ts"] for each in calls}
