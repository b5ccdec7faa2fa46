"""Packing: the parts of the ranks of an iteration in one file per table, which queries read in place of a thousand.

``lake/.packed/run=…/iteration=N/`` has a file for each packed table, and one with the lines that the record had of
their parts. Nothing of it counts until the record names it, in one renaming for all tables of the iteration; a part
that is written later has a line behind that, and wins. The parts' own files stay, unread, until they are pruned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake import recorded
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.packed_rows import rows_by_rank, write_packed
from traceviz_dag.lake.partitions import FILE_NAME, Partition, fault_and_remedy, own_columns, values_in
from traceviz_dag.lake.record_lines import SETTLED, Content, Pack, Part, as_ranges, begun, in_order, line_of
from traceviz_dag.lake.record_lines import packed_folder as folder_of
from traceviz_dag.system.whole_files import remove_all_stale_temporaries, write_atomically
from traceviz_dag.tables import Table, all_tables

LEAST_FILES = 64
"""Files of their own from which on a table of an iteration is packed: fewer cost a query next to nothing."""

_LAYOUT = "1"
"""Of packed files: a change of what they hold beside the rows of their parts gives them other names."""

_PRUNED = ".pruned."
_OWN = re.compile(
    rf"run=[^/]+/iteration=\d+/(\w+\.[0-9a-f]{{16}}\.parquet|[0-9a-f]{{32}}|{re.escape(_PRUNED)}\w+/rank=\d+/{FILE_NAME})"
)


@dataclass(frozen=True, slots=True)
class Status:
    """The files of a table by rank in one iteration.

    Attributes:
        files: that hold its parts: of one rank each, and the packed one.
        own: ranks with a file of their own. packed: ranks in the packed file.
        rows, bytes: of these files.
        kept: files of packed ranks that nothing reads; pruning removes them.
        is_sound: whether the packed file, if there is one, is as it was written.
    """

    table: str
    run: str
    iteration: int
    own: int
    packed: int
    rows: int
    bytes: int
    kept: int
    is_sound: bool

    @property
    def files(self) -> int:
        """How many hold its parts."""
        return self.own + bool(self.packed)

    def is_to_pack(self, least: int) -> bool:
        """Whether packing would make a packed file, or make it anew.

        Args:
            least: files of their own that it takes.
        """
        return self.own >= least or not self.is_sound


def status(lake: Path, run: str | None = None, iteration: int | None = None) -> list[Status]:
    """The tables by rank of each iteration, by run, iteration and table; of the given ones alone, where they are given.

    Raises:
        BadInputError: a file cannot be read, or the record of an iteration is damaged or of a newer version.
    """
    places = chosen_iterations(lake, run, iteration)
    return [one for place in places for table in _tables() for one in _status_of(lake, table, *place)]


def chosen_iterations(lake: Path, run: str | None, iteration: int | None) -> list[tuple[str, int]]:
    """Run and iteration of those that are recorded; of the given ones alone, where they are given."""
    places = recorded.recorded_iterations(lake)
    return [place for place in places if run in (None, place[0]) and iteration in (None, place[1])]


def pack(lake: Path, run: str, iteration: int, least: int = LEAST_FILES) -> list[str]:
    """Pack the tables of an iteration of which so many ranks have files of their own; returns their names.

    A packed file that is damaged is made anew of the files of its ranks, where these were kept. A part that is damaged,
    or that its writer has not settled, stays by itself.

    Raises:
        BadInputError: the record is damaged or of a newer version.
        OutputError: a file cannot be written; what was read before is still read.
    """
    folder = folder_of(lake, run, iteration)
    recorded.settle(lake, run, iteration)
    with recorded.turn_at(folder):
        # What a killed packing left is no use: it may be half a file.
        remove_all_stale_temporaries(folder)
        former = recorded.recorded(lake, run, iteration)
        packs: list[Pack] = []
        sources: dict[Part, Content] = {}
        for table in _tables():
            if any(one.is_to_pack(least) for one in _status_of(lake, table, run, iteration, counted=False)):
                packs += _packed(lake, table, run, iteration, sources)
        if packs:
            place = Partition(run, iteration).below
            lines = [line_of(place, SETTLED, part, sources[part]) for part in in_order(sources)]
            data = b"".join([begun(place), *lines])
            name = xxhash.xxh3_128_hexdigest(data)
            write_atomically(folder / name, data)
            recorded.write_packs(lake, run, iteration, [replace(one, sources=name) for one in packs], former)
        recorded.remove_others(lake, run, iteration, recorded.recorded(lake, run, iteration))
    return [one.table for one in packs]


def is_own(path: str) -> bool:
    """Whether packing or pruning gives a file this place, from the folder of all packed files."""
    return _OWN.fullmatch(path) is not None


def unsound(lake: Path, run: str, iteration: int) -> list[Path]:
    """Packed files that are not as they were written; once :func:`pack` has tried, no files of their ranks are left.

    Raises:
        BadInputError: the record is damaged or of a newer version.
    """
    found = ((table, parts) for table in _tables() for parts in _parts(lake, table, run, iteration))
    return [parts.files(lake, table.name)[-1] for table, parts in found if not _is_sound(lake, table, parts)]


def prune(lake: Path, run: str, iteration: int) -> int:
    """Remove the files of single ranks whose rows a packed file has; returns how many.

    They stay where a rank of the table was written since, where the packed file is damaged, and where somebody else has
    files beside them. The folder of an iteration goes at once: no pattern finds a part of it.

    Raises:
        BadInputError: the record is damaged or of a newer version.
        OutputError: the record cannot be locked.
    """
    folder = folder_of(lake, run, iteration)
    pruned = 0
    if not folder.is_dir():
        return 0
    with recorded.turn_at(folder), recorded.exclusively(lake, run, iteration):
        for table in _tables():
            own = Partition(run, iteration).folder(lake / table.name)
            for parts in _parts(lake, table, run, iteration):
                kept = [] if parts.own else _kept(own, parts.pack)
                if kept and _is_sound(lake, table, parts, read_again=True):
                    own.rename(folder / f"{_PRUNED}{table.name}")
                    pruned += len(kept)
        recorded.remove_others(lake, run, iteration, recorded.recorded(lake, run, iteration))
    return pruned


def _tables() -> list[Table]:
    return [table for table in all_tables().values() if "rank" in table.partitioned_by]


def _parts(lake: Path, table: Table, run: str, iteration: int) -> list[recorded.Parts]:
    """The parts of a table of an iteration, where there are any."""
    return [one for one in recorded.find_parts(lake, table, run, iteration) if one.own or one.packed]


def _status_of(lake: Path, table: Table, run: str, iteration: int, counted: bool = True) -> Iterator[Status]:
    for parts in _parts(lake, table, run, iteration):
        rows = size = 0
        for path in parts.files(lake, table.name) if counted else ():
            try:
                rows, size = rows + pq.read_metadata(path).num_rows, size + path.stat().st_size
            except DAMAGED as error:
                raise BadInputError(path, *fault_and_remedy(error)) from error
        sound = _is_sound(lake, table, parts)
        kept = len(_kept(Partition(run, iteration).folder(lake / table.name), parts.pack)) if counted else 0
        yield Status(table.name, run, iteration, len(parts.own), len(parts.packed), rows, size, kept, sound)


def _is_sound(lake: Path, table: Table, parts: recorded.Parts, read_again: bool = False) -> bool:
    """Whether the packed file is as it was written; where there is none, nothing is wrong with it."""
    some = [Partition(parts.run, parts.iteration, rank) for rank in parts.packed[:1]]
    return all(recorded.is_as_recorded(lake, table.name, one, read_again=read_again) for one in some)


def _kept(folder: Path, pack: Pack | None) -> list[int]:
    """Packed ranks that still have files of their own; none where something else lies there as well."""
    if pack is None or not folder.is_dir():
        return []
    ranks = [int(rank) for rank, below in values_in(str(folder), "rank") if os.listdir(below) == [FILE_NAME]]  # noqa: PTH208
    return ranks if len(ranks) == len(list(folder.iterdir())) and all(rank in pack for rank in ranks) else []


def _packed(lake: Path, table: Table, run: str, iteration: int, sources: dict[Part, Content]) -> Iterator[Pack]:
    """Write the packed file of a table, and add what its parts are to the sources."""
    (parts,) = _parts(lake, table, run, iteration)
    record = recorded.recorded(lake, run, iteration)
    contents: dict[int, Content] = {}
    for one in parts.partitions:
        held, content = record.held((table.name, one.rank)), recorded.content_of(lake, table.name, one)
        if content is not None and one.rank is not None and (isinstance(held, Pack) or len(held) == 1):
            contents[one.rank] = content
    taken = set(parts.packed if _is_sound(lake, table, parts) else ())
    own = {rank: content for rank, content in sorted(contents.items()) if rank not in taken}
    rows = merge(_rows_of_own(lake, table, parts, own), _rows_of_pack(lake, table, parts, taken), key=itemgetter(0))
    named = [_LAYOUT, table.version, *(f"{rank} {contents[rank].digest}" for rank in sorted(contents))]
    name = xxhash.xxh3_64_hexdigest("\n".join(named).encode())
    if parts.pack is not None and parts.pack.name == name:
        # What the record names stays until it names another: a part of which this was made may be damaged now.
        name = xxhash.xxh3_64_hexdigest(f"instead of {name}".encode())
    path = Pack(table.name, (), "", name, (), "").path(lake, run, iteration)
    digest, ranks = write_packed(path, table, rows)
    # A packed rank whose rows cannot be taken along would be lost: all stays as it is until it is analysed again.
    if ranks and contents.keys() >= set(parts.packed) <= set(ranks):
        sources.update({(table.name, rank): contents[rank] for rank in ranks})
        missing = sorted({column for rank in ranks for column in contents[rank].missing})
        yield Pack(table.name, as_ranges(ranks), digest, name, tuple(missing), "")


def _rows_of_own(
    lake: Path, table: Table, parts: recorded.Parts, contents: Mapping[int, Content]
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each rank whose file is as it was written, with the columns of the table."""
    for rank, content in contents.items():
        path = recorded.own_path(lake, table.name, Partition(parts.run, parts.iteration, rank))
        with suppress(FileNotFoundError):
            data = Path(path).read_bytes()
            # Compared in memory: what is packed is what was compared.
            if xxhash.xxh3_128_hexdigest(data) == content.digest:
                with pq.ParquetFile(pa.BufferReader(data)) as file:
                    rows = file.read(use_threads=False)
                    if rows.schema.equals(table.schema):
                        yield rank, rows


def _rows_of_pack(
    lake: Path, table: Table, parts: recorded.Parts, ranks: Collection[int]
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of ranks in the packed file that there is."""
    if parts.pack is not None and ranks:
        with pq.ParquetFile(parts.pack.path(lake, parts.run, parts.iteration)) as file:
            if own_columns(table, file.schema_arrow.names) == table.schema.names:
                yield from rows_by_rank(file, sorted(ranks), table.schema.names)
