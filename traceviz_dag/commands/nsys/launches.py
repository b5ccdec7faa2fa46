"""``traceviz nsys launches``: how far the host is ahead of the GPU."""

from __future__ import annotations

from traceviz_dag.analyze.nsys.launches import SOON_NS
from traceviz_dag.analyze.nsys.launches import launches as measured
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, no_names, opened

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
    with opened(path, home, trim, concerns=no_names) as given:
        rows = given.rows(gpu, measured)
        if json:
            given.print_json(rows)
            return
        print_columns(
            f"From launch to start; soon is within {SOON_NS // 1000} us",
            [
                {
                    **row,
                    **{f"call_{name}": value for name, value in row["call"].items()},
                    **{f"wait_{name}": value for name, value in row["queued"].items()},
                    "stream": "all" if row["stream"] is None else row["stream"],
                    "soon_share": row["soon"] / row["launched"] if row["launched"] else None,
                    "empty_share": row["empty_ns"] / row["window_ns"] if row["window_ns"] else None,
                }
                for row in rows
            ],
            [
                *("device", "stream", "operations", "launched", ("call_total_ns", "calls"), "call_mean_ns"),
                *("wait_mean_ns", "wait_median_ns", "wait_p90_ns", "wait_most_ns", ("soon_share", "soon")),
                *("depth_mean", "depth_most", ("empty_share", "queue empty")),
            ],
        )
