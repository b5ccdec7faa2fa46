"""``traceviz nsys diff``: what changed from one profile to another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.diff.words import Outcome
from traceviz_dag.analyze.nsys.diff import NameChange, ProfileComparison, compare
from traceviz_dag.analyze.nsys.iterations import window_on_gpu
from traceviz_dag.analyze.nsys.overlap import GpuOverlap, gpu_overlap
from traceviz_dag.analyze.nsys.summary import NameMeasures, by_name
from traceviz_dag.analyze.nsys.tree import RangeNode, range_tree
from traceviz_dag.analyze.wording import capitalised
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.errors import NoEvidenceError, UsageError

_PART_WORDS = {
    "compute_ns": "computation",
    "exposed_ns": "exposed communication",
    "memory_alone_ns": "memory operations alone",
    "idle_ns": "idle",
}
_Side = tuple[list[GpuOverlap], list[NameMeasures], list[RangeNode]]


def diff(
    a: ProfileArgument,
    b: Annotated[Path, typer.Argument(help="Profile to compare with A.", show_default=False)],
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    trim_b: Annotated[
        tuple[float, float] | None, typer.Option("--trim-b", help="Window of B; default: that of A.")
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option("--iteration", help="Compare this training iteration of both, on each GPU.", show_default=False),
    ] = None,
    iteration_b: Annotated[
        int | None, typer.Option("--iteration-b", help="Iteration of B; default: that of A.", show_default=False)
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with 1 if B is slower, with 2 if the two are not comparable.")
    ] = False,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Compare two profiles: slower, faster, new and gone kernels, NVTX ranges, overlap and idle time.

    Computation, exposed communication, memory operations alone and idle time make up the window, so their changes add
    up to its change. All numbers are sums over the GPUs. With --gate the exit code is 0 if B is at most 1 % slower.
    """
    if iteration is None and iteration_b is not None:
        raise UsageError("--iteration-b is the iteration of B: also give --iteration, that of A")
    if iteration is not None and (trim or trim_b):
        raise UsageError("--iteration and --trim both name a window: give one of them")
    other = iteration if iteration_b is None else iteration_b
    with opened(a, home, trim, rules) as given_a, opened(b, home, trim_b or trim, rules) as given_b:
        side_a, side_b = _side(given_a, gpu, iteration), _side(given_b, gpu, other)
        found = compare(side_a[0], side_b[0], (side_a[1], side_b[1]), (side_a[2], side_b[2]))
        if json:
            print_json({**_plain(found), "partial": bool(given_a.faults or given_b.faults)})
        else:
            _print(found)
    if gate and not found.is_comparable:
        raise NoEvidenceError(f"the gate judges no profiles that are {found.comparable}")
    if gate and found.outcome is Outcome.LONGER:
        raise typer.Exit(1)


def _print(found: ProfileComparison) -> None:
    parts = {**found.parts, "window": (found.window_a_ns, found.window_b_ns)}
    rows = [
        {"part": _PART_WORDS.get(part, part), "a_ns": a, "b_ns": b, "change_ns": b - a}
        for part, (a, b) in parts.items()
    ]
    together = f", {found.gpus} GPUs together" if found.gpus > 1 else ""
    print_columns(f"Where the time went{together}", rows, ["part", ("a_ns", "A"), ("b_ns", "B"), "change_ns"])
    for title, names in (("Kernels and memory operations", found.kernels), ("NVTX ranges", found.ranges)):
        for words, chosen in _sorted_out(list(names)).items():
            if chosen:
                columns = ["name", ("count_a", "count A"), ("count_b", "count B"), ("total_a_ns", "A")]
                print_columns(f"{title}: {words}", chosen, [*columns, ("total_b_ns", "B"), "change_ns"])
    typer.echo(f"\n{capitalised(found.comparable)}.\n{found.verdict}")


def _side(given: Opened, gpu: list[str], iteration: int | None) -> _Side:
    parts = given.gpus(gpu)
    windows = [
        given.window if iteration is None else window_on_gpu(given.profile, part, given.rules, iteration)
        for part in parts
    ]
    each = list(zip(parts, windows, strict=True))
    return (
        [gpu_overlap(part, window) for part, window in each],
        [one for part, window in each for one in by_name(part, window)],
        [root for part, window in each for root in range_tree(given.profile, part, window or part.window(None))],
    )


def _sorted_out(names: list[NameChange]) -> dict[str, list[NameChange]]:
    both = [row for row in names if row.count_a and row.count_b]
    return {
        "slower": [row for row in both if row.change_ns > 0],
        "faster": [row for row in both if row.change_ns < 0],
        "new": [row for row in names if row.count_b and not row.count_a],
        "gone": [row for row in names if row.count_a and not row.count_b],
    }


def _plain(found: ProfileComparison) -> dict[str, Any]:
    values = asdict(found)
    values["parts"] = {part: {"a_ns": a, "b_ns": b, "change_ns": b - a} for part, (a, b) in found.parts.items()}
    values["change_ns"] = found.window_b_ns - found.window_a_ns
    for key, names in (("kernels", found.kernels), ("ranges", found.ranges)):
        values[key] = {
            words: [{**asdict(row), "change_ns": row.change_ns} for row in chosen]
            for words, chosen in _sorted_out(list(names)).items()
        }
    return values
