"""Does the first finding name the culprit, in jobs whose layout, fault, strength and seed are drawn?

Run: ``python -m benchmarks.drawn_faults --jobs 100 --first-seed 9000``. A quarter of the jobs is healthy. What a fault
really costs is the model's step with it less that without. A fault counts where that is 1 % of the step or more; the
first fault that leads ``traceviz findings`` must then name the ranks which have it. *Precision* is of all faults that
lead, healthy jobs included. The gain that it predicts is held against the cost: it is right within 10 % of that or .2 %
of the step, its bar where it holds the cost. The same seed draws the same job.

``--thin`` draws on: an older PyTorch, CUDA graphs, a model so small that the host decides, communication that does not
overlap, other layers, rows of synchronisation, and a second fault in 2 of 5 jobs that have one. Of two faults either
may lead; each must lead somewhere.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import take_groups_out
from traceviz_dag.analyze.findings.losses import label, leading
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.rank_grids import dense_grid
from traceviz_dag.simulate.settings import Dispatcher, Era, Faults, Graphs, Transformer
from traceviz_dag.simulate.timing.model import Model
from traceviz_dag.simulate.work.faults import culprits, refuse_idle_faults
from traceviz_dag.spans import unspanned

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
    """A drawn job; ``faults`` has the settings of each fault that it has, none where it is healthy."""

    seed: int
    layout: str
    faults: Mapping[str, Mapping[str, Any]]
    settings: JobSettings
    groups: bool

    @property
    def name(self) -> str:
        """It in a line."""
        shown = ", ".join(f"{name} {_short(value)}" for fault in self.faults.values() for name, value in fault.items())
        usual = LAYOUTS.get(self.layout, self.settings)
        values = {name: getattr(self.settings, name) for name in _THIN}
        thin = [f"{name} {_short(value)}" for name, value in values.items() if value != getattr(usual, name)]
        how = ["stacks" if self.settings.stacks else "no stacks", *([] if self.groups else ["no groups"]), *thin]
        return f"seed {self.seed} · {self.layout} · {shown or 'healthy'} · {', '.join(how)}"

    def of(self, *faults: str) -> JobSettings:
        """The job with these of its faults alone."""
        return _with(self.settings, {fault: self.faults[fault] for fault in faults})

    def without(self, *faults: str) -> JobSettings:
        """The job without some of its faults."""
        return self.of(*(name for name in self.faults if name not in faults))


def _with(settings: JobSettings, faults: Mapping[str, Mapping[str, Any]]) -> JobSettings:
    values = {name: value for drawn in faults.values() for name, value in drawn.items()}
    return replace(settings, faults=Faults(**values), balanced_router="expert_imbalance" not in faults)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of one fault of a job.

    Attributes:
        fault: which. cost: of the step, truly.
        place: of the first of the faults that lead which names it; None: none does. by_rule: by a rule for it.
        gain: what that predicts that a fix saves, and the least and most; shares of the step, None where it refuses.
    """

    fault: str
    cost: float
    place: int | None
    by_rule: bool
    gain: tuple[float, float, float] | None

    @property
    def counts(self) -> bool:
        """Whether the fault must be named."""
        return bool(FAULTS[self.fault][1]) and self.cost >= LEAST_COST

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

    def __str__(self) -> str:
        costs = f"{self.fault} costs {self.cost:.2%}"
        if not self.counts or self.place is None:
            return costs
        if self.gain is None:
            return f"{costs}, gain refused"
        gain, low, high = self.gain
        marks = {"OFF": not self.right, "OUTSIDE": not self.holds, "FAR": self.far}
        shown = [mark for mark, so in marks.items() if so]
        return " ".join([f"{costs}, gain {gain:.2%} ({low:.2%} to {high:.2%})", *shown])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was said of a job.

    Attributes:
        verdicts: of each of its faults. first: the first fault that is said.
        said, wrong: faults that lead, and those that name others.
    """

    job: Job
    verdicts: tuple[Verdict, ...]
    first: str
    said: int
    wrong: tuple[str, ...]

    @property
    def counted(self) -> list[Verdict]:
        """Of the faults that must be named."""
        return [one for one in self.verdicts if one.counts]

    @property
    def named(self) -> list[Verdict]:
        """Of those that are; where one must be named, none is unless one leads."""
        named = [one for one in self.counted if one.place is not None]
        return named if any(one.place == 0 for one in self.verdicts) else []

    @property
    def mark(self) -> str:
        """It in a word."""
        if len(self.named) < len(self.counted):
            return "MISSED"
        return "WRONG" if self.wrong else "ok" if all(one.by_rule for one in self.named) else "RULE"


def drawn_job(seed: int) -> Job:
    """The job of a seed."""
    draw = random.Random(seed)
    fault = draw.choice(list(FAULTS)) if draw.random() < 0.75 else ""
    while True:
        job = _job_with(draw, fault, LAYOUTS, seed)
        if job is not None:
            return job


def drawn_fault(draw: random.Random, layouts: Mapping[str, JobSettings], seed: int) -> Job:
    """A job of other layouts, with call stacks and process groups: one in four is healthy."""
    while True:
        fault = draw.choice(list(FAULTS)) if draw.random() < 0.75 else ""
        job = _job_with(draw, fault, layouts, seed)
        if job is not None:
            return replace(job, settings=replace(job.settings, stacks=True), groups=True)


def _job_with(draw: random.Random, fault: str, layouts: Mapping[str, JobSettings], seed: int) -> Job | None:
    """A job with one fault, or with none; None where nobody could tell that the fault is one."""
    layout = draw.choice(list(layouts))
    settings = replace(layouts[layout], seed=seed, stacks=draw.random() < 0.6, balanced_router=True)
    groups = draw.random() < 0.8
    if not fault:
        return Job(seed, layout, {}, settings, groups)
    drawn = _drawn(draw, fault, settings)
    if drawn is None or not _possible(_with(settings, {fault: drawn})):
        return None
    return Job(seed, layout, {fault: drawn}, _with(settings, {fault: drawn}), groups)


def _drawn(draw: random.Random, fault: str, settings: JobSettings) -> Mapping[str, Any] | None:
    """A fault of a job; None where nobody could tell that it is one."""
    of = {"slow_node": -(-settings.world // settings.node_size), "slow_stage": settings.pp}
    drawn = FAULTS[fault][0](draw, of.get(fault, settings.world))
    # A group of one rank is that rank; all nodes or stages are the job; and a link of the job's only group is held
    # against nothing.
    alone = (fault, settings.tp) == ("slow_group", 1) or of.get(fault) == 1
    return None if alone or (fault == "slow_link" and settings.dp == settings.world) else drawn


def _possible(settings: JobSettings) -> bool:
    try:
        settings.validate()
        refuse_idle_faults(settings)
    except UsageError:
        return False
    return True


_THIN: dict[str, tuple[Any, ...]] = {
    "era": (Era.TORCH_2_7, Era.TORCH_2_7, Era.TORCH_2_4, Era.TORCH_2_3),
    "cuda_graphs": (Graphs.NONE, Graphs.NONE, Graphs.NONE, Graphs.LAYER, Graphs.ITERATION),
    "hidden": (4096, 4096, 1024),
    "overlap_p2p": (False, True),
    "overlap_grad_reduce": (True, True, False),
    "overlap_param_gather": (True, True, False),
    "transformer": (Transformer.TRANSFORMER_ENGINE, Transformer.LOCAL),
    "dispatcher": (Dispatcher.ALL_TO_ALL, Dispatcher.DEEPEP),
    "cuda_sync": (False, False, True),
    "persistent": (False, False, False, True),
}
"""What a thin job is drawn from."""


def thin_job(seed: int) -> Job:
    """The job of a seed with less, or other, evidence, and perhaps a second fault."""
    job = drawn_job(seed)
    draw = random.Random(-1 - seed)
    while True:
        faults = dict(job.faults)
        settings = replace(job.settings, **{name: draw.choice(values) for name, values in _THIN.items()})
        if settings.hidden != LAYOUTS[job.layout].hidden:
            settings = replace(settings, heads=8, feed_forward=4 * settings.hidden)
        if faults and draw.random() < 0.4:
            second = draw.choice([name for name in FAULTS if name not in faults])
            # Bursts come by the clock: what another fault costs depends on which transfers they then meet.
            if "bursts" in (second, *faults):
                continue
            drawn = _drawn(draw, second, settings)
            if drawn is None:
                continue
            faults[second] = drawn
        settings = _with(settings, faults)
        # Each must be possible alone, too: else what the other costs could not be told.
        if _possible(settings) and all(_possible(_with(settings, {fault: faults[fault]})) for fault in faults):
            return Job(seed, job.layout, faults, settings, job.groups)


def step_ns(settings: JobSettings) -> int:
    """How long the model's step takes, from the first host that begins to the last kernel that ends."""
    model = Model(settings)
    times = model.step(settings.first_iteration)
    return int(max(one.ends.max() for one in times) - min(np.min(one.marks[:1]) for one in times))


