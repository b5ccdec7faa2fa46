"""``traceviz nsys instructions``: CUTracer's counts beside the time of the same kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.instructions import kernel_instructions
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, percent, print_json, print_table, shown
from traceviz_dag.commands.nsys.common import (
    GpuOption,
    ProfileArgument,
    RulesOption,
    TrimOption,
    opened,
    shortened,
)
from traceviz_dag.read.nsys.instructions import read_instructions


def instructions(
    path: ProfileArgument,
    counts: Annotated[Path, typer.Argument(help="Folder of CUTracer's kernel_HASH_iterN_NAME_hist.csv files.")],
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the instructions that CUTracer counted, beside the time that kernels of the same name take.

    Names are the same without namespaces, template and call arguments. JSON has every instruction and every name.
    """
    given = opened(path, home, trim, rules)
    counted = read_instructions(counts)
    found = {part.device: kernel_instructions(counted, part, given.window) for part in given.gpus(gpu)}
    if json:
        print_json([{"device": device, **asdict(row)} for device, rows in found.items() for row in rows])
        return
    most = "most cycles in" if any(one.cycles for one in counted) else "most issued"
    for device, rows in found.items():
        print_table(
            f"GPU {device}: instructions by kernel",
            ["kernel", "names", "launches", "total ms", "instructions", "tensor cores", most],
            [
                [
                    *(shortened(row.kernel), len(row.names), row.launches, milliseconds(row.total_ns), row.issued),
                    percent(row.tensor_share),
                    _most(row.cycles or row.instructions),
                ]
                for row in shown(rows)
            ],
            len(rows),
        )


def _most(counts: Mapping[str, int]) -> str:
    """The first three opcodes, by their share."""
    total = sum(counts.values())
    return ", ".join(
        f"{opcode} {wording.percent(count / total)}" for opcode, count in list(counts.items())[:3] if count
    )
