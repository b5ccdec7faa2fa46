"""How right findings are: jobs with known faults, what ``traceviz findings`` says of them, and what fixing them saves.

Run: ``python -m benchmarks.findings`` (about half an hour on two cores). Every fault is put into three layouts with
three seeds. Each job is simulated with and without its fault; the first fault that is found must name the rule and the
culprit, and its gain must be that of the job without it. It prints the table and writes it to ``docs/accuracy.md``.
``--only PATTERN`` runs part of it and writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy_page import paragraph, write_findings
from benchmarks.matrix import run_matrix
from benchmarks.what_if import GAIN_SHARE, STEP_SHARE
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults

COMMAND = "python -m benchmarks.findings"

SEEDS = (3, 11, 27)
HEALTHY = 20

_PLAIN = JobSettings(iterations=1, layers=8)
_GRID = replace(_PLAIN, tp=2, dp=2, pp=2, microbatches=4)
_PIPELINE = replace(_PLAIN, pp=4, dp=2, microbatches=8)
_DATA = replace(_PLAIN, dp=4, microbatches=2, layers=4)
_EXPERTS = replace(_PLAIN, ep=4, dp=4, microbatches=2, layers=4)
_INTERLEAVED = replace(_PLAIN, pp=2, vpp=2, dp=2, microbatches=4)
_GROUPS = replace(_PLAIN, tp=2, dp=4, microbatches=4, layers=4, node_size=4)


@dataclass(frozen=True, slots=True)
class Case:
    """A job, its faults, and what must be named.

    Attributes:
        culprits: rule → the columns of its finding, for each fault.
    """

    name: str
    settings: JobSettings
    faults: Faults
    culprits: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found in a case, and what really is so.

    Attributes:
        first: the first fault; None without any. named: all faults are among the first so many.
        true_gain_ns: what the job gains without its faults; of a healthy job 0.
    """

    case: Case
    step_ns: int
    first: Mapping[str, Any] | None
    named: bool
    true_gain_ns: int
    findings: int

    @property
    def costs(self) -> bool:
        """Whether the step takes longer for the faults."""
        return abs(self.true_gain_ns) > STEP_SHARE * self.step_ns

    @property
    def gain_right(self) -> bool:
        """Whether the first fault's gain is near enough; one that is not predicted must be worth nothing."""
        gain = self.first["gain_ns"] if self.first is not None and self.first["gain_ns"] is not None else 0
        allowed = max(GAIN_SHARE * abs(self.true_gain_ns), STEP_SHARE * self.step_ns)
        return len(self.case.culprits) != 1 or abs(gain - self.true_gain_ns) <= allowed

    @property
    def right(self) -> bool:
        """Whether everything is as it must be."""
        return self.named and self.gain_right and (bool(self.case.culprits) or not self.findings)


def cases() -> Iterator[Case]:
    """The matrix, two faults at once, and healthy jobs."""
    for seed in SEEDS:
        for name, settings, faults, culprits in _faults():
            yield Case(f"{name} seed {seed}", replace(settings, seed=seed), faults, culprits)
    for number in range(HEALTHY):
        settings = (_GRID, _PIPELINE, _DATA, _EXPERTS, _INTERLEAVED)[number % 5]
        job = replace(settings, seed=100 + number, balanced_router=settings is _EXPERTS)
        yield Case(f"healthy {_words(settings)} seed {100 + number}", job, Faults(), {})


