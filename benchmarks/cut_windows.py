"""Does a window that does not hold whole training steps ever get a wrong micro-batch, and is it always marked?

Run: ``python benchmarks/cut_windows.py --jobs 200``. Each job is drawn from its seed: schedule, call stacks, process
groups, batch sizes in the header, what is cut and where. Shares are of kernel time: *wrong* is a micro-batch or chunk
that is reported untruly, *told* is of the kernels that have one. *Marked* are files whose training steps are said not
to be recorded whole; a rank whose host did nothing in the window has nothing to mark. The exit code is 1 if something
is wrong for .1 % or more, if no rank of a cut window is marked although forward and backward steps are missing in it,
or if one of a whole window is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import SMALL, take_groups_out
from traceviz_dag.analyze.accuracy import compared, shares
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import read_topology
from traceviz_dag.pipeline.ranks import classify_trace, window_fault
from traceviz_dag.read.kineto.reader import read_kineto
from traceviz_dag.read.truth import read_truth, truth_folder
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Edges, Era, Layout, Recompute

SCHEDULES = {
    "no pipelining": replace(SMALL, tp=2),
    "1F1B": replace(SMALL, pp=2),
    "1F1B pp4": replace(SMALL, pp=4),
    "interleaved": replace(SMALL, pp=2, vpp=2),
    "interleaved vpp4": replace(SMALL, pp=2, vpp=4, layers=8),
    "experts": replace(SMALL, dp=2, ep=2),
    "combined 1F1B": replace(SMALL, dp=2, ep=2, overlap_expert=True),
    "combined 1F1B, interleaved": replace(SMALL, pp=2, vpp=2, dp=2, ep=2, overlap_expert=True),
}

_Draw = Callable[[random.Random], Edges]


def _between(draw: random.Random) -> tuple[float, float]:
    """Two places, a tenth apart at the least."""
    first = draw.uniform(0.0, 0.85)
    return first, draw.uniform(first + 0.1, 0.98)


def _cut(draw: random.Random) -> Edges:
    return Edges(**dict(zip(("window_from", "window_to"), _between(draw), strict=True)))


def _lost(draw: random.Random) -> Edges:
    first = draw.uniform(0.03, 0.9)
    return Edges(lost_rows_from=first, lost_rows_to=min(1.0, first + draw.uniform(0.03, 0.3)))


def _one_mark(draw: random.Random) -> Edges:
    shift = draw.uniform(0.1, 0.9)
    return Edges(shifted_marks=shift, window_from=shift / 2, window_to=(1 + shift) / 2)


VARIANTS: dict[str, tuple[int, _Draw]] = {
    "whole": (1, lambda draw: Edges()),
    "two whole steps": (2, lambda draw: Edges()),
    "starts in a step": (1, lambda draw: Edges(window_from=draw.uniform(0.05, 0.9))),
    "stops in a step": (1, lambda draw: Edges(window_to=draw.uniform(0.1, 0.95))),
    "starts and stops in a step": (1, _cut),
    "from step to step": (2, _cut),
    "shifted marks": (3, lambda draw: Edges(shifted_marks=draw.uniform(0.05, 0.95))),
    "one shifted mark": (2, _one_mark),
    "lost rows": (1, _lost),
    "lost rows of two steps": (2, _lost),
    "first rows lost": (1, lambda draw: Edges(lost_rows_to=draw.uniform(0.05, 0.3))),
    "last rows lost": (1, lambda draw: Edges(lost_rows_from=draw.uniform(0.6, 0.95), lost_rows_to=1.0)),
}
"""What is cut: training steps in a file, and what is drawn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job; ``missing`` says whether forward or backward steps are not in its files."""

    variant: str
    name: str
    wrong: float
    told: float
    files: int
    marked: int
    missing: bool


def one_job(variant: str, seed: int) -> Outcome:
    """Simulate a job, cut it, classify it."""
    draw = random.Random(f"{variant} {seed}")
    schedule = draw.choice(list(SCHEDULES))
    iterations, edges = VARIANTS[variant][0], VARIANTS[variant][1](draw)
    stacks, groups, batches = draw.random() < 0.5, draw.random() < 0.7, draw.random() < 0.3
    settings = replace(
        SCHEDULES[schedule],
        microbatches=draw.choice((4, 8)),
        iterations=iterations,
        layout=Layout.ITERATION if iterations == 1 else Layout.TORCH_PROFILE,
        stacks=stacks,
        era=draw.choice((Era.TORCH_2_4, Era.TORCH_2_7)),
        recompute=draw.choice((Recompute.NONE, Recompute.FULL)) if "combined" not in schedule else Recompute.NONE,
        seed=seed,
        edges=edges,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = simulate(settings, Path(name) / "run", workers=1)
        if not groups:
            take_groups_out(folder)
        if not batches:
            take_settings_out(folder)
        wrong, told, files, marked = _classified(settings, folder)
    of_job = f"seed {seed} {schedule}, {settings.microbatches} micro-batches, stacks {stacks}, groups {groups}"
    cut = {name: value for name, value in asdict(edges).items() if value != getattr(Edges(), name)}
    return Outcome(variant, f"{of_job}, batches {batches}, {cut}", wrong, told, files, marked, _misses(edges))


def _misses(edges: Edges) -> bool:
    """Whether so much is cut off that steps of micro-batches must be missing or under the wrong mark."""
    return edges.cuts and (edges.window_from > 0.2 or edges.window_to < 0.6 or 0.2 < edges.shifted_marks < 0.6)


def take_settings_out(folder: Path) -> None:
    """Take from each trace below a folder the settings of its job."""
    for path in folder.rglob("*.json.gz"):
        trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), strict=False)
        for value in trace.values():
            if isinstance(value, dict):
                value.pop("settings", None)
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def _classified(settings: JobSettings, folder: Path) -> tuple[float, float, int, int]:
    """Wrong and told shares, files, and files that are marked."""
    rules, tables, marked, seen = load_rules(), [], 0, set()
    for inputs in inputs_below([folder]):
        topology = read_topology(inputs)
        for entry in inputs.ranks:
            if entry.path in seen:
                continue
            seen.add(entry.path)
            classified = classify_trace(read_kineto(Path(entry.path)), entry.rank, topology, rules)
            marked += window_fault(classified.steps.cuts, None) is not None
            of_file = inputs.iteration if settings.layout is Layout.ITERATION else None
            truth = read_truth(truth_folder(folder), entry.rank, of_file).to_pandas()
            tables.append(shares(compared(classified.kernels.to_pandas(), truth)))
    wrong = max(max(table.wrong["microbatch"], table.wrong["chunk"]) for table in tables)
    return wrong, float(np.mean([table.told["microbatch"] for table in tables])), len(seen), marked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="of all variants together")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="a variant; default: all")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    variants = given.only or list(VARIANTS)
    tasks = [(variants[index % len(variants)], given.first_seed + index) for index in range(given.jobs)]
    failed = False
    found: dict[str, list[Outcome]] = {variant: [] for variant in variants}
    with ProcessPoolExecutor(given.workers) as pool:
        for one in pool.map(one_job, *zip(*tasks, strict=True)):
            found[one.variant].append(one)
            whole = one.variant in ("whole", "two whole steps")
            bad = one.wrong >= 0.001 or (whole and one.marked > 0) or (one.missing and not one.marked)
            if bad:
                failed = True
                print(
                    f"{one.variant}: wrong {one.wrong:.2%}, marked {one.marked} of {one.files}: {one.name}", flush=True
                )
    print(f"{'variant':<28} {'jobs':>5} {'files':>6} {'worst wrong':>12} {'told':>7} {'marked':>7}")
    for variant, jobs in found.items():
        if jobs:
            files, marked = sum(job.files for job in jobs), sum(job.marked for job in jobs)
            told = np.mean([job.told for job in jobs])
            worst = max(job.wrong for job in jobs)
            print(f"{variant:<28} {len(jobs):>5} {files:>6} {worst:>11.3%} {told:>6.1%} {marked / files:>6.1%}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
