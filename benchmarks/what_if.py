"""How right predictions are: jobs, edits, and the same jobs simulated as the edits would have them.

Run: ``python benchmarks/what_if.py`` (a few minutes on two cores). It simulates each job from one seed with and without
its faults, or with the other order of work that is asked about, analyses both the way the pipeline does, predicts the
second step from the traces of the first alone, prints the table and writes it to ``docs/accuracy.md``.
``--only PATTERN`` runs part of it and writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy_page import paragraph, write_predictions
from benchmarks.matrix import run_matrix
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Era, Faults, Graphs, Transformer

COMMAND = "python benchmarks/what_if.py"

GAIN_SHARE, STEP_SHARE = 0.1, 0.002
"""A prediction is right within the larger of these shares of the true gain and of the step."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job, edits of it, and the job as the edits would have it."""

    name: str
    settings: JobSettings
    fixed: JobSettings
    edits: Callable[[WhatIf], list[Edit]]
    words: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was predicted for a case and what happened, ns."""

    case: Case
    step_ns: int
    gain_ns: int
    low_ns: int
    high_ns: int
    true_gain_ns: int

    @property
    def allowed_ns(self) -> float:
        """How far off the prediction may be."""
        return max(GAIN_SHARE * abs(self.true_gain_ns), STEP_SHARE * self.step_ns)

    @property
    def held(self) -> bool:
        """Whether the error bar holds the true gain."""
        return self.low_ns <= self.true_gain_ns <= self.high_ns

    @property
    def right(self) -> bool:
        """Whether it is near enough."""
        return abs(self.gain_ns - self.true_gain_ns) <= self.allowed_ns


def _fix(*ranks: int) -> Callable[[WhatIf], list[Edit]]:
    return lambda what_if: [what_if.fix_rank(rank) for rank in ranks]


def _link(rank: int) -> Callable[[WhatIf], list[Edit]]:
    return lambda what_if: [what_if.fix_link(rank)]


def _general(*names: str) -> Callable[[WhatIf], list[Edit]]:
    return lambda what_if: [edit for edit in what_if.general() if edit.name in names]


def _both(*parts: Callable[[WhatIf], list[Edit]]) -> Callable[[WhatIf], list[Edit]]:
    return lambda what_if: [edit for part in parts for edit in part(what_if)]


def _reorder(microbatches: int | None = None, schedule: str | None = None) -> Callable[[WhatIf], list[Edit]]:
    return lambda what_if: [what_if.reorder(Change(microbatches, schedule))]


def _fixed(name: str, settings: JobSettings, faults: Faults, edits: Callable[[WhatIf], list[Edit]], words: str) -> Case:
    """A job with faults, and edits that fix them."""
    return Case(name, replace(settings, faults=faults), settings, edits, words)


_PLAIN = JobSettings(seed=3, iterations=1)
_PIPELINE = replace(_PLAIN, pp=4, microbatches=8, layers=8)
_GRID = replace(_PLAIN, tp=2, dp=2, pp=2, microbatches=4, layers=4)
_REPLICAS = replace(_PLAIN, pp=2, dp=2, microbatches=4, layers=8)
_EXPERTS = replace(_PLAIN, ep=4, dp=4, microbatches=2, layers=4)
_COMBINED = replace(_PLAIN, ep=2, dp=2, pp=2, vpp=2, microbatches=4, layers=4, overlap_expert=True)


def cases() -> Iterator[Case]:
    """The matrix: every parallel dimension and schedule; one fault, two at once, and other orders of work."""
    yield from _faults()
    yield from _several_faults()
    yield from _orders()


def _faults() -> Iterator[Case]:
    for stage in range(4):
        name = f"pp4 slow gpu {stage}"
        yield _fixed(name, _PIPELINE, Faults(slow_gpu=stage), _fix(stage), f"fix rank {stage}")
    yield _fixed("pp4 split", _PIPELINE, Faults(bad_stage_split=1), _general("even_layers"), "even layers")
    unseen = replace(_PIPELINE, stacks=False)
    yield _fixed("pp4 split, no stacks", unseen, Faults(bad_stage_split=3), _general("even_layers"), "even layers")
    # Launches follow the layers, and the host is hardly ahead of the GPU.
    narrow = replace(_PIPELINE, hidden=1024, heads=8, feed_forward=4096, layers=12, seed=7003)
    yield _fixed("pp4 split, small hidden", narrow, Faults(bad_stage_split=2), _general("even_layers"), "even layers")
    two_stages = replace(_PLAIN, pp=2, microbatches=6, layers=8)
    yield _fixed("pp2 split", two_stages, Faults(bad_stage_split=1), _general("even_layers"), "even layers")
    yield _fixed("pp4 stall 0", _PIPELINE, Faults(data_stall=0), _fix(0), "fix rank 0")
    # A node a stage: sends between them, and roots of broadcasts, do not wait for who receives.
    nodes = replace(_PIPELINE, tp=2, node_size=2, buffered_sends=True, clock_skew_ms=4.0)
    yield _fixed("tp2 pp4 over nodes stall 0", nodes, Faults(data_stall=0), _fix(0), "fix rank 0")
    yield _fixed("tp2 pp4 over nodes slow gpu 4", nodes, Faults(slow_gpu=4), _fix(4), "fix rank 4")
    collection = Faults(garbage_collection=2)
    yield _fixed("pp4 collection 2", _PIPELINE, collection, _general("no_pauses"), "no pauses of hosts")
    yield _fixed("tp2 dp2 pp2 slow gpu 3", _GRID, Faults(slow_gpu=3), _fix(3), "fix rank 3")
    yield _fixed("tp2 dp2 pp2 slow gpu 6", _GRID, Faults(slow_gpu=6), _fix(6), "fix rank 6")
    yield _fixed("tp2 dp2 pp2 slow link 1", _GRID, Faults(slow_link=1), _link(1), "fix link of rank 1")
    # The embedding's bucket of gradients has a size that no other stage reduces.
    slow = Faults(slow_link=1, slow_link_factor=7.5)
    yield _fixed("dp2 pp2 slow link 1", _REPLICAS, slow, _link(1), "fix link of rank 1")
    yield _fixed("tp2 dp2 pp2 collection 5", _GRID, Faults(garbage_collection=5), _fix(5), "fix rank 5")
    # Nothing but when it starts shows what a kernel of torch 2.3 waited for.
    old = replace(_PLAIN, tp=2, pp=2, microbatches=2, layers=4, era=Era.TORCH_2_3, seed=61489)
    old = replace(old, overlap_grad_reduce=False, overlap_param_gather=False)
    yield _fixed("tp2 pp2 torch 2.3 collection 1", old, Faults(garbage_collection=1), _fix(1), "fix rank 1")
    data = replace(_PLAIN, dp=4, microbatches=2, layers=4)
    yield _fixed("dp4 slow gpu 1", data, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    yield _fixed("dp4 stall 2", data, Faults(data_stall=2), _fix(2), "fix rank 2")
    # Slow in 3 of 8 micro-batches, in one kind of work, and by another kernel.
    throttled = Faults(throttle=1, throttle_from_ms=20.0, throttle_to_ms=50.0, throttle_factor=1.8)
    parts = {"throttled gpu": throttled, "slow memory": Faults(slow_memory=1), "algorithm": Faults(other_algorithm=1)}
    parts["tiny kernels"] = Faults(tiny_kernels=1, tiny_kernels_count=1000)
    several = replace(data, microbatches=8, layers=2, dp=3)
    for name, faults in parts.items():
        yield _fixed(f"dp3 {name} 1", several, faults, _fix(1), "fix rank 1")
    varying = replace(data, hidden=2048, sequence=1024, faults=Faults(varying_sequences=0.22))
    tiny = replace(varying, faults=replace(varying.faults, tiny_kernels=1))
    yield Case("dp4 varying sequences, tiny kernels 1", tiny, varying, _fix(1), "fix rank 1")
    # One launch runs the pass: no call shows what a communication waits for, and on three ranks none waits for it.
    graph = replace(data, hidden=1024, heads=8, feed_forward=4096, microbatches=4, stacks=False)
    graph = replace(graph, cuda_graphs=Graphs.ITERATION, transformer=Transformer.LOCAL)
    throttled = Faults(throttle=0, throttle_from_ms=33.0, throttle_to_ms=99.0, throttle_factor=1.64)
    yield _fixed("dp4 whole graph throttled gpu 0", graph, throttled, _fix(0), "fix rank 0")
    tensor = replace(_PLAIN, tp=4, microbatches=2, layers=4)
    yield _fixed("tp4 slow gpu 2", tensor, Faults(slow_gpu=2), _fix(2), "fix rank 2")
    context = replace(_PLAIN, cp=2, dp=2, microbatches=2, layers=4)
    yield _fixed("cp2 dp2 slow gpu 1", context, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    yield _fixed("ep4 dp4 slow gpu 3", _EXPERTS, Faults(slow_gpu=3), _fix(3), "fix rank 3")
    yield _fixed("pp4 vpp2 slow gpu 1", replace(_PIPELINE, vpp=2), Faults(slow_gpu=1), _fix(1), "fix rank 1")
    yield _fixed("combined ep2 pp2 slow gpu 1", _COMBINED, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    # A small model, whose host is hardly ahead of the GPU.
    small = replace(_PLAIN, dp=2, microbatches=4, layers=4, hidden=1024, heads=8, feed_forward=4096)
    for name, waits in (("wait", Faults(hidden_synchronisation=1)), ("pageable copy", Faults(pageable_copy=1))):
        edit = _general("no_hidden_waits")
        yield _fixed(f"dp2 small hidden {name}", small, waits, edit, "no hidden waits")
    yield _fixed("dp4 graph break 1", data, Faults(graph_break=1), _fix(1), "fix rank 1")


def _several_faults() -> Iterator[Case]:
    two = Faults(slow_gpu=1, garbage_collection=2)
    yield _fixed("pp4 slow gpu 1, collection 2", _PIPELINE, two, _both(_fix(1), _general("no_pauses")), "both")
    stalls = replace(_GRID, stacks=False, era=Era.TORCH_2_3, faults=Faults(data_stall=0))
    slow = replace(stalls, faults=Faults(data_stall=0, slow_group=1))
    yield Case("tp2 dp2 pp2 slow group, stall", slow, stalls, lambda one: [one.fix_ranks("fix_group", [0, 1])], "group")
    one = replace(_GRID, stacks=False, seed=75006, faults=Faults(slow_gpu=3, garbage_collection=3))
    pauses, slow = (replace(one, faults=each) for each in (Faults(garbage_collection=3), Faults(slow_gpu=3)))
    yield Case("tp2 dp2 pp2 slow gpu 3 beside its pause", one, pauses, lambda it: [it.fix_gpu(3)], "GPU of rank 3")
    yield Case("tp2 dp2 pp2 pause 3 beside its slow gpu", one, slow, lambda it: [it.no_pauses(3)], "host of rank 3")
    two = Faults(slow_gpu=3, slow_link=4)
    yield _fixed("tp2 dp2 pp2 slow gpu 3, link 4", _GRID, two, _both(_fix(3), _link(4)), "both")
    for name, job in (("ep4 dp4 uneven", _EXPERTS), ("combined ep2 pp2 uneven", _COMBINED)):
        uneven, even = replace(job, faults=Faults(expert_imbalance=0.3)), replace(job, balanced_router=True)
        yield Case(name, uneven, even, _general("balanced_experts"), "balanced experts")


def _orders() -> Iterator[Case]:
    interleaved = replace(_PIPELINE, vpp=2)
    for name, job, count in (
        ("pp4 m8", _PIPELINE, 16),
        ("pp4 m8", _PIPELINE, 4),
        ("pp4 m8", _PIPELINE, 2),
        ("pp4 m8 slow gpu 2", replace(_PIPELINE, faults=Faults(slow_gpu=2)), 16),
        ("pp4 vpp2 m8", interleaved, 16),
        ("tp2 dp2 pp2 m4", _GRID, 8),
        ("dp4 m2", replace(_PLAIN, dp=4, microbatches=2, layers=4), 4),
        ("combined ep2 pp2 m8", replace(_COMBINED, microbatches=8), 16),
    ):
        yield Case(f"{name} to {count}", job, replace(job, microbatches=count), _reorder(count), f"m {count}")
    yield Case("pp4 vpp2 to 1f1b", interleaved, _PIPELINE, _reorder(schedule="1f1b"), "1F1B")
    yield Case("dp2 pp2 vpp2 to 1f1b", replace(_REPLICAS, vpp=2), _REPLICAS, _reorder(schedule="1f1b"), "1F1B")
    overlapped = replace(interleaved, overlap_p2p=True)
    words = "interleaved, overlapped"
    yield Case("pp4 vpp2 to overlap", interleaved, overlapped, _reorder(schedule="interleaved-overlapped"), words)
    both, more = _reorder(16, "1f1b"), replace(_PIPELINE, microbatches=16)
    yield Case("pp4 vpp2 overlap m8 to 1f1b m16", overlapped, more, both, "1F1B, m 16")


def outcome(case: Case, folder: Path) -> Outcome:
    """Predict one case, and see what happens."""
    before, after = what_if_of(case.settings, folder / "before"), what_if_of(case.fixed, folder / "after")
    one = before.predict(*case.edits(before))
    return Outcome(case, one.step_ns, one.gain_ns, one.gain_low_ns, one.gain_high_ns, before.step_ns - after.step_ns)


def what_if_of(settings: JobSettings, folder: Path) -> WhatIf:
    """What edits of a simulated job's one step predict; its traces are written into a new folder."""
    simulate(settings, folder, workers=1)
    with iterations_at(folder, folder.parent / "home") as (iteration,):
        tables = (iteration.table("collectives"), iteration.table("messages"))
        (ranked,) = ranked_steps(iteration, *tables)
        return WhatIf(ranked.step, ranked.stages)


