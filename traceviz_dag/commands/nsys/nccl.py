"""``traceviz nsys nccl``: communication by operation and communicator."""

from __future__ import annotations

from dataclasses import asdict

from traceviz_dag.analyze.nsys.nccl import communication
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import ABSENT, milliseconds, print_json, print_table
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened


def nccl(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show communication kernels by operation, and by communicator if the export holds NCCL's payload.

    The time of a communication kernel includes its waiting for other ranks. Other libraries than NCCL count, too.
    """
    given = opened(path, home, trim, rules)
    rows = [
        {"device": part.device, **asdict(one)}
        for part in given.gpus(gpu)
        for one in communication(given.profile, part, given.window)
    ]
    if json:
        print_json(rows)
        return
    print_table(
        "Communication",
        [
            "GPU",
            "operation",
            "communicator",
            "count",
            "total ms",
            "busy ms",
            "hidden ms",
            "exposed ms",
            "mean ms",
            "most ms",
            "bytes",
        ],
        [
            [row["device"], row["operation"], row["communicator"], row["count"]]
            + [milliseconds(row[f"{name}_ns"]) for name in ("total", "busy", "hidden", "exposed", "mean", "most")]
            + [ABSENT if row["bytes"] is None else f"{row['bytes']:,}"]
            for row in rows
        ],
    )
