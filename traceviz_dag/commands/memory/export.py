"""``traceviz memory export``: the tables of a snapshot as Parquet files, or its peak as a flame graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.memory.common import DeviceOption, SnapshotArgument, end_partial, opened
from traceviz_dag.errors import UsageError


def export(
    file: SnapshotArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A folder for Parquet files, one per table; or a file NAME.html for a flame graph."
        ),
    ],
    device: DeviceOption = None,
) -> None:
    """Write the tables of a snapshot as Parquet files, or who holds its peak as a flame graph in one HTML file.

    The HTML file needs no network. Each bar is a frame of the Python stacks, as wide as what was requested below it.
    """
    from traceviz_dag.system.paths import real_path
    from traceviz_dag.system.whole_files import write_atomically

    if output.suffix and output.suffix != ".html":
        raise UsageError(f"--output {output}: give a folder, or a file whose name ends in .html")
    devices = opened(file, device)
    if output.suffix == ".html":
        from traceviz_dag.show.memory.flame_graph import flame_graph_page

        write_atomically(real_path(output), flame_graph_page(file.name, devices[0]).encode())
        typer.echo(f"wrote {output}")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from traceviz_dag.analyze.memory.tables import memory_tables

        folder = real_path(output)
        folder.mkdir(parents=True, exist_ok=True)
        tables = memory_tables(devices[0].snapshot, devices)
        for name, table in tables.items():
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            write_atomically(folder / f"{name}.parquet", sink.getvalue())
        typer.echo(f"wrote {len(tables)} tables to {output}")
    end_partial(devices)
