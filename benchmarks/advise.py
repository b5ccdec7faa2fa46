"""How right advice is: jobs, changes of schedule, chunks, micro-batches and layers, and the jobs that they make.

Sizes of micro-batches are predicted from two captures: the job, and the same with the size of ``Job.ratio``. Jobs on
nodes of few GPUs are predicted in Megatron-LM's other order of ranks.

Run: ``python -m benchmarks.advise``. It simulates each job once, analyses it the way the pipeline does, and predicts
the step with other settings from these traces alone. The true step is that of the simulator's model with the other
settings and the same seed. It prints the pairs and writes them to ``docs/accuracy.md``. ``--only PATTERN`` runs part of
it and writes nothing.

The exit code is 1 where fewer than ``LEAST_RIGHT`` of the predicted steps are within ``NEAR``, of the error bars hold
the true step, or of the orders of the best three, where they differ by over ``APART``, are right.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from benchmarks.accuracy_page import paragraph, write_advice
from benchmarks.drawn_faults import step_ns
from benchmarks.matrix import run_matrix
from benchmarks.what_if import what_if_of
from traceviz_dag.analyze.advice.placement import Placed, placed
from traceviz_dag.analyze.causes.gains import named_change
from traceviz_dag.analyze.causes.reordered import COMBINED, Change
from traceviz_dag.analyze.causes.resized import TwoSizes
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults, Recompute

COMMAND = "python -m benchmarks.advise"

NEAR, APART, LEAST_RIGHT = 0.03, 0.02, 0.9
BEST = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A job and what to change of it."""

    name: str
    settings: JobSettings
    changes: tuple[Change, ...]
    ratio: int | None = None
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """What was predicted of a change and what it makes of the step, ns; size: of micro-batches, over that of now."""

    change: Change
    predicted_ns: int
    low_ns: int
    high_ns: int
    true_ns: int
    microbatches: int
    size: int = 1
    rank_order: str | None = None

    @property
    def off(self) -> float:
        """How far off the prediction is, as a share of the true step."""
        return self.predicted_ns / self.true_ns - 1

    @property
    def held(self) -> bool:
        """Whether the error bar holds the true step."""
        return self.low_ns <= self.true_ns <= self.high_ns


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was predicted of a job, the fewest nanoseconds for a micro-batch first."""

    job: Job
    step_ns: int
    pairs: tuple[Pair, ...]

    @property
    def orders(self) -> list[bool]:
        """Of each two of the best that truly differ, whether the first is the faster one."""
        best = self.pairs[:BEST]
        each = [(one.true_ns / one.microbatches, other.true_ns / other.microbatches) for one, other in _twos(best)]
        return [first < second for first, second in each if abs(first / second - 1) > APART]


def _twos(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Pair]]:
    return itertools.combinations(pairs, 2)


_PIPELINE = JobSettings(seed=11, pp=4, layers=16, microbatches=8, hidden=2048, heads=16, feed_forward=8192)
_OVERLAP = "interleaved-overlapped"
_ZERO_BUBBLE = "zero-bubble"


def _all(*changes: Change) -> tuple[Change, ...]:
    return changes


def jobs() -> Iterator[Job]:
    """The jobs, and the changes of each."""
    two, four, overlapped = Change(chunks=2), Change(chunks=4), Change(chunks=2, schedule=_OVERLAP)
    lighter, both_lighter, more = Change(layers=(4, 5, 4, 3)), Change(layers=(3, 5, 5, 3)), Change(microbatches=16)
    yield Job("pp4 m8", _PIPELINE, (two, four, overlapped, lighter, both_lighter, more))
    slow = replace(_PIPELINE, faults=Faults(slow_gpu=1), seed=12)
    yield Job("pp4 m8 slow gpu 1", slow, _all(two, Change(layers=(5, 3, 4, 4)), Change(microbatches=12), four))
    interleaved = replace(_PIPELINE, vpp=2, seed=13)
    plain = Change(schedule="1f1b")
    others = _all(Change(schedule=_OVERLAP), Change(layers=(4, 6, 4, 2)), Change(16, chunks=1), Change(microbatches=4))
    yield Job("pp4 vpp2 m8", interleaved, (plain, four, *others))
    beside = replace(_PIPELINE, vpp=4, overlap_p2p=True, seed=14)
    changes = _all(two, Change(chunks=1), Change(schedule="interleaved"), Change(16, chunks=2))
    yield Job("pp4 vpp4 overlapped m8", beside, changes)
    wide = replace(_PIPELINE, pp=2, tp=2, dp=2, microbatches=4, layers=8, seed=15)
    changes = _all(two, four, Change(layers=(5, 3)), Change(8, chunks=2), Change(layers=(6, 2), chunks=2))
    yield Job("tp2 dp2 pp2 m4", wide, changes)
    uneven = replace(_PIPELINE, dp=2, stage_layers="6,4,4,2", seed=16)
    even = (4, 4, 4, 4)
    changes = _all(Change(layers=even), Change(layers=(4, 5, 5, 2)), two, Change(chunks=2, layers=even), more)
    yield Job("dp2 pp4 uneven m8", uneven, changes)
    again = replace(_PIPELINE, pp=2, layers=8, microbatches=6, recompute=Recompute.FULL, seed=17)
    yield Job("pp2 recompute m6", again, _all(two, Change(layers=(5, 3)), Change(12, chunks=4)))
    experts = replace(_PIPELINE, pp=2, ep=2, dp=2, layers=8, seed=18)
    yield Job("ep2 dp2 pp2 m8", experts, _all(two, Change(layers=(5, 3)), four, more))
    late = replace(_PIPELINE, overlap_grad_reduce=False)
    apart, both = Change(schedule=_ZERO_BUBBLE), Change(schedule=_ZERO_BUBBLE, layers=(3, 5, 5, 3))
    yield Job("pp4 m8, zero-bubble", replace(late, seed=21), _all(apart, both, Change(16, schedule=_ZERO_BUBBLE)))
    yield Job("dp2 pp4 vpp2 m8, zero-bubble", replace(late, dp=2, vpp=2, seed=22), _all(apart, both))
    yield Job("ep2 dp2 pp2 m8, zero-bubble", replace(late, pp=2, ep=2, dp=2, layers=8, seed=23), _all(apart))
    spread = replace(_PIPELINE, layers=8)
    yield Job("pp4 m8 on nodes of 2", replace(spread, node_size=2, seed=28), _all(two))
    yield Job("dp2 pp4 m8 on nodes of 4", replace(spread, dp=2, node_size=4, seed=29), _all(two))
    joined = Change(schedule=COMBINED)
    yield Job("ep2 dp2 m8", replace(experts, pp=1, layers=4, seed=24), _all(joined))
    yield Job("ep2 dp2 pp2 m8, combined", replace(experts, seed=25), _all(replace(joined, chunks=2)))
    beside = replace(_PIPELINE, ep=2, dp=2, vpp=2, overlap_p2p=True, faults=Faults(slow_gpu=1), seed=26)
    changes = _all(joined, replace(joined, layers=(4, 6, 4, 2)))
    yield Job("ep2 dp2 pp4 vpp2 overlapped m8 slow gpu 1", beside, changes)
    across = replace(experts, pp=1, ep=4, dp=4, layers=4, node_size=2, seed=27)
    yield Job("ep4 dp4 on nodes of 2 m8", across, _all(joined))
    deep = replace(_PIPELINE, pp=8, layers=32, microbatches=16, hidden=1024, heads=8, feed_forward=4096, seed=19)
    halved = Change(microbatches=8)
    for name, job in (
        ("pp4 m16", _PIPELINE),
        ("pp4 vpp2 m16", interleaved),
        ("tp2 dp2 pp2 m16", wide),
        ("ep2 dp2 pp2 m16", experts),
        ("m16", replace(_PIPELINE, pp=1, layers=4, seed=20)),
    ):
        yield Job(f"{name}, beside size 4", replace(job, microbatches=16), (halved,), ratio=4)
    # Groups of replicas, or messages, run both inside nodes and across them, so that the other order is predicted.
    nodes = replace(_PIPELINE, dp=3, layers=8, vocabulary=8192, node_size=4)
    for name, job in (
        ("dp3 pp4 on nodes of 4", nodes),
        ("dp2 pp4 on nodes of 3", replace(nodes, dp=2, node_size=3)),
        ("dp5 pp4 on nodes of 8", replace(nodes, dp=5, node_size=8)),
        ("dp4 pp3 on nodes of 6", replace(nodes, dp=4, pp=3, layers=9, node_size=6)),
        ("tp2 dp3 pp2 on nodes of 4", replace(nodes, tp=2, pp=2)),
    ):
        yield Job(name, job, (), placed=True)
    yield Job("pp8 m16", deep, _all(two, Change(layers=(4, 4, 4, 4, 4, 4, 5, 3)), Change(None, _OVERLAP, 4)))


def changed(settings: JobSettings, change: Change, size: int = 1) -> JobSettings:
    """The settings of a job with a change, and micro-batches ``size`` times as large."""
    chunks = change.chunks or (1 if change.schedule in ("1f1b", _ZERO_BUBBLE) else settings.vpp)
    overlapped = settings.overlap_p2p if change.schedule is None else change.schedule in (_OVERLAP, COMBINED)
    return replace(
        settings,
        microbatches=change.microbatches or settings.microbatches,
        batch=settings.batch * size,
        vpp=chunks,
        overlap_p2p=overlapped and chunks > 1,
        zero_bubble=change.schedule == _ZERO_BUBBLE,
        overlap_expert=settings.overlap_expert or change.schedule == COMBINED,
        no_recompute=change.no_recompute or settings.no_recompute,
        stage_layers=",".join(map(str, change.layers)) if change.layers else settings.stage_layers,
    )


def outcome(job: Job, folder: Path) -> Outcome:
    """Predict one job's changes, and see what they make of it."""
    if job.placed:
        return _in_the_other_order(job, folder)
    what_if, sized = what_if_of(job.settings, folder / "job"), None
    if job.ratio is not None:
        larger = changed(job.settings, Change(microbatches=job.settings.microbatches // job.ratio), job.ratio)
        sized = TwoSizes(what_if, what_if_of(larger, folder / "larger"), Fraction(job.ratio))
    pairs = []
    for change in job.changes:
        size = job.settings.microbatches // (change.microbatches or 1) if sized else 1
        row = sized.as_row(change, Fraction(size)) if sized else what_if.predict(what_if.reorder(change)).as_row()
        then = changed(job.settings, change, size)
        then.validate()
        predicted, low, high = (row["step_ns"] - row[name] for name in ("gain_ns", "gain_high_ns", "gain_low_ns"))
        pairs.append(Pair(change, predicted, low, high, step_ns(then), then.microbatches * size, size))
    ranked = tuple(sorted(pairs, key=lambda pair: pair.predicted_ns / pair.microbatches))
    return Outcome(job, what_if.step_ns, ranked)


def _in_the_other_order(job: Job, folder: Path) -> Outcome:
    simulate(job.settings, folder / "job", workers=1)
    with iterations_at(folder / "job", folder / "home") as (iteration,):
        steps = ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages"))
        found = placed(iteration.topology, iteration.nodes(), [one.what_if() for one in steps])
    assert isinstance(found, Placed), found
    step, gain, low, high = found.gains
    true_ns = step_ns(replace(job.settings, order="tp-cp-ep-pp-dp"))
    count = job.settings.microbatches
    pair = Pair(Change(), step - gain, step - high, step - low, true_ns, count, rank_order=found.order)
    return Outcome(job, step, (pair,))


def markdown(found: Sequence[Outcome], seconds: float) -> str:
    """The part of the page on advice."""
    pairs = [pair for one in found for pair in one.pairs]
    near, held, orders = _right(found)
    lines = [
        paragraph(
            f"`{COMMAND}` ({seconds:.0f} s on one core) predicts {len(pairs)} changes from the traces of {len(found)} "
            "simulated jobs, and simulates each change from the same seed. Other sizes of micro-batches are predicted "
            "from the traces of two sizes. "
            f"{near:.0%} of the predicted steps are within {NEAR:.0%} of the true one, and {held:.0%} of the error "
            f"bars include it. Where two of a job's best three changes truly differ by over {APART:.0%} per "
            f"micro-batch, the one predicted to be faster is faster in {orders:.0%} of the pairs."
        ),
        "",
        "| job | change | step ms | predicted ms | error bar ms | true ms | off by |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*lines, *map(_rows, found)])


def _right(found: Sequence[Outcome]) -> tuple[float, float, float]:
    pairs = [pair for one in found for pair in one.pairs]
    orders = [right for one in found for right in one.orders]
    near = [abs(pair.off) <= NEAR for pair in pairs]
    return tuple(sum(each) / max(len(each), 1) for each in (near, [pair.held for pair in pairs], orders))  # type: ignore[return-value]


def _rows(one: Outcome) -> str:
    return "\n".join(_row(one, pair) for pair in one.pairs)


def _row(one: Outcome, pair: Pair) -> str:
    size = pair.size if pair.size > 1 else None
    words = named_change({**pair.change.as_row(), "microbatch_size": size, "rank_order": pair.rank_order})
    bar = f"{pair.low_ns / 1e6:.1f} to {pair.high_ns / 1e6:.1f}{'' if pair.held else ', misses'}"
    times = f"{one.step_ns / 1e6:.3f} | {pair.predicted_ns / 1e6:.3f} | {bar} | {pair.true_ns / 1e6:.3f}"
    return f"| {one.job.name} | {words} | {times} | {pair.off:+.1%} |"


def main() -> int:
    """Run the jobs."""
    about = (__doc__ or "").splitlines()[0]
    found = run_matrix(about, jobs(), outcome, _rows, markdown, write_advice)
    return 0 if min(_right(found)) >= LEAST_RIGHT else 1


if __name__ == "__main__":
    sys.exit(main())
