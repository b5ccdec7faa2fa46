"""How often the kind of a slow rank is named: each fault in three topologies and with three seeds, and healthy jobs.

    python benchmarks/slow_kinds.py

It ends with 1 if fewer than 95 % of the faults have their kind, or a rank of a healthy job has one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.analyze.across_ranks import analysed_here
from traceviz_dag.pipeline.across_ranks import analyse_across_ranks
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults
from traceviz_dag.vocabulary import SlowKind

_SMALL = {"layers": 4, "hidden": 2048, "heads": 16, "feed_forward": 8192, "sequence": 2048, "vocabulary": 8192}
LAYOUTS = {
    "dp4": JobSettings(**_SMALL, dp=4, microbatches=4),
    "tp2 pp2 dp2": JobSettings(**_SMALL, tp=2, pp=2, dp=2, microbatches=4),
    "dp4 ep2": JobSettings(**_SMALL, dp=4, ep=2, microbatches=4),
}
FAULTS = {
    SlowKind.CORE_CLOCK: Faults(slow_clock=1),
    SlowKind.MEMORY: Faults(slow_memory=1),
    SlowKind.THROTTLING: Faults(throttle=1, throttle_from_ms=8.0, throttle_to_ms=20.0),
    SlowKind.GPU: Faults(slow_gpu=1),
    SlowKind.ALGORITHM: Faults(other_algorithm=1),
    SlowKind.LINK: Faults(slow_link=1),
    None: Faults(),
}
SEEDS = (1, 2, 3)
_WIDE = {"layers": 8, "hidden": 1024, "sequence": 1024, "shapes": True, "microbatches": 8}
_BESIDE = JobSettings(**_WIDE, tp=2, pp=2, dp=4, contention=1.5)
_BUSY_HOSTS = (
    JobSettings(**_WIDE | {"layers": 4, "microbatches": 4}, tp=2, cp=2, dp=2, recompute="selective"),
    JobSettings(**_WIDE | {"layers": 4, "microbatches": 4}, pp=2, dp=4, ep=2, experts=8),
)


def found(settings: JobSettings) -> dict[int, str]:
    """The kind of every rank that has one."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(settings, Path(folder) / "job", workers=1)
        iteration = analysed_here(Path(folder) / "job", Path(folder) / "home")
        rows = analyse_across_ranks(iteration)["rank_speeds"].to_pylist()
    return {row["rank"]: row["kind"] for row in rows if row["kind"] is not None}


def cases() -> Iterator[tuple[str, SlowKind | None, JobSettings]]:
    """Name, kind that its rank 1 has, and settings of every job."""
    for name, layout in LAYOUTS.items():
        for kind, faults in FAULTS.items():
            # The ranks of one group alone meet over one link each, and nothing shows whose is slow.
            for seed in SEEDS if kind is not SlowKind.LINK or layout.tp > 1 else ():
                yield f"{kind or 'healthy'} {name} seed {seed}", kind, replace(layout, faults=faults, seed=seed)
    # Communication slows what runs beside it, on each rank other kernels.
    for kind in (SlowKind.CORE_CLOCK, SlowKind.THROTTLING, None):
        faults = replace(FAULTS[kind], throttle_from_ms=5.0, throttle_to_ms=15.0)
        yield f"{kind or 'healthy'} beside communication", kind, replace(_BESIDE, faults=faults)
    for number, layout in enumerate(_BUSY_HOSTS):
        yield f"healthy busy hosts {number}", None, layout


def main() -> int:
    """Run them all."""
    right = wrong = healthy = 0
    for name, kind, settings in cases():
        told = found(settings)
        expected = {} if kind is None else {1: kind.value}
        if told != expected:
            print(f"{name}: {told}", flush=True)
        if kind is None:
            healthy += bool(told)
        elif told == expected:
            right += 1
        else:
            wrong += 1
    print(f"{right} of {right + wrong} kinds named, {healthy} healthy jobs with a kind")
    return int(bool(healthy) or right < 0.95 * (right + wrong))


if __name__ == "__main__":
    sys.exit(main())
