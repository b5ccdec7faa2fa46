"""``traceviz nsys export-csv`` and ``export-json``: operations with their launches and ranges, for other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import typer

from traceviz_dag.analyze.nsys_overlap import gpu_overlap
from traceviz_dag.analyze.nsys_rows import operation_rows
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption
from traceviz_dag.lake.write import write_atomically

OutOption = Annotated[Path, typer.Option("--output", "-o", help="The file to write.", dir_okay=False)]


def export_csv(
    path: ProfileArgument,
    output: OutOption,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write one line a kernel or memory operation: times, stream, kind, launch, and the NVTX ranges around the launch.

    Times are whole nanoseconds. With --trim those that run inside the window are written, uncut.
    """
    table = _rows(opened(path, home, trim, rules), gpu)
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink)
    write_atomically(output.resolve(), sink.getvalue())
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

    Times are whole nanoseconds. With --trim those that run inside the window are written, uncut.
    """
    given = opened(path, home, trim, rules)
    table = _rows(given, gpu)
    document: dict[str, Any] = {
        "facts": msgspec.to_builtins(given.profile.facts),
        "overlap": [asdict(gpu_overlap(part, given.window)) for part in given.gpus(gpu)],
        "operations": table.to_pylist(),
    }
    write_atomically(output.resolve(), pa.py_buffer(msgspec.json.encode(document)))
    typer.echo(f"{table.num_rows} operations: {output}")


def _rows(given: Opened, gpu: list[str]) -> pa.Table:
    tables = [operation_rows(given.profile, part, given.window) for part in given.gpus(gpu)]
    return pa.concat_tables(tables)
