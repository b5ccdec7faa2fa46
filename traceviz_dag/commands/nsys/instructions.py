"""``traceviz nsys instructions``: CUTracer's counts beside the time of the same kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.instructions import dearest_kernels, kernel_instructions
from traceviz_dag.analyze.nsys.summary import summaries
from traceviz_dag.capture.cutracer import counting_script
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import (
    GpuOption,
    Opened,
    ProfileArgument,
    RulesOption,
    TrimOption,
    gpu_numbers,
    opened,
)
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.instructions import read_instructions

_MOST_PLANNED = 5


def instructions(
    path: ProfileArgument,
    counts: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of CUTracer's kernel_HASH_iterN_NAME_hist.csv files; with --plan, the folder for them, counts "
            "by default.",
            show_default=False,
        ),
    ] = None,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Print a script that runs this command with CUTracer, for the kernels that take most time.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Number of kernels for --plan; default: 5.", show_default=False)
    ] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the instructions that CUTracer counted, beside the time that kernels of the same name take.

    Names are the same without namespaces, template and call arguments. JSON has every instruction and every name.
    """
    if plan is not None:
        with opened(path, home, trim, rules) as given:
            _plan(given, gpu, plan, str(counts or "counts"), top or _MOST_PLANNED, json)
        return
    if top is not None:
        raise UsageError("--top chooses kernels for a script: also give --plan")
    if counts is None:
        raise UsageError("give the folder that CUTracer wrote to, or --plan COMMAND for a script that runs CUTracer")
    with opened(path, home, trim, rules) as given:
        counted = read_instructions(counts)
        found = {part.device: kernel_instructions(counted, part, given.window) for part in given.gpus(gpu)}
        if json:
            given.print_json([{"device": device, **asdict(row)} for device, rows in found.items() for row in rows])
            return
        most = "most cycles in" if any(one.cycles for one in counted) else "most issued"
        for device, rows in found.items():
            print_columns(
                f"GPU {device}: instructions by kernel",
                [
                    {**asdict(row), "names": len(row.names), "most_counted": _most(row.cycles or row.instructions)}
                    for row in rows
                ],
                [
                    *("kernel", "names", "launches", "total_ns", ("issued", "instructions")),
                    *(("tensor_share", "tensor cores"), ("most_counted", most)),
                ],
            )


def _plan(given: Opened, gpu: list[str], command: str, counts: str, most: int, json: bool) -> None:
    """Print the script that counts the instructions of the dearest kernels."""
    if not command.strip():
        raise UsageError("--plan: give the command that starts the program")
    kernels = dearest_kernels(summaries(given.profile, given.rules, gpu_numbers(gpu), given.window), most)
    if not kernels:
        raise UsageError(f"{given.profile.path}: no computation kernels to count the instructions of")
    script = counting_script(kernels, command, counts, str(given.profile.path))
    if json:
        given.print_json({"kernels": [asdict(one) for one in kernels], "script": script})
    else:
        typer.echo(script)


def _most(counts: Mapping[str, int]) -> str:
    """The first three opcodes, by their share."""
    total = sum(counts.values())
    return ", ".join(
        f"{opcode} {wording.percent(count / total)}" for opcode, count in list(counts.items())[:3] if count
    )
