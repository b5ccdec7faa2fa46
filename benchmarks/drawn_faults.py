"""Does the first finding name the culprit, in jobs whose layout, fault, strength and seed are drawn?

Run: ``python -m benchmarks.drawn_faults --jobs 100 --first-seed 9000``. A quarter of the jobs is healthy. What a fault
really costs is the model's step with it less that without. A fault counts where that is 1 % of the step or more; the
first fault that leads ``traceviz findings`` must then name the ranks which have it. *Precision* is of all faults that
lead, healthy jobs included. The gain that it predicts is held against the cost: it is right within 10 % of that or .2 %
of the step, its bar where it holds the cost. The same seed draws the same job.

The exit code is 1 where less than 95 % of the culprits are named, precision is under 99 %, a healthy job has a fault,
more than 15 % of gains are refused, less than 90 % of gains or bars are right, or a gain is off by over 5 % of the step
and its bar does not say so.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import take_groups_out
from traceviz_dag.analyze.findings.losses import leading
from traceviz_dag.analyze.wording import unspanned
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.across_ranks import iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import Faults
from traceviz_dag.simulate.timing.model import Model
from traceviz_dag.simulate.work.faults import culprits, refuse_idle_faults

LEAST_COST = 0.01
"""Share of the step from which a fault must be named."""

NEAR, NEAR_STEP, FAR_STEP = 0.1, 0.002, 0.05
"""A gain is right within the first share of what it truly is or the second of the step, far off beyond the third."""

MOST_REFUSED, LEAST_RIGHT = 0.15, 0.9
"""Shares of the gains of faults that are named."""

_SMALL = JobSettings(iterations=1, layers=4, microbatches=4)
LAYOUTS = {
    "dp4": replace(_SMALL, dp=4),
    "tp2 dp2": replace(_SMALL, tp=2, dp=2),
    "tp2 dp4 on nodes of 4": replace(_SMALL, tp=2, dp=4, node_size=4),
    "tp4 dp2": replace(_SMALL, tp=4, dp=2),
    "pp4": replace(_SMALL, pp=4, layers=8, microbatches=8),
    "pp2 dp2": replace(_SMALL, pp=2, dp=2, layers=8),
    "pp2 dp4 on nodes of 4": replace(_SMALL, pp=2, dp=4, node_size=4),
    "tp2 pp2 dp2": replace(_SMALL, tp=2, pp=2, dp=2, layers=8),
    "tp2 pp2 dp2 on nodes of 2": replace(_SMALL, tp=2, pp=2, dp=2, node_size=2),
    "pp2 vpp2 dp2": replace(_SMALL, pp=2, vpp=2, dp=2),
    "cp2 dp2": replace(_SMALL, cp=2, dp=2),
    "ep4 dp4": replace(_SMALL, ep=4, dp=4, microbatches=2),
    "ep2 pp2 dp2": replace(_SMALL, ep=2, pp=2, dp=2),
}

_Draw = Callable[[random.Random, int], dict[str, Any]]


def _of_rank(name: str, least: float, most: float, strength: str = "factor") -> _Draw:
    """A rank's fault, its strength drawn evenly on a logarithmic scale."""

    def drawn(draw: random.Random, world: int) -> dict[str, Any]:
        value = math.exp(draw.uniform(math.log(least), math.log(most)))
        return {name: draw.randrange(world), f"{name}_{strength}": round(value, 3)}

    return drawn


def _throttle(draw: random.Random, world: int) -> dict[str, Any]:
    start = draw.uniform(0, 60)
    return {
        **_of_rank("throttle", 1.1, 2.0)(draw, world),
        "throttle_from_ms": start,
        "throttle_to_ms": start + draw.uniform(20, 80),
    }


def _tiny(draw: random.Random, world: int) -> dict[str, Any]:
    return {"tiny_kernels": draw.randrange(world), "tiny_kernels_count": draw.choice((200, 400, 1000, 2000))}