def _faults() -> Iterator[tuple[str, JobSettings, Faults, Mapping[str, Mapping[str, Any]]]]:
    for layout, rank in ((_GRID, 3), (_PIPELINE, 5), (_DATA, 1)):
        name = _words(layout)
        yield f"slow gpu {name}", layout, Faults(slow_gpu=rank), {"slow_rank": {"rank": rank}}
        stalled = {_GRID: 0, _PIPELINE: 1, _DATA: 2}[layout]
        yield f"data stall {name}", layout, Faults(data_stall=stalled), {"data_stall": {"rank": stalled}}
        yield f"collection {name}", layout, Faults(garbage_collection=rank), {"gc_pause": {"rank": rank}}
        yield f"hidden wait {name}", layout, Faults(hidden_synchronisation=rank), {"hidden_sync": {"rank": rank}}
        yield f"pageable copy {name}", layout, Faults(pageable_copy=rank), {"hidden_sync": {"rank": rank}}
        yield f"graph break {name}", layout, Faults(graph_break=rank), {"graph_break": {"rank": rank}}
        yield f"tiny kernels {name}", layout, Faults(tiny_kernels=rank), {"launch_bound": {"rank": rank}}
    for layout, rank in ((_GRID, 1), (replace(_GRID, tp=2, dp=1, pp=4), 6), (replace(_GRID, tp=4, dp=2, pp=1), 2)):
        yield f"slow link {_words(layout)}", layout, Faults(slow_link=rank), {"slow_link": {"rank": rank}}
    for layout in (_GRID, _PIPELINE, replace(_PLAIN, pp=2, microbatches=6)):
        # One layer more in the first stage would make up for the loss in the last one.
        deep = replace(layout, layers=16)
        yield f"split {_words(layout)}", deep, Faults(bad_stage_split=3), {"slow_stage": {"stage": 0}}
    yield from _parts()
    for layout in (_EXPERTS, replace(_EXPERTS, ep=2), replace(_EXPERTS, ep=2, dp=2, pp=2, microbatches=4)):
        yield f"uneven experts {_words(layout)}", layout, Faults(expert_imbalance=0.3), {"expert_load": {}}
    both = {"slow_rank": {"rank": 3}, "slow_link": {"rank": 4}}
    yield f"slow gpu, slow link {_words(_GRID)}", _GRID, Faults(slow_gpu=3, slow_link=4), both
    both = {"slow_rank": {"rank": 5}, "data_stall": {"rank": 0}}
    yield f"slow gpu, data stall {_words(_PIPELINE)}", _PIPELINE, Faults(slow_gpu=5, data_stall=0), both


def _parts() -> Iterator[tuple[str, JobSettings, Faults, Mapping[str, Mapping[str, Any]]]]:
    """Faults of a part of the step, of some ranks together, and of one kind of work."""
    for layout, rank in ((_DATA, 1), (_GRID, 3)):
        name = _words(layout)
        yield f"throttle {name}", layout, Faults(throttle=rank), {"slow_rank": {"rank": rank}}
        yield f"slow memory {name}", layout, Faults(slow_memory=rank), {"slow_rank": {"rank": rank}}
        yield f"other algorithm {name}", layout, Faults(other_algorithm=rank), {"slow_rank": {"rank": rank}}
        late = {_DATA: 1, _GRID: 0}[layout]
        yield f"late loader {name}", layout, Faults(loader_late=late), {"data_stall": {"rank": late}}
        # Nobody is at fault: a rank that is named must not be.
        yield f"varying sequences {name}", layout, Faults(varying_sequences=0.3), {}
    groups = f"{_words(_GROUPS)} on nodes of 4"
    yield f"slow group {groups}", _GROUPS, Faults(slow_group=2), {"slow_group": {"group_ranks": "2-3"}}
    yield f"slow node {groups}", _GROUPS, Faults(slow_node=1), {"slow_group": {"group_ranks": "4-7"}}
    yield f"slow card {groups}", _GROUPS, Faults(slow_nic=5), {"slow_link": {"group_ranks": "1, 3, 5, 7"}}
    yield f"bursts {groups}", _GROUPS, Faults(bursts=0.3), {"congestion": {}}
    for shapes in (True, False):
        # One name and grid for products of several shapes: nobody is at fault.
        words = "sizes recorded" if shapes else "no sizes"
        wide = replace(_PIPELINE, persistent=True, wide_layers=2, shapes=shapes)
        yield f"wide layers of persistent kernels, {words}", wide, Faults(), {}
        slow = replace(_PIPELINE, persistent=True, shapes=shapes)
        yield f"slow gpu, persistent kernels, {words}", slow, Faults(slow_gpu=5), {"slow_rank": {"rank": 5}}
    for layout in (_GRID, _PIPELINE):
        yield f"slow stage {_words(layout)}", layout, Faults(slow_stage=1), {"slow_stage": {"stage": 1}}


def _words(settings: JobSettings) -> str:
    sizes = ((name, getattr(settings, name)) for name in ("tp", "ep", "pp", "vpp", "dp"))
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1)


