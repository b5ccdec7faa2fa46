"""Do some ranks of a job say what all of them say?

Run: ``python -m benchmarks.samples --jobs 16 --large 1`` (an hour on two busy cores). Each job, of 64 to 128 ranks or
of 1,024, is drawn, with a fault or healthy, simulated and analysed whole, and again from each kind of sample: one rank
of each stage, one pipeline, one node, one replica, one data-parallel group, three ranks at random. A sample contradicts
the whole where

- the overlap of a rank differs by a nanosecond,
- a fault leads its findings that neither the job has nor the whole's findings name,
- the bar of a gain, widened by .2 % of the step, does not hold what the whole predicts for the same edit, or
- it ends as partial, though every rank that was chosen is there.

A sample may refuse what it cannot know. The exit code is 1 where anything contradicts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.drawn_faults import NEAR_STEP, Job, culprit_ranks, drawn_fault, names
from traceviz_dag.analyze.findings.losses import label, leading
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import Edges
from traceviz_dag.spans import spanned, unspanned

_SMALL = JobSettings(iterations=1, layers=4, microbatches=4, balanced_router=True)
LAYOUTS = {
    "tp2 pp4 dp8": replace(_SMALL, tp=2, pp=4, dp=8, layers=8, microbatches=8),
    "pp4 dp16 on nodes of 4": replace(_SMALL, pp=4, dp=16, node_size=4, layers=8, microbatches=8),
    "tp4 pp2 dp8": replace(_SMALL, tp=4, pp=2, dp=8),
    "tp2 pp2 vpp2 dp16": replace(_SMALL, tp=2, pp=2, vpp=2, dp=16, layers=8),
    "ep4 pp2 dp32": replace(_SMALL, ep=4, pp=2, dp=32, microbatches=2),
    "tp8 pp2 dp4": replace(_SMALL, tp=8, pp=2, dp=4),
}
LARGE = {
    "tp8 pp8 dp16": replace(_SMALL, tp=8, pp=8, dp=16, layers=8, microbatches=8),
}
_OVERLAP_SQL = """
SELECT rank, window_start_ns, window_end_ns, compute_ns, communication_ns, hidden_ns, exposed_ns, busy_ns, idle_ns
FROM overlap WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name = 'step'
"""
_EDIT = ("edit", "rank", "ranks", "dimension")


@dataclass(frozen=True, slots=True)
class Said:
    """What an analysis says of a job.

    Attributes:
        overlap: rank → its measures. faults: that lead. edits: (edit, rank, ranks, dimension) → gain, least, most, ns.
        partial: whether it says that ranks are missing.
    """

    overlap: Mapping[int, tuple[int, ...]]
    faults: Sequence[Mapping[str, Any]]
    edits: Mapping[tuple[Any, ...], tuple[int, int, int]]
    partial: bool | None
    step_ns: int


def samples(settings: JobSettings, draw: random.Random) -> dict[str, list[int]]:
    """Name of each kind → its ranks."""
    grid = dense_grid(settings)
    places = {rank: grid.place(rank) for rank in range(settings.world)}
    node = draw.randrange(-(-settings.world // settings.node_size))

    def at(**wanted: int) -> list[int]:
        return [rank for rank, place in places.items() if all(place[axis] == value for axis, value in wanted.items())]

    replica, lane = draw.randrange(settings.dp), draw.randrange(settings.tp)
    return {
        "a rank of each stage": [at(pp=stage, tp=lane, dp=stage % settings.dp)[0] for stage in range(settings.pp)],
        "a pipeline": at(tp=lane, dp=replica),
        "a node": [rank for rank in places if rank // settings.node_size == node],
        "a replica": at(dp=replica),
        "a data-parallel group": at(tp=lane, pp=draw.randrange(settings.pp)),
        "three at random": sorted(draw.sample(range(settings.world), 3)),
    }


def said(settings: JobSettings) -> Said:
    """Simulate and analyse a job."""
    with tempfile.TemporaryDirectory() as name:
        folder = simulate(settings, Path(name) / "run", workers=1)
        with iterations_at(folder, Path(name) / "home") as (iteration,):
            rows = iteration.findings()
            return Said(
                _overlap(iteration),
                [row for row in leading(rows) if label(row).startswith("fault")],
                {
                    tuple(row[name] for name in _EDIT): (row["gain_ns"], row["gain_low_ns"], row["gain_high_ns"])
                    for row in iteration.table("what_if").to_pylist()
                    if row["gain_ns"] is not None
                },
                iteration.completeness.partial,
                iteration.step_ns or 0,
            )


def _overlap(iteration: StoredIteration) -> dict[int, tuple[int, ...]]:
    rows = iteration.lake.query_iteration(_OVERLAP_SQL, run=iteration.run, iteration=iteration.iteration).to_pylist()
    return {row["rank"]: tuple(row.values()) for row in rows}


def contradictions(job: Job, whole: Said, sample: Said) -> Iterator[str]:
    """What a sample says against the whole, a line each."""
    if sample.partial:
        yield "it says that it is partial"
    differ = [rank for rank, measures in sample.overlap.items() if measures != whole.overlap[rank]]
    if differ:
        yield f"overlap of ranks {spanned(differ)} differs"
    said_of_whole = [(row["rule"], row["rank"], row["group_ranks"], row["stage"]) for row in whole.faults]
    for row in sample.faults:
        mine = (row["rule"], row["rank"], row["group_ranks"], row["stage"])
        ranks = unspanned(row["group_ranks"]) if row["group_ranks"] else (row["rank"],)
        true = any(names(row, job, fault) or {*ranks} <= culprit_ranks(job.of(fault)) for fault in job.faults)
        if not true and mine not in said_of_whole:
            yield f"{row['rule']} names others: {row['statement']}"
    near = round(NEAR_STEP * whole.step_ns)
    for edit, (_, low, high) in sample.edits.items():
        known = whole.edits.get(edit)
        if known is not None and not low - near <= known[0] <= high + near:
            yield f"{edit} gains {low} to {high} ns, of the whole {known[0]}"


def one_job(seed: int, layouts: Mapping[str, JobSettings] = LAYOUTS) -> tuple[str, dict[str, list[str]], int]:
    """The job of a seed: its name, kind of sample → contradictions, and how many samples name a fault."""
    draw = random.Random(seed)
    job = drawn_fault(draw, layouts, seed)
    whole, found, named = said(job.settings), {}, 0
    for kind, ranks in samples(job.settings, draw).items():
        sample = said(replace(job.settings, edges=Edges(captured_ranks=spanned(ranks))))
        found[f"{kind} ({spanned(ranks)})"] = list(contradictions(job, whole, sample))
        named += any(names(row, job, fault) for row in sample.faults for fault in job.faults)
    return job.name, found, named


def main() -> None:
    """Draw jobs, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--large", type=int, default=0, help="jobs of 1,024 ranks beside those")
    parser.add_argument("--first-seed", type=int, default=44_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.jobs + given.large)
    layouts = [LARGE] * given.large + [LAYOUTS] * given.jobs
    pairs, wrong, kinds, by_name = 0, 0, Counter[str](), 0
    with ProcessPoolExecutor(given.workers) as pool:
        for name, found, named in pool.map(one_job, seeds, layouts):
            against = {kind: lines for kind, lines in found.items() if lines}
            pairs, wrong, by_name = pairs + len(found), wrong + len(against), by_name + named
            print(f"{'ok   ' if not against else 'WRONG'} {name}; {named} of {len(found)} samples name it", flush=True)
            for kind, lines in against.items():
                kinds[kind.partition(" (")[0]] += 1
                for line in lines:
                    print(f"      {kind}: {line}", flush=True)
    print(f"{pairs} pairs, {wrong} contradict {dict(kinds) or ''}; {by_name} name the fault of their job")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
