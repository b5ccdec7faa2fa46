"""``traceviz nsys flops``: how much of a GPU's arithmetic a region uses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze.nsys.region_flops import region_flops
from traceviz_dag.analyze.nsys.search import matcher
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, opened
from traceviz_dag.errors import UsageError

_MOST = 1e18


def flops(
    path: ProfileArgument,
    word: Annotated[
        str, typer.Argument(help="Region: part of a range's name, or a pattern with * and ? for all of it.")
    ],
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    region: Annotated[
        float | None,
        typer.Option("--flops", min=0, help="Floating-point operations of one such range.", show_default=False),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            min=0, help="Peak of a GPU, 10^12 operations per second; default: by its name.", show_default=False
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the FLOP utilisation of a region: its floating-point operations against its time on the GPU and the peak.

    Operations are given, or those of the matrix products inside whose sizes PyTorch appended to the names of its
    ranges (emit_nvtx with record_shapes); others do not count. A peak by name is that of dense bfloat16, on the
    SXM form unless the name gives another. Ranges inside another one of these names belong to that one.
    """
    if not all(number is None or number <= _MOST for number in (region, peak)):
        raise UsageError(f"--flops and --peak take numbers up to {_MOST:g}")
    with opened(path, home, trim) as given:
        wanted = matcher(word)
        found = [
            region_flops(
                given.profile,
                part,
                wanted,
                given.window,
                None if region is None else round(region),
                None if peak is None else round(peak * 1e12),
            )
            for part in given.gpus(gpu)
        ]
        if not any(one.count for one in found):
            raise UsageError(
                f"{path}: no NVTX range that matches {word} launched anything; traceviz nsys ranges lists all"
            )
        if json:
            given.print_json(
                [
                    {
                        **asdict(one),
                        "utilization_of_gpu_time": one.utilization(one.gpu_ns),
                        "utilization_of_busy_time": one.utilization(one.busy_ns),
                        "above_peak": one.above_peak,
                    }
                    for one in found
                ]
            )
            return
        print_columns(
            f"FLOP utilisation of {word}",
            [
                {
                    **asdict(one),
                    "region_flops": one.flops,
                    "gpu_share": one.utilization(one.gpu_ns),
                    "busy_share": one.utilization(one.busy_ns),
                }
                for one in found
            ],
            [
                *("device", ("count", "ranges"), "region_flops", ("flops_from", "from"), "peak_flops_per_s"),
                *(("gpu_ns", "GPU time"), "busy_ns", ("gpu_share", "of GPU time"), ("busy_share", "of busy time")),
            ],
        )
        for one in found:
            if one.above_peak:
                typer.echo(
                    f"GPU {one.device} cannot do more than its peak: "
                    "the operations, the peak or the ranges are not right"
                )
