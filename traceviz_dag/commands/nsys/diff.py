"""``traceviz nsys diff``: what changed from one profile to another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.diff import NameChange, ProfileComparison, compare
from traceviz_dag.analyze.nsys.overlap import GpuOverlap, gpu_overlap
from traceviz_dag.analyze.nsys.summary import NameMeasures, by_name
from traceviz_dag.analyze.nsys.tree import RangeNode, range_tree
from traceviz_dag.analyze.wording import capitalised
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, print_json, print_table, shown
from traceviz_dag.commands.nsys.common import (
    GpuOption,
    ProfileArgument,
    RulesOption,
    TrimOption,
    opened,
    shortened,
)

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
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Compare two profiles: slower, faster, new and gone kernels, NVTX ranges, overlap and idle time.

    Computation, exposed communication, memory operations alone and idle time make up the window, so their changes add
    up to its change. All numbers are sums over the GPUs.
    """
    side_a = _side(a, home, gpu, trim, rules)
    side_b = _side(b, home, gpu, trim_b or trim, rules)
    found = compare(side_a[0], side_b[0], (side_a[1], side_b[1]), (side_a[2], side_b[2]))
    if json:
        print_json(_plain(found))
        return
    rows = [[_PART_WORDS[part], *_change(*values)] for part, values in found.parts.items()]
    rows.append(["window", *_change(found.window_a_ns, found.window_b_ns)])
    print_table("Where the time went", ["part", "A ms", "B ms", "change ms"], rows)
    for title, names in (("Kernels and memory operations", found.kernels), ("NVTX ranges", found.ranges)):
        for words, chosen in _sorted_out(list(names)).items():
            if chosen:
                print_table(
                    f"{title}: {words}",
                    ["name", "count A", "count B", "A ms", "B ms", "change ms"],
                    [
                        [shortened(row.name), row.count_a, row.count_b, *_change(row.total_a_ns, row.total_b_ns)]
                        for row in shown(chosen)
                    ],
                    len(chosen),
                )
    typer.echo(f"\n{capitalised(found.comparable)}.\n{found.verdict}")


def _side(path: Path, home: Path, gpu: list[str], trim: tuple[float, float] | None, rules: Path | None) -> _Side:
    given = opened(path, home, trim, rules)
    parts = given.gpus(gpu)
    return (
        [gpu_overlap(part, given.window) for part in parts],
        [one for part in parts for one in by_name(part, given.window)],
        [root for part in parts for root in range_tree(given.profile, part, given.window or part.window(None))],
    )


def _change(a_ns: int, b_ns: int) -> list[str]:
    return [milliseconds(a_ns), milliseconds(b_ns), f"{(b_ns - a_ns) / 1e6:+,.3f}"]


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
