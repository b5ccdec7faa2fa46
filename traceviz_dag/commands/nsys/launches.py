"""``traceviz nsys launches``: how far the host is ahead of the GPU."""

from __future__ import annotations

from traceviz_dag.analyze.nsys.launches import SOON_NS
from traceviz_dag.analyze.nsys.launches import launches as measured
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import percent, print_json, print_table, shown
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, opened

_WAITS = ("mean", "median", "p90", "most")


def launches(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how long operations wait between their launch and their start, and how many wait at a time.

    An operation waits from the end of the call that launched it. If the queue is often empty and many operations start
    soon, the GPU waits for the host. Operations whose launch is not recorded count in their number only.
    """
    given = opened(path, home, trim)
    rows = given.rows(gpu, measured)
    if json:
        print_json(rows)
        return
    print_table(
        f"From launch to start; soon is within {SOON_NS // 1000} us",
        [
            *("GPU", "stream", "operations", "launched", "calls ms", "call mean ms"),
            *(f"wait {name} ms" for name in _WAITS),
            *("soon", "depth mean", "depth most", "queue empty"),
        ],
        [
            [
                *(row["device"], "all" if row["stream"] is None else row["stream"], row["operations"], row["launched"]),
                *(milliseconds(row["call"]["total_ns"]), milliseconds(row["call"]["mean_ns"])),
                *(milliseconds(row["queued"][f"{name}_ns"]) for name in _WAITS),
                percent(row["soon"] / row["launched"] if row["launched"] else None),
                *(f"{row['depth_mean']:,.1f}", row["depth_most"]),
                percent(row["empty_ns"] / row["window_ns"] if row["window_ns"] else None),
            ]
            for row in shown(rows)
        ],
        len(rows),
    )
