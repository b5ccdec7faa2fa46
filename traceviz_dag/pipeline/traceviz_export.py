"""An iteration in TraceViz's layout: a folder a rank with its tables, and its pictures of pipelines and models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import escape
from traceviz_dag.pipeline.figures import IMPORTED_ONCE, readable_ranks
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.show.figures.model_replica import RowOrder, draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.page.activity import read_activity
from traceviz_dag.show.page.members import Group, pipelines, read_members, replicas
from traceviz_dag.show.page.rendering import encode
from traceviz_dag.show.source import rows
from traceviz_dag.show.traceviz_files import (
    COLUMNS,
    STEP_COLUMN,
    as_csv,
    comm_comp_overlap,
    folder_name,
    kernel_tables,
    statistics,
)
from traceviz_dag.system.processes import spread_in_order
from traceviz_dag.system.whole_files import write_atomically
from traceviz_dag.tables.rows import TraceStatusRow
from traceviz_dag.vocabulary import TimeAlignment

FOLDER = "traceviz"
_LEAST_FOR_POOL = 4


@dataclass(frozen=True, slots=True)
class Export:
    """Where one iteration goes."""

    home: Path
    run: str
    iteration: int
    folder: Path

    def source(self) -> LakeSource:
        """The iteration's tables."""
        return LakeSource(Lake(self.home), self.run, self.iteration)


def export_folder(home: Path, run: str, iteration: int) -> Path:
    """HOME/traceviz/RUN/iteration_N."""
    return home / FOLDER / escape(run) / f"iteration_{iteration}"


def write_kernel_analysis(kernels: pa.Table, folder: Path) -> list[Path]:
    """Write the nine Parquet tables of one rank into its folder; one that has no kernels any more is removed.

    Args:
        kernels: one rank of the table ``kernels``.
    """
    tables = kernel_tables(kernels.select(COLUMNS))
    written = []
    for name in STEP_COLUMN:
        path = folder / f"{name}.parquet"
        if name not in tables:
            path.unlink(missing_ok=True)
            continue
        sink = pa.BufferOutputStream()
        pq.write_table(tables[name], sink, compression="zstd")
        write_atomically(path, sink.getvalue())
        written.append(path)
    return written


def export_ranks(export: Export, workers: int = 1) -> Iterator[Path]:
    """Write each readable rank's folder, over several processes where there are many; yields the folders."""
    ranks = readable_ranks(export.source())
    work = partial(export_rank, export)
    if workers <= 1 or len(ranks) < _LEAST_FOR_POOL:
        yield from map(work, ranks)
        return
    yield from spread_in_order(work, ranks, workers, (__name__, *IMPORTED_ONCE))


def export_rank(export: Export, rank: int) -> Path:
    """Write one rank's Parquet tables, both CSV tables and both pictures; returns its folder."""
    try:
        return _export_rank(export, rank)
    except Exception as error:
        error.add_note(f"while rank {rank} of {export.run}, iteration {export.iteration} was written")
        raise


def _export_rank(export: Export, rank: int) -> Path:
    source = export.source()
    kernels = source.table("kernels", COLUMNS, rank)
    trace = rows(source, "traces", TraceStatusRow, rank)[0]["file"]
    folder = export.folder / folder_name(trace, rank)
    folder.mkdir(parents=True, exist_ok=True)
    write_kernel_analysis(kernels, folder)
    tables = kernel_tables(kernels)
    write_atomically(folder / f"Rank{rank}_statistics.csv", as_csv(statistics(tables)))
    write_atomically(folder / f"Rank{rank}_commcompOverlap_analysis.csv", as_csv(comm_comp_overlap(tables)))
    pictures = {
        "overlapping_timeline.png": draw_rank_timeline(source, rank),
        f"comm_comp_overlap_combined_rank{rank}.png": draw_overlap_bars(source, rank),
    }
    for name, figure in pictures.items():
        if figure is not None:
            write_atomically(folder / name, encode(figure))
    return folder


def export_groups(export: Export, alignment: TimeAlignment) -> Iterator[Path]:
    """Draw every pipeline and every model into TraceViz's folders; yields the pictures."""
    source = export.source()
    members = read_members(source)
    known = pipelines(members)
    for group in known:
        name = f"pp_group_{(group.number or 0) + 1}_ranks_{_joined(group.ranks)}_{alignment.value}.png"
        figure = draw_pipeline_group(source, group.number or 0, alignment)
        path = export.folder / f"PP_group_{group.number}" / name
        write_atomically(path, encode(figure))
        yield path
    for replica in replicas(members):
        if replica.number is None:
            continue
        inside = [group for group in known if set(group.ranks) <= set(replica.ranks)]
        yield from _export_model(export, source, replica, inside, alignment)


def _export_model(
    export: Export, source: LakeSource, replica: Group, inside: Sequence[Group], alignment: TimeAlignment
) -> Iterator[Path]:
    """A model's pipelines on one axis, each alone, then together in both orders."""
    name = f"Model_Group_{replica.number}"
    spans = {rank: span for rank in replica.ranks if (span := read_activity(source, rank).span()) is not None}
    pictures = {
        f"pp_group_{group.number}_ranks_{_joined(group.ranks)}": draw_pipeline_group(
            source, group.number or 0, alignment, spans
        )
        for group in inside
    }
    pictures[f"{name}_all_pp_groups_concatenated"] = draw_model_replica(source, replica.number, alignment)
    pictures[f"{name}_all_ranks_combined"] = draw_model_replica(source, replica.number, alignment, RowOrder.STAGE)
    for picture, figure in pictures.items():
        path = export.folder / name / f"{picture}.png"
        write_atomically(path, encode(figure))
        yield path


def _joined(ranks: Sequence[int]) -> str:
    return "_".join(map(str, ranks))