def markdown(found: Sequence[Outcome], seconds: float) -> str:
    """The part of the page on predictions."""
    right = sum(one.right for one in found)
    lines = [
        paragraph(
            f"`{COMMAND}` ({seconds:.0f} s on two cores) simulates each job twice from one seed: as it is, and "
            "without its fault, with m micro-batches or with another schedule. `traceviz what-if` predicts the gain "
            "from the traces of the first. The true gain is the difference of the two steps, negative if the second "
            f"is longer. A prediction is right within {GAIN_SHARE:.0%} of the true gain or {STEP_SHARE:.1%} of the "
            f"step, whichever is larger: {right} of {len(found)} are. {sum(one.held for one in found)} error bars "
            "include the true gain. They cover variation of the hosts. They do not cover how well a rank's peers show "
            "what it would take if healthy, or how well mean times represent those of another schedule."
        ),
        "",
        "| job | edit | step ms | true gain ms | predicted ms | error bar ms | off by |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*lines, *map(_row, found)])


def _row(one: Outcome) -> str:
    bar = f"{one.low_ns / 1e6:.3f} to {one.high_ns / 1e6:.3f}"
    off = f"{abs(one.gain_ns - one.true_gain_ns) / max(abs(one.true_gain_ns), 1):.1%}"
    times = [f"{value / 1e6:.3f}" for value in (one.step_ns, one.true_gain_ns, one.gain_ns)]
    return f"| {' | '.join([one.case.name, one.case.words, *times, bar, off if one.right else f'{off}, too far'])} |"


def main() -> int:
    """Run the matrix; the exit code is 1 if a prediction is too far off."""
    about = (__doc__ or "").splitlines()[0]
    found = run_matrix(about, cases(), outcome, _row, markdown, write_predictions)
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
