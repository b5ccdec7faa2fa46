"""``traceviz memory export``: the tables of a snapshot as Parquet files, its peak as a flame graph, or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.analyze.wording import counted
from traceviz_dag.commands.common.options import JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.memory.common import DeviceOption, SnapshotArgument, end_partial, notes, opened
from traceviz_dag.errors import NoEvidenceError, UsageError
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import FIGURE_FORMATS


class Picture(StrEnum):
    """What a picture shows."""

    TIMELINE = "timeline"
    PEAK = "peak"
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
    json: JsonOption = False,
) -> None:
    """Write the tables of a snapshot, who holds its peak as a flame graph, or a picture.

    The flame graph is one HTML file that needs no network: each bar is a frame of the Python stacks, as wide as what
    was requested below it. Pictures are the timeline by category, the peak as a tree map of who asked for it, or the
    map of the segments at the end.
    """
    suffix = output.suffix.lower()
    if suffix not in ("", ".html", *(f".{each}" for each in FIGURE_FORMATS)):
        raise UsageError(f"--output {output}: give a folder, or a name that ends in .html, .png, .svg or .pdf")
    devices = opened(file, device)
    if suffix == ".html":
        written = _write_page(file, devices[0], output)
    elif suffix:
        written = _write_picture(file, devices[0], picture, output)
    else:
        written = _write_tables(devices, output)
    if json:
        of = [one.device for one in (devices[:1] if suffix else devices)]
        print_json({"file": str(file), "devices": of, "written": written, "notes": notes(devices[0])})
    else:
        rows = sum(one["rows"] or 0 for one in written)
        typer.echo(
            f"wrote {output}" if suffix else f"wrote {len(written)} tables, {counted(rows, 'row', 'rows')}, to {output}"
        )
    end_partial(devices)


def _write_page(file: Path, one: Examined, output: Path) -> list[dict[str, Any]]:
    from traceviz_dag.show.memory.flame_graph import flame_graph_page
    from traceviz_dag.system.whole_files import write_atomically

    write_atomically(real_path(output), flame_graph_page(file.name, one).encode())
    return [_told(real_path(output))]


def _write_picture(file: Path, one: Examined, picture: Picture, output: Path) -> list[dict[str, Any]]:
    from traceviz_dag.show.memory.peak import draw_memory_peak
    from traceviz_dag.show.memory.recording import recording_of
    from traceviz_dag.show.memory.timeline import draw_memory_segments, draw_memory_timeline
    from traceviz_dag.show.page.rendering import encode
    from traceviz_dag.system.whole_files import write_atomically

    recording = recording_of(
        _Tables(file.name, memory_tables(one.snapshot, [one])), place=file.name, warnings=_warnings(one)
    )
    draw = {Picture.PEAK: draw_memory_peak, Picture.SEGMENTS: draw_memory_segments}.get(picture, draw_memory_timeline)
    figure = None if recording is None else draw(recording)
    if figure is None:
        raise NoEvidenceError(f"{file} holds no {'segments' if picture is Picture.SEGMENTS else 'events'} to draw")
    write_atomically(real_path(output), encode(figure, output.suffix.lower().removeprefix(".")))
    return [_told(real_path(output))]


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of a file, as figures take them."""

    run: str
    tables: dict[str, pa.Table]
    iteration: int = 0

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns of a table."""
        return self.tables[name].select(list(columns))


def _warnings(one: Examined) -> list[str]:
    overflowed, _ = one.snapshot.ring
    found = ["older events were overwritten: an earlier peak is unknown"] if overflowed else []
    return [*found, *one.replay.contradictions_in_words]


def _write_tables(devices: list[Examined], output: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    from traceviz_dag.system.whole_files import write_atomically

    folder = real_path(output)
    folder.mkdir(parents=True, exist_ok=True)
    tables = memory_tables(devices[0].snapshot, devices)
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomically(folder / f"{name}.parquet", sink.getvalue())
    return [_told(folder / f"{name}.parquet", table.num_rows) for name, table in tables.items()]


def _told(path: Path, rows: int | None = None) -> dict[str, Any]:
    """A file that was written; ``rows`` of a table, else None."""
    return {"path": str(path), "bytes": path.stat().st_size, "rows": rows}