FAULTS: dict[str, tuple[_Draw, tuple[str, ...]]] = {
    "slow_gpu": (_of_rank("slow_gpu", 1.06, 1.6), ("slow_rank", "slow_stage")),
    "throttle": (_throttle, ("slow_rank", "slow_stage")),
    "slow_memory": (_of_rank("slow_memory", 1.3, 3), ("slow_rank", "slow_stage")),
    "other_algorithm": (_of_rank("other_algorithm", 1.2, 2), ("slow_rank", "slow_stage")),
    "slow_group": (_of_rank("slow_group", 1.08, 1.6), ("slow_group", "slow_stage", "slow_rank")),
    "slow_node": (_of_rank("slow_node", 1.08, 1.6), ("slow_group", "slow_stage", "slow_rank")),
    "slow_stage": (_of_rank("slow_stage", 1.08, 1.6), ("slow_stage", "slow_rank")),
    "slow_link": (_of_rank("slow_link", 1.8, 8), ("slow_link",)),
    "slow_nic": (_of_rank("slow_nic", 2, 8), ("slow_link",)),
    "bursts": (lambda draw, world: {"bursts": draw.uniform(0.1, 0.4), "bursts_factor": 5.0}, ("congestion",)),
    "data_stall": (_of_rank("data_stall", 4, 60, "ms"), ("data_stall", "host_pause")),
    "loader_late": (_of_rank("loader_late", 1, 12, "ms"), ("data_stall", "host_pause")),
    "garbage_collection": (_of_rank("garbage_collection", 10, 60, "ms"), ("gc_pause", "host_pause", "slow_rank")),
    "graph_break": (_of_rank("graph_break", 2, 12, "ms"), ("graph_break", "host_pause", "slow_rank")),
    "hidden_synchronisation": (lambda draw, world: {"hidden_synchronisation": draw.randrange(world)}, ("hidden_sync",)),
    "pageable_copy": (lambda draw, world: {"pageable_copy": draw.randrange(world)}, ("hidden_sync",)),
    "tiny_kernels": (_tiny, ("launch_bound", "slow_rank")),
    "expert_imbalance": (lambda draw, world: {"expert_imbalance": draw.uniform(0.1, 0.4)}, ("expert_load",)),
    "bad_stage_split": (lambda draw, world: {"bad_stage_split": draw.choice((1, 2, 3))}, ("slow_stage",)),
    "varying_sequences": (lambda draw, world: {"varying_sequences": draw.uniform(0.1, 0.4)}, ()),
}
"""How each fault is drawn, and the rules that name it; of no rule: nobody is at fault."""


