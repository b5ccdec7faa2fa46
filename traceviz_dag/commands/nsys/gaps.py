"""``traceviz nsys gaps``: when a GPU did nothing, and what the host did meanwhile."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.activity import Activity, processes_of
from traceviz_dag.analyze.nsys.overlap import gaps as find_gaps
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.tree import nested_ranges
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, check_number
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import (
    GpuOption,
    Opened,
    ProfileArgument,
    RulesOption,
    TrimOption,
    no_names,
    opened,
)


def gaps(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    least_us: Annotated[float, typer.Option(min=0, help="Shortest gap to show, microseconds.")] = 10,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the longest times without any kernel or memory operation.

    Beside each gap are the operations before and after it, when the host launched the latter, and the innermost NVTX
    range open on the launching thread in the middle of the gap. If the launch was long before the end of the gap, the
    GPU did not wait for the host.
    """
    check_number("--least-us", least_us)
    with opened(path, home, trim, rules, no_names) as given:
        found = [_of_gpu(given, part, round(least_us * 1e3)) for part in given.gpus(gpu)]
        if json:
            given.print_json(found)
            return
        for one in found:
            print_columns(
                f"GPU {one['device']}: idle {milliseconds(one['idle_ns'])} ms, {wording.percent(one['share'])} of it "
                f"in {len(one['gaps'])} gaps of {least_us:g} us or more",
                one["gaps"],
                [
                    *("start_ns", ("duration_ns", "gap"), "after", "before"),
                    *(("launched_before_end_ns", "launched before the end"), ("host_range", "host was in")),
                ],
            )


def _of_gpu(given: Opened, part: Activity, least_ns: int) -> dict[str, Any]:
    idle_ns = gpu_overlap(part, given.window).idle_ns
    found = find_gaps(part, given.window, least_ns)
    processes = processes_of([part])
    calls = given.profile.rows("calls", "start_ns", "thread", of=processes)
    nested = nested_ranges(given.profile, processes)
    before = np.array([gap.before for gap in found], dtype=np.int64)
    launch = calls.place(np.where(before >= 0, part.launch[np.maximum(before, 0)], -1))
    launched = launch >= 0
    call_start, thread = np.zeros(len(found), dtype=np.int64), np.full(len(found), -1, dtype=np.int64)
    call_start[launched] = calls["start_ns"][launch[launched]]
    thread[launched] = calls["thread"][launch[launched]]
    middle = np.array([(gap.start_ns + gap.end_ns) // 2 for gap in found], dtype=np.int64)
    position = nested.position_of(thread, middle)
    rows = [
        {
            "start_ns": gap.start_ns,
            "duration_ns": gap.duration_ns,
            "after": part.names[part.name[gap.after]] if gap.after >= 0 else None,
            "before": part.names[part.name[gap.before]] if gap.before >= 0 else None,
            "launched_before_end_ns": gap.end_ns - int(call_start[place]) if launched[place] else None,
            "host_range": nested.names[nested.name[position[place]]] if position[place] >= 0 else None,
        }
        for place, gap in enumerate(found)
    ]
    covered = sum(gap.duration_ns for gap in found)
    share = covered / idle_ns if idle_ns else None
    return {"device": part.device, "idle_ns": idle_ns, "covered_ns": covered, "share": share, "gaps": rows}