def culprit_ranks(settings: JobSettings) -> frozenset[int]:
    """The ranks that have the job's only fault."""
    grid = dense_grid(settings)
    stage_of = {rank: grid.place(rank)["pp"] for rank in range(settings.world)}
    (culprit,) = culprits(settings, stage_of)
    if culprit.fault == "bad_stage_split":
        return frozenset(rank for rank, stage in stage_of.items() if stage == 0)
    return frozenset(culprit.ranks)


def names(row: Mapping[str, Any], job: Job, fault: str) -> bool:
    """Whether a finding names the culprit: its ranks; of a link, also a group of ranks that has it."""
    if fault == "varying_sequences":
        return False
    if fault == "bursts":
        return bool(row["rule"] == "congestion")
    if fault == "expert_imbalance":
        return bool(row["rule"] == "expert_load")
    ranks, grid = culprit_ranks(job.of(fault)), dense_grid(job.settings)
    if row["rank"] is not None:
        mine = {row["rank"]}
        mine |= {rank for rank in ranks if f"or of rank {rank}" in row["statement"]}
    elif row["group_ranks"] is not None:
        mine = set(unspanned(row["group_ranks"]))
    elif row["stage"] is not None:
        mine = {rank for rank in range(job.settings.world) if grid.place(rank)["pp"] == row["stage"]}
    else:
        return False
    if fault in ("slow_link", "slow_nic"):
        return ranks <= mine and row["rule"] == "slow_link"
    return mine == ranks