@dataclass(frozen=True, slots=True)
class Job:
    """A drawn job; ``fault`` is empty where it is healthy."""

    seed: int
    layout: str
    fault: str
    settings: JobSettings
    groups: bool

    @property
    def name(self) -> str:
        """It in a line."""
        drawn = {
            name: round(value, 2)
            for name in Faults.__dataclass_fields__
            if (value := getattr(self.settings.faults, name)) != getattr(Faults(), name)
        }
        shown = ", ".join(f"{name} {value}" for name, value in drawn.items()) or "healthy"
        how = "stacks" if self.settings.stacks else "no stacks"
        return f"seed {self.seed} · {self.layout} · {shown} · {how}{'' if self.groups else ', no groups'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was said of a job.

    Attributes:
        cost: of the step, truly. first: the first fault. named: it leads and names the ranks that have it;
            by_rule: by a rule for it. said, wrong: faults that lead, and those that name others.
        gain: what it predicts that a fix saves, and the least and most; shares of the step, None where it refuses.
    """

    job: Job
    cost: float
    first: str
    named: bool
    by_rule: bool
    said: int
    wrong: tuple[str, ...]
    gain: tuple[float, float, float] | None = None

    @property
    def right(self) -> bool:
        """Whether the gain is near enough."""
        return self.gain is not None and abs(self.gain[0] - self.cost) <= max(NEAR * self.cost, NEAR_STEP)

    @property
    def holds(self) -> bool:
        """Whether the bar holds what the fault costs."""
        return self.gain is not None and self.gain[1] <= self.cost <= self.gain[2]

    @property
    def far(self) -> bool:
        """Whether the gain is far off, and the bar does not say so."""
        return self.gain is not None and not self.holds and abs(self.gain[0] - self.cost) > FAR_STEP

    @property
    def counts(self) -> bool:
        """Whether the fault must be named."""
        return bool(self.job.fault and FAULTS[self.job.fault][1]) and self.cost >= LEAST_COST


def drawn_job(seed: int) -> Job:
    """The job of a seed."""
    draw = random.Random(seed)
    fault = draw.choice(list(FAULTS)) if draw.random() < 0.75 else ""
    while True:
        layout = draw.choice(list(LAYOUTS))
        settings = replace(LAYOUTS[layout], seed=seed, stacks=draw.random() < 0.6, balanced_router=True)
        groups = draw.random() < 0.8
        if not fault:
            return Job(seed, layout, fault, settings, groups)
        of = {"slow_node": -(-settings.world // settings.node_size), "slow_stage": settings.pp}
        faulty = settings.with_faults(**FAULTS[fault][0](draw, of.get(fault, settings.world)))
        faulty = replace(faulty, balanced_router=fault != "expert_imbalance")
        # A group of one rank is that rank; all nodes or stages are the job; and a link of the job's only group is held
        # against nothing.
        if (fault, settings.tp) == ("slow_group", 1) or of.get(fault) == 1:
            continue
        if fault == "slow_link" and settings.dp == settings.world:
            continue
        try:
            faulty.validate()
            refuse_idle_faults(faulty)
        except UsageError:
            continue
        return Job(seed, layout, fault, faulty, groups)


def step_ns(settings: JobSettings) -> int:
    """How long the model's step takes, from the first host that begins to the last kernel that ends."""
    model = Model(settings)
    times = model.step(settings.first_iteration)
    return int(max(one.ends.max() for one in times) - min(np.min(one.marks[:1]) for one in times))


def culprit_ranks(settings: JobSettings) -> frozenset[int]:
    """The ranks that have the fault."""
    grid = dense_grid(settings)
    stage_of = {rank: grid.place(rank)["pp"] for rank in range(settings.world)}
    (culprit,) = culprits(settings, stage_of)
    if culprit.fault == "bad_stage_split":
        return frozenset(rank for rank, stage in stage_of.items() if stage == 0)
    return frozenset(culprit.ranks)


def names(row: Mapping[str, Any], job: Job) -> bool:
    """Whether a finding names the culprit: its ranks; of a link, also a group of ranks that has it."""
    if job.fault in ("", "varying_sequences"):
        return False
    if job.fault == "bursts":
        return bool(row["rule"] == "congestion")
    if job.fault == "expert_imbalance":
        return bool(row["rule"] == "expert_load")
    ranks, grid = culprit_ranks(job.settings), dense_grid(job.settings)
    if row["rank"] is not None:
        mine = {row["rank"]}
        mine |= {rank for rank in ranks if f"or of rank {rank}" in row["statement"]}
    elif row["group_ranks"] is not None:
        mine = set(unspanned(row["group_ranks"]))
    elif row["stage"] is not None:
        mine = {rank for rank in range(job.settings.world) if grid.place(rank)["pp"] == row["stage"]}
    else:
        return False
    if job.fault in ("slow_link", "slow_nic"):
        return ranks <= mine and row["rule"] == "slow_link"
    return mine == ranks


