"""``traceviz memory export``: the tables of a snapshot as Parquet files, its peak as a flame graph, or a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.commands.memory.common import DeviceOption, SnapshotArgument, end_partial, opened
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import FIGURE_FORMATS


class Picture(StrEnum):
    """What a picture shows."""

    TIMELINE = "timeline"
    SEGMENTS = "segments"


def export(
    file: SnapshotArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A folder for Parquet files, one per table; NAME.html for a flame graph; NAME.png, .svg or .pdf for a "
            "picture.",
        ),
    ],
    picture: Annotated[Picture, typer.Option(help="What a picture shows.")] = Picture.TIMELINE,
    device: DeviceOption = None,
) -> None:
    """Write the tables of a snapshot, who holds its peak as a flame graph, or a picture.

    The flame graph is one HTML file that needs no network: each bar is a frame of the Python stacks, as wide as what
    was requested below it. Pictures are the timeline by category, or the map of the segments at the end.
    """
    suffix = output.suffix.lower()
    if suffix not in ("", ".html", *(f".{each}" for each in FIGURE_FORMATS)):
        raise UsageError(f"--output {output}: give a folder, or a name that ends in .html, .png, .svg or .pdf")
    devices = opened(file, device)
    if suffix == ".html":
        _write_page(file, devices[0], output)
    elif suffix:
        _write_picture(file, devices[0], picture, output)
    else:
        _write_tables(devices, output)
    end_partial(devices)


def _write_page(file: Path, one: Examined, output: Path) -> None:
    from traceviz_dag.show.memory.flame_graph import flame_graph_page
    from traceviz_dag.system.whole_files import write_atomically

    write_atomically(real_path(output), flame_graph_page(file.name, one).encode())
    typer.echo(f"wrote {output}")


def _write_picture(file: Path, one: Examined, picture: Picture, output: Path) -> None:
    from traceviz_dag.show.memory.timeline import draw_memory_segments, draw_memory_timeline
    from traceviz_dag.show.page.rendering import encode
    from traceviz_dag.system.whole_files import write_atomically

    draw = {Picture.TIMELINE: draw_memory_timeline, Picture.SEGMENTS: draw_memory_segments}[picture]
    figure = draw(file.name, one)
    if figure is None:
        raise NoEvidenceError(f"{file} holds no {'events' if picture is Picture.TIMELINE else 'segments'} to draw")
    write_atomically(real_path(output), encode(figure, output.suffix.lower().removeprefix(".")))
    typer.echo(f"wrote {output}")


def _write_tables(devices: list[Examined], output: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from traceviz_dag.analyze.memory.tables import memory_tables
    from traceviz_dag.system.whole_files import write_atomically

    folder = real_path(output)
    folder.mkdir(parents=True, exist_ok=True)
    tables = memory_tables(devices[0].snapshot, devices)
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())
    typer.echo(f"wrote {len(tables)} tables to {output}")
