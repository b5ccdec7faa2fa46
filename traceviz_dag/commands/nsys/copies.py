"""``traceviz nsys copies``: memory copies and sets by kind, with bytes and bandwidth."""

from __future__ import annotations

from traceviz_dag.analyze.nsys.copies import copies as measured
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, binary, opened


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
    given = opened(path, home, trim)
    rows = given.rows(gpu, measured)
    if json:
        print_json(rows)
        return
    print_table(
        "Memory operations",
        [
            *("GPU", "operation", "from", "to", "Async call", "count", "total ms", "bytes", "GB/s"),
            *("least", "mean", "most"),
        ],
        [
            [
                *(row["device"], row["name"], row["source"], row["destination"]),
                None if row["asynchronous"] is None else "yes" if row["asynchronous"] else "no",
                *(row["count"], milliseconds(row["total_ns"])),
                None if row["bytes"] is None else f"{row['bytes']:,}",
                None if row["bytes_per_s"] is None else f"{row['bytes_per_s'] / 1e9:,.3f}",
                *(binary(row[f"{size}_bytes"]) for size in ("least", "mean", "most")),
            ]
            for row in rows
        ],
    )
