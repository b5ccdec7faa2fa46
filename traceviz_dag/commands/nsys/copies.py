"""``traceviz nsys copies``: memory copies and sets by kind, with bytes and bandwidth."""

from __future__ import annotations

from traceviz_dag.analyze.nsys.copies import copies as measured
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, no_kernels, opened


def copies(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show memory copies and sets by kind: bytes, GB/s, sizes, kinds of memory, and the form of the call.

    Operations count where they start, whole. GB/s is 10^9 bytes per second of their own durations. A call is
    asynchronous if Async is in its name; a copy from or to pageable memory may hold the host up nevertheless.
    """
    with opened(path, home, trim, concerns=no_kernels) as given:
        rows = given.rows(gpu, measured)
        if json:
            given.print_json(rows)
            return
        print_columns(
            "Memory operations",
            rows,
            [
                *("device", ("name", "operation"), ("source", "from"), ("destination", "to")),
                *(("asynchronous", "Async call"), "count", "total_ns", "bytes", "bytes_per_s"),
                *("least_bytes", "mean_bytes", "most_bytes"),
            ],
        )