def one_job(seed: int) -> Outcome:
    """Simulate a job, and ask what is wrong with it."""
    job = drawn_job(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = simulate(job.settings, Path(name) / "run", workers=1)
        if not job.groups:
            take_groups_out(folder)
        with iterations_at(folder, Path(name) / "home") as (iteration,):
            rows = iteration.findings()
    cost, with_fault = 0.0, step_ns(job.settings)
    if job.fault:
        healthy = replace(job.settings, faults=Faults(), balanced_router=True)
        cost = (with_fault - step_ns(healthy)) / with_fault
    faults = [row for row in rows if row["class"] == "fault" and row["severity"] in ("finding", "note")]
    said = [row for row in leading(rows) if row["class"] == "fault"]
    first = said[0] if said else None
    rules = FAULTS[job.fault][1] if job.fault else ()
    gains = [first[name] for name in ("gain_ns", "gain_low_ns", "gain_high_ns")] if first else [None]
    return Outcome(
        job,
        cost,
        (faults[0]["severity"] + ": " + faults[0]["statement"]) if faults else "none",
        first is not None and names(first, job),
        first is not None and first["rule"] in rules,
        len(said),
        tuple(f"{row['rule']}: {row['statement']}" for row in said if not names(row, job)),
        None if None in gains else (gains[0] / with_fault, gains[1] / with_fault, gains[2] / with_fault),
    )


def _gain(one: Outcome) -> str:
    """What was predicted, of a fault that was named."""
    if not (one.counts and one.named):
        return ""
    if one.gain is None:
        return " · gain refused"
    gain, low, high = one.gain
    marks = {"OFF": not one.right, "OUTSIDE": not one.holds, "FAR": one.far}
    return " ".join([f" · gain {gain:.2%} ({low:.2%} to {high:.2%})", *(mark for mark, so in marks.items() if so)])


def _told(found: list[Outcome]) -> Iterator[str]:
    counted = [one for one in found if one.counts]
    healthy = [one for one in found if not one.job.fault or not FAULTS[one.job.fault][1]]
    said, wrong = sum(one.said for one in found), sum(len(one.wrong) for one in found)
    named = sum(one.named for one in counted)
    yield f"{len(found)} jobs; {len(counted)} with a fault that costs {LEAST_COST:.0%} of the step or more"
    if counted:
        by_rule = sum(one.named and one.by_rule for one in counted)
        yield f"first finding names the culprit in {named} ({named / len(counted):.1%}), by its own rule in {by_rule}"
    yield f"faults that lead: {said}, {wrong} of them name others ({1 - wrong / max(said, 1):.1%} precision)"
    yield f"{sum(not one.said for one in healthy)} of {len(healthy)} jobs in which nobody is at fault are quiet"
    known = [one for one in counted if one.named]
    said_gains = [one for one in known if one.gain]
    if said_gains:
        yield f"gains: {len(known) - len(said_gains)} of {len(known)} refused; of {len(said_gains)} right " + ", ".join(
            f"{what} {sum(which)} ({sum(which) / len(said_gains):.1%})"
            for what, which in (
                ("in the number", [one.right for one in said_gains]),
                ("in the bar", [one.holds for one in said_gains]),
                ("neither and far off", [one.far for one in said_gains]),
            )
        )
    for fault in FAULTS:
        of = [one for one in counted if one.job.fault == fault]
        if of:
            yield f"  {fault}: {sum(one.named for one in of)} of {len(of)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--seed", type=int, action="append", help="this job alone; may be repeated")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    seeds = given.seed or list(range(given.first_seed, given.first_seed + given.jobs))
    found: list[Outcome] = []
    with ProcessPoolExecutor(given.workers) as pool:
        for one in pool.map(one_job, seeds):
            found.append(one)
            missed = one.counts and not (one.named and one.by_rule)
            mark = "MISSED" if one.counts and not one.named else "WRONG" if one.wrong else "RULE" if missed else "ok"
            print(f"{mark} {one.job.name} · costs {one.cost:.2%}{_gain(one)}", flush=True)
            if mark != "ok" or given.seed:
                print(f"    first: {one.first}", flush=True)
                for wrong in one.wrong:
                    print(f"    wrong: {wrong}", flush=True)
    print("\n".join(_told(found)))
    counted = [one for one in found if one.counts]
    said, wrong = sum(one.said for one in found), sum(len(one.wrong) for one in found)
    quiet = all(not one.said for one in found if not one.job.fault)
    named = [one for one in counted if one.named]
    enough = len(named) >= 0.95 * len(counted)
    gains = [one for one in named if one.gain]
    true = len(gains) >= (1 - MOST_REFUSED) * len(named) and not any(one.far for one in gains)
    true &= min(sum(one.right for one in gains), sum(one.holds for one in gains)) >= LEAST_RIGHT * len(gains)
    return int(not (enough and wrong <= 0.01 * said and quiet and true))


if __name__ == "__main__":
    sys.exit(main())