def one_job(job: Job) -> Outcome:
    """Simulate a job, and ask what is wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = simulate(job.settings, Path(name) / "run", workers=1)
        if not job.groups:
            take_groups_out(folder)
        with iterations_at(folder, Path(name) / "home") as (iteration,):
            rows = iteration.findings()
    faults = [row for row in rows if row["class"] == "fault" and row["severity"] in ("finding", "note")]
    said = [row for row in leading(rows) if label(row).startswith("fault")]
    with_faults = step_ns(job.settings)
    return Outcome(
        job,
        tuple(_verdict(job, fault, with_faults, said) for fault in job.faults),
        (faults[0]["severity"] + ": " + faults[0]["statement"]) if faults else "none",
        len(said),
        tuple(
            f"{row['rule']}: {row['statement']}"
            for row in said
            if not any(names(row, job, fault) for fault in job.faults)
        ),
    )


def _verdict(job: Job, fault: str, with_faults: int, said: Sequence[Mapping[str, Any]]) -> Verdict:
    """Of the faults that lead, what names this one: by a rule for it, before any other, where two have one culprit."""
    named = [place for place, row in enumerate(said) if names(row, job, fault)]
    by_rule = [place for place in named if said[place]["rule"] in FAULTS[fault][1]]
    gain, removed = None, {fault}
    if named:
        row = said[(by_rule or named)[0]]
        gains = [row[name] for name in ("gain_ns", "gain_low_ns", "gain_high_ns")]
        gain = None if None in gains else (gains[0] / with_faults, gains[1] / with_faults, gains[2] / with_faults)
        # One fix may remove both, such as other GPUs in the place of those that are slow in two ways.
        mine = culprit_ranks(job.of(fault))
        by_it = {other for other in job.faults if other != fault and row["rule"] in FAULTS[other][1]}
        removed |= {other for other in by_it if culprit_ranks(job.of(other)) <= mine}
    costs = [(with_faults - step_ns(job.without(*which))) / with_faults for which in ({fault}, removed)]
    cost = min(costs, key=lambda one: abs(one - gain[0])) if gain else costs[0]
    return Verdict(fault, cost, named[0] if named else None, bool(by_rule), gain)


def _told(found: list[Outcome]) -> Iterator[str]:
    counted = [one for job in found for one in job.counted]
    named = [one for job in found for one in job.named]
    healthy = [one for one in found if not any(FAULTS[fault][1] for fault in one.job.faults)]
    said, wrong = sum(one.said for one in found), sum(len(one.wrong) for one in found)
    yield f"{len(found)} jobs; {len(counted)} faults that cost {LEAST_COST:.0%} of the step or more"
    if counted:
        by_rule = sum(one.by_rule for one in named)
        share = len(named) / len(counted)
        yield f"findings, the first of them of a culprit, name {len(named)} ({share:.1%}), by their own rule {by_rule}"
    yield f"faults that lead: {said}, {wrong} of them name others ({1 - wrong / max(said, 1):.1%} precision)"
    yield f"{sum(not one.said for one in healthy)} of {len(healthy)} jobs in which nobody is at fault are quiet"
    gains = [one for one in named if one.gain]
    if gains:
        yield f"gains: {len(named) - len(gains)} of {len(named)} refused; of {len(gains)} right " + ", ".join(
            f"{what} {sum(which)} ({sum(which) / len(gains):.1%})"
            for what, which in (
                ("in the number", [one.right for one in gains]),
                ("in the bar", [one.holds for one in gains]),
                ("neither and far off", [one.far for one in gains]),
            )
        )
    for fault in FAULTS:
        of = [one for one in counted if one.fault == fault]
        if of:
            yield f"  {fault}: {sum(one.fault == fault for one in named)} of {len(of)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--seed", type=int, action="append", help="this job alone; may be repeated")
    parser.add_argument("--thin", action="store_true", help="with less or other evidence, and two faults")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    seeds = given.seed or list(range(given.first_seed, given.first_seed + given.jobs))
    found: list[Outcome] = []
    with ProcessPoolExecutor(given.workers) as pool:
        for one in pool.map(one_job, map(thin_job if given.thin else drawn_job, seeds)):
            found.append(one)
            print(" · ".join([f"{one.mark} {one.job.name}", *map(str, one.verdicts)]), flush=True)
            if one.mark != "ok" or given.seed:
                print(f"    first: {one.first}", flush=True)
                for other in one.wrong:
                    print(f"    wrong: {other}", flush=True)
    print("\n".join(_told(found)))
    counted = [one for job in found for one in job.counted]
    named = [one for job in found for one in job.named]
    said, wrong = sum(one.said for one in found), sum(len(one.wrong) for one in found)
    quiet = all(not one.said for one in found if not one.job.faults)
    gains = [one for one in named if one.gain]
    true = len(gains) >= (1 - MOST_REFUSED) * len(named) and not any(one.far for one in gains)
    true &= min(sum(one.right for one in gains), sum(one.holds for one in gains)) >= LEAST_RIGHT * len(gains)
    return int(not (len(named) >= 0.95 * len(counted) and wrong <= 0.01 * said and quiet and true))


if __name__ == "__main__":
    sys.exit(main())
