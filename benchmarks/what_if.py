"""How right predictions are: jobs with a fault, the edit that mends it, and the same job simulated without the fault.

Run: ``python benchmarks/what_if.py`` (a few minutes on two cores). It simulates each job with and without its faults
from the same seed, analyses both the way the pipeline does, predicts the mended step from the traces of the faulty job
alone, prints the table and writes it to ``docs/accuracy.md``. ``--only PATTERN`` runs part of it and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.accuracy_page import write_predictions
from traceviz_dag.analyze.causes.what_if import Edit, WhatIf
from traceviz_dag.pipeline.across_ranks import iterations_at
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults

COMMAND = "python benchmarks/what_if.py"

GAIN_SHARE, STEP_SHARE = 0.1, 0.002
"""A prediction is right within the larger of these shares of the true gain and of the step."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job with faults, and the edits that mend them."""

    name: str
    settings: JobSettings
    faults: Faults
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


def cases() -> Iterator[Case]:
    """The matrix: every parallel dimension, interleaved and combined schedules; one fault and two at once."""
    plain = JobSettings(seed=3, iterations=1)
    pipeline = replace(plain, pp=4, microbatches=8, layers=8)
    for stage in range(4):
        yield Case(f"pp4 slow gpu {stage}", pipeline, Faults(slow_gpu=stage), _fix(stage), f"fix rank {stage}")
    yield Case("pp4 split", pipeline, Faults(bad_stage_split=1), _general("even_layers"), "even layers")
    yield Case("pp4 stall 0", pipeline, Faults(data_stall=0), _fix(0), "fix rank 0")
    yield Case("pp4 collection 2", pipeline, Faults(garbage_collection=2), _general("no_pauses"), "no pauses of hosts")
    grid = replace(plain, tp=2, dp=2, pp=2, microbatches=4, layers=4)
    yield Case("tp2 dp2 pp2 slow gpu 3", grid, Faults(slow_gpu=3), _fix(3), "fix rank 3")
    yield Case("tp2 dp2 pp2 slow gpu 6", grid, Faults(slow_gpu=6), _fix(6), "fix rank 6")
    yield Case("tp2 dp2 pp2 slow link 1", grid, Faults(slow_link=1), _link(1), "fix link of rank 1")
    yield Case("tp2 dp2 pp2 collection 5", grid, Faults(garbage_collection=5), _fix(5), "fix rank 5")
    data = replace(plain, dp=4, microbatches=2, layers=4)
    yield Case("dp4 slow gpu 1", data, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    yield Case("dp4 stall 2", data, Faults(data_stall=2), _fix(2), "fix rank 2")
    tensor = replace(plain, tp=4, microbatches=2, layers=4)
    yield Case("tp4 slow gpu 2", tensor, Faults(slow_gpu=2), _fix(2), "fix rank 2")
    context = replace(plain, cp=2, dp=2, microbatches=2, layers=4)
    yield Case("cp2 dp2 slow gpu 1", context, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    experts = replace(plain, ep=4, dp=4, microbatches=2, layers=4)
    yield Case("ep4 dp4 slow gpu 3", experts, Faults(slow_gpu=3), _fix(3), "fix rank 3")
    interleaved = replace(pipeline, vpp=2)
    yield Case("pp4 vpp2 slow gpu 1", interleaved, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    combined = replace(plain, ep=2, dp=2, pp=2, vpp=2, microbatches=4, layers=4, overlap_expert=True)
    yield Case("combined ep2 pp2 slow gpu 1", combined, Faults(slow_gpu=1), _fix(1), "fix rank 1")
    two = Faults(slow_gpu=1, garbage_collection=2)
    yield Case("pp4 slow gpu 1, collection 2", pipeline, two, _both(_fix(1), _general("no_pauses")), "both")
    two = Faults(slow_gpu=3, slow_link=4)
    yield Case("tp2 dp2 pp2 slow gpu 3, link 4", grid, two, _both(_fix(3), _link(4)), "both")


def outcome(case: Case, folder: Path) -> Outcome:
    """Predict one case, and see what happens."""
    faulty = _what_if(replace(case.settings, faults=case.faults), folder / "faulty")
    healthy = _what_if(case.settings, folder / "healthy")
    one = faulty.predict(*case.edits(faulty))
    return Outcome(case, one.step_ns, one.gain_ns, one.gain_low_ns, one.gain_high_ns, faulty.step_ns - healthy.step_ns)


def _what_if(settings: JobSettings, folder: Path) -> WhatIf:
    simulate(settings, folder, workers=1)
    with iterations_at(folder, folder.parent / "home") as (iteration,):
        tables = (iteration.table("collectives"), iteration.table("messages"))
        (ranked,) = ranked_steps(iteration, *tables)
        return WhatIf(ranked.step, ranked.stages)


def markdown(found: Sequence[Outcome], seconds: float) -> str:
    """The part of the page on predictions."""
    right = sum(one.right for one in found)
    lines = [
        "Each job is simulated twice from one seed, with its faults and without. From the traces of the faulty job",
        "alone `traceviz what-if` predicts what mending the faults gains; the true gain is the difference of the two",
        f"steps. A prediction is right within {GAIN_SHARE:.0%} of the true gain or {STEP_SHARE:.1%} of the step,",
        "whichever is larger. The error bar spans replays with the measured delays of the host and without any.",
        "",
        f"Made by `{COMMAND}` ({seconds:.0f} s on this machine): {right} of {len(found)} predictions are right.",
        "",
        "| job | edit | step ms | true gain ms | predicted ms | error bar ms | off by | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    return "\n".join([*lines, *map(_row, found)])


def _row(one: Outcome) -> str:
    bar = f"{one.low_ns / 1e6:.3f} to {one.high_ns / 1e6:.3f}"
    off = abs(one.gain_ns - one.true_gain_ns) / max(abs(one.true_gain_ns), 1)
    times = [f"{value / 1e6:.3f}" for value in (one.step_ns, one.true_gain_ns, one.gain_ns)]
    cells = [one.case.name, one.case.words, *times, bar, f"{off:.1%}", "" if one.right else "too far off"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run the matrix; the exit code is 1 if a prediction is too far off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="run the jobs whose names match this pattern, and write nothing")
    wanted = parser.parse_args().only
    started = time.perf_counter()
    found = []
    for case in cases():
        if wanted and not fnmatch(case.name, wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(case, Path(folder))
        found.append(one)
        print(_row(one), flush=True)
    seconds = time.perf_counter() - started
    if not wanted:
        write_predictions(markdown(found, seconds))
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