def outcome(case: Case, folder: Path) -> Outcome:
    """Look for the faults of one case, and see what the job takes without them."""
    settings = replace(case.settings, faults=case.faults)
    fixed = replace(case.settings, balanced_router=True) if case.faults.expert_imbalance else case.settings
    if case.faults.tiny_kernels is not None:
        fixed = replace(fixed, faults=replace(case.faults, tiny_kernels_captured=True))
    rows, step_ns = _found(settings, folder / "before")
    true_gain = step_ns - _found(fixed, folder / "after")[1] if case.culprits else 0
    faults = [row for row in rows if row["class"] == "fault" and row["severity"] != "not_looked_at"]
    among = faults[: 1 if len(case.culprits) == 1 else 3]
    # What costs nothing is nobody's fault: a pause behind which the GPU still has work.
    named = abs(true_gain) <= STEP_SHARE * step_ns or all(
        any(row["rule"] == rule and culprit.items() <= row.items() for row in among)
        for rule, culprit in case.culprits.items()
    )
    findings = sum(row["severity"] == "finding" for row in faults)
    return Outcome(case, step_ns, faults[0] if faults else None, named, true_gain, findings)


def _found(settings: JobSettings, folder: Path) -> tuple[list[dict[str, Any]], int]:
    simulate(settings, folder, workers=1)
    with iterations_at(folder, folder.parent / "home") as (iteration,):
        rows = iteration.findings()
        return rows, int(iteration.table("what_if")["step_ns"][0].as_py())


def markdown(found: Sequence[Outcome], seconds: float) -> str:
    """The part of the page on findings."""
    faulty = [one for one in found if one.case.culprits]
    healthy = [one for one in found if not one.case.culprits]
    one_fault = [one for one in faulty if len(one.case.culprits) == 1]
    lines = [
        paragraph(
            f"`{COMMAND}` ({seconds:.0f} s on two cores) simulates each job with its fault and without, with "
            f"{len(SEEDS)} seeds. The first fault of `traceviz findings` must name the rule and the culprit; two "
            "faults must both be among the first three. The predicted gain must be the true one, within "
            f"{GAIN_SHARE:.0%} of that or {STEP_SHARE:.1%} of the step. A healthy job may have notes, but no fault. "
            f"A fault that costs less than {STEP_SHARE:.1%} of the step need not be named, such as a pause while "
            f"the GPU still has work: {sum(not one.costs for one in faulty)} jobs have such a fault."
        ),
        "",
        "| jobs | right |",
        "| --- | ---: |",
        f"| with faults: named | {sum(one.named for one in faulty)} of {len(faulty)} |",
        f"| with one fault: gain | {sum(one.gain_right for one in one_fault)} of {len(one_fault)} |",
        f"| healthy: no fault | {sum(one.right for one in healthy)} of {len(healthy)} |",
        "",
        "Gains are ranges over the seeds.",
        "",
        "| job | first fault | true gain ms | predicted ms | |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    of_seeds: dict[str, list[list[str]]] = {}
    for one in (*faulty, *(one for one in healthy if not one.right)):
        of_seeds.setdefault(one.case.name.partition(" seed ")[0], []).append(_cells(one))
    return "\n".join([*lines, *(_of_seeds(name, cells) for name, cells in of_seeds.items())])


def _of_seeds(name: str, cells: Sequence[Sequence[str]]) -> str:
    """A row of the page: a job with all its seeds."""
    _, _, who, true_gain, gain, remark = (list(dict.fromkeys(column)) for column in zip(*cells, strict=True))
    ranges = [" to ".join(sorted({min(each, key=_ms), max(each, key=_ms)}, key=_ms)) for each in (true_gain, gain)]
    return f"| {' | '.join([name, ' or '.join(who), *ranges, ', '.join(filter(None, remark))])} |"


def _ms(cell: str) -> float:
    return float(cell or 0)


def _row(one: Outcome) -> str:
    return f"| {' | '.join(_cells(one))} |"


def _cells(one: Outcome) -> list[str]:
    first = one.first
    who = "none"
    if first is not None:
        named = [f"{name} {first[name]}" for name in ("rank", "group_ranks", "stage") if first[name] is not None]
        who = " ".join([first["rule"], *named[:1], *(["(note)"] if first["severity"] == "note" else [])])
    gain = "" if first is None or first["gain_ns"] is None else f"{first['gain_ns'] / 1e6:.3f}"
    wrong = [*([] if one.named else ["not named"]), *([] if one.gain_right else ["too far off"])]
    wrong += ["a fault in a healthy job"] if not one.case.culprits and one.findings else []
    return [one.case.name, f"{one.step_ns / 1e6:.3f}", who, f"{one.true_gain_ns / 1e6:.3f}", gain, ", ".join(wrong)]


def main() -> int:
    """Run the matrix; the exit code is 1 if less than 95 % of the jobs are right."""
    about = (__doc__ or "").splitlines()[0]
    found = run_matrix(about, cases(), outcome, _row, markdown, write_findings)
    return 0 if sum(one.right for one in found) >= 0.95 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
