"""``traceviz nsys export-csv`` and ``export-json``: operations with their launches and ranges, for other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import typer

from traceviz_dag.analyze.nsys.activity import Activity
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.rows import operation_rows
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.overwriting import check_output
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.show.json_rows import json_rows
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import write_atomically

OutOption = Annotated[Path, typer.Option("--output", "-o", help="File to write.", dir_okay=False)]


def export_csv(
    path: ProfileArgument,
    output: OutOption,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write a CSV line per kernel or memory operation: times, stream, kind, launch, NVTX ranges around the launch.

    Times are whole nanoseconds. With --trim, operations that run inside the window are written, uncut.
    """
    check_output(output, path)
    with opened(path, home, trim, rules) as given:
        table = _rows(given, given.gpus(gpu))
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(table, sink)
        write_atomically(real_path(output), sink.getvalue())
        typer.echo(f"{table.num_rows} operations: {output}")


def export_json(
    path: ProfileArgument,
    output: OutOption,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write one JSON document: the facts of the profile, the overlap of each GPU, and every operation.

    Times are whole nanoseconds. With --trim, operations that run inside the window are written, uncut.
    """
    check_output(output, path)
    with opened(path, home, trim, rules) as given:
        parts = given.gpus(gpu)
        table = _rows(given, parts)
        document: dict[str, Any] = {
            "partial": bool(given.faults),
            "facts": msgspec.to_builtins(given.profile.facts),
            "overlap": [asdict(gpu_overlap(part, given.window)) for part in parts],
        }
        head = msgspec.json.encode(document)[:-1] + b',"operations":['
        write_atomically(real_path(output), [head, *json_rows(table), b"]}"])
        typer.echo(f"{table.num_rows} operations: {output}")


def _rows(given: Opened, parts: list[Activity]) -> pa.Table:
    return pa.concat_tables([operation_rows(given.profile, part, given.window) for part in parts])
