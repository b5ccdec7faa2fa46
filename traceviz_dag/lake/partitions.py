"""Where a partition of a table lies in the lake, and back: ``TABLE/run=…/iteration=…/rank=…/part.parquet``."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from traceviz_dag.errors import UsageError, file_system_remedy
from traceviz_dag.tables import Table

FILE_NAME = "part.parquet"

SCHEMA_VERSION_KEY = b"traceviz.schema"
"""Key in a part's metadata: the version of its table's schema (``Table.version``). Versions without a record of their
parts wrote none."""

ANALYSE_AGAIN = "run traceviz analyze on its traces again, which makes the file anew"
"""What to do about a damaged file of the lake."""

SET_ASIDE = "traceviz lake verify --set-aside moves it away"
"""What to do about a file that nobody wrote there, and of which there is no trace."""

PACK_AGAIN = (
    "run traceviz lake pack, which makes it anew of the files of its ranks where these were kept, else traceviz "
    "analyze on its traces"
)
FORGET_PACKS = "run traceviz lake verify --set-aside, which moves those files away, then traceviz analyze on its traces"

_NO_DAMAGE = (errno.EMFILE, errno.EACCES, errno.EPERM)

_LONGEST_RUN = 215
"""Bytes: the file system takes 255, and files are named after a run, an iteration and what they are for."""

# Readers of hive partitions take these two for a missing value (DuckDB 1.4 the first one in any case).
_READ_AS_MISSING = ("NULL", "__HIVE_DEFAULT_PARTITION__")
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]*")


def fault_and_remedy(error: Exception) -> tuple[str, str]:
    """What is wrong with a file of the lake that cannot be read, and what to do: not each of them is damaged."""
    for number in _NO_DAMAGE:
        if os.strerror(number) in str(error):
            return "cannot be read", file_system_remedy(OSError(number, ""), ANALYSE_AGAIN)
    return "is damaged", ANALYSE_AGAIN


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a table; ``rank`` is None in tables that hold a whole iteration."""

    run: str
    iteration: int
    rank: int | None = None

    @property
    def sort_key(self) -> tuple[str, int, int]:
        """Orders partitions by run, iteration and rank as numbers."""
        return (self.run, self.iteration, -1 if self.rank is None else self.rank)

    @property
    def in_words(self) -> str:
        """Which one it is, as messages name it."""
        return f"run {self.run}, iteration {self.iteration}" + ("" if self.rank is None else f", rank {self.rank}")

    @property
    def below(self) -> str:
        """Where this partition is, from its table's folder; of thousands, a Path each would take most of the time."""
        place = f"run={escape(self.run)}/iteration={self.iteration}"
        return place if self.rank is None else f"{place}/rank={self.rank}"

    def folder(self, table_folder: Path) -> Path:
        """The folder of this partition under its table's folder."""
        return table_folder / self.below


@lru_cache(maxsize=256)
def escape(text: str) -> str:
    """Percent-encode whatever is neither letter, digit, ``-``, ``_`` nor a single dot; :func:`unescape` undoes it.

    The result is safe as part of a folder name and of a Dagster partition key, and the readers of hive partitions
    (DuckDB, Arrow) decode it themselves.
    """
    if text.upper() in _READ_AS_MISSING:
        return _percent(text[0]) + text[1:]
    pieces = []
    for position, character in enumerate(text):
        after_dot = character == "." and text[position - 1 : position] == "."
        plain = character.isalnum() or character in "-_."
        pieces.append(character if plain and not after_dot else _percent(character))
    return "".join(pieces)


def unescape(text: str) -> str:
    """Undo :func:`escape`.

    Raises:
        UnicodeDecodeError: the encoded bytes are not UTF-8, so ``escape`` did not make them.
    """
    return unquote(text, errors="strict")


def checked_partition(table: Table, run: str, iteration: int, rank: int | None) -> Partition:
    """The partition of a table that these values name.

    Raises:
        UsageError: a value cannot be part of a path, or does not fit the table's partition columns.
    """
    check_filters(table, run, iteration, rank)
    if "rank" in table.partitioned_by and rank is None:
        raise UsageError(f"table {table.name} is partitioned by rank: name one")
    return Partition(run, int(iteration), None if rank is None else int(rank))


def check_filters(table: Table, run: str | None, iteration: int | None, rank: int | None) -> None:
    """Refuse values that no partition of the table can have; None represents any.

    Raises:
        UsageError: the run's name is empty, too long or not valid Unicode; a number is negative; or the table has
            no partition column ``rank``.
    """
    if run is not None:
        check_run(run)
    if rank is not None and "rank" not in table.partitioned_by:
        raise UsageError(f"table {table.name} holds whole iterations and is not partitioned by rank")
    for name, number in (("iteration", iteration), ("rank", rank)):
        if number is not None and number < 0:
            raise UsageError(f"{name} {number} is negative; count from 0")


def glob_pattern(table_folder: Path, table: Table, run: str | None = None, iteration: int | None = None) -> str:
    """DuckDB's glob for a table's files, in one run or one iteration of it where they are given.

    The folder's own characters are taken literally; the pattern finds partitions that are written later, too.
    """
    levels = ["run=*" if run is None else f"run={escape(run)}"]
    levels.append("iteration=*" if iteration is None else f"iteration={iteration}")
    levels.extend("rank=*" for name in table.partitioned_by if name == "rank")
    return "/".join([glob_literal(table_folder), *levels, FILE_NAME])


def glob_literal(path: Path | str) -> str:
    """A glob that matches this very file or folder, whatever characters it holds."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def own_columns(table: Table, names: Iterable[str]) -> list[str]:
    """Of the columns of a file those that are the table's own: a packed file has the ranks of its rows besides."""
    return [name for name in names if name not in table.partitioned_by]


def find_files(
    table_folder: Path,
    table: Table,
    run: str | None = None,
    iteration: int | None = None,
    rank: int | None = None,
    *,
    without: Collection[tuple[str, int]] = (),
) -> Iterator[Partition]:
    """Partitions with a finished file of their own, in no order; looks only into the folders that are left.

    Args:
        without: run and iteration of folders that are not looked into.
    """
    for run_name, run_folder in values_in(str(table_folder), "run", None if run is None else escape(run)):
        for step, step_folder in values_in(run_folder, "iteration", None if iteration is None else str(iteration)):
            if (run_name, int(step)) in without:
                continue
            if "rank" not in table.partitioned_by:
                if os.path.isfile(f"{step_folder}/{FILE_NAME}"):  # noqa: PTH113 - as for Partition.below
                    yield Partition(run_name, int(step))
                continue
            for number, rank_folder in values_in(step_folder, "rank", None if rank is None else str(rank)):
                if os.path.isfile(f"{rank_folder}/{FILE_NAME}"):  # noqa: PTH113
                    yield Partition(run_name, int(step), int(number))


def values_in(parent: str, column: str, wanted: str | None = None) -> Iterator[tuple[str, str]]:
    """(value, folder) of each ``column=…`` folder, or of the wanted one alone, whether it is there or not."""
    prefix = f"{column}="
    try:
        names = os.listdir(parent) if wanted is None else [prefix + wanted]  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if not name.startswith(prefix):
            continue
        value = unquote(name.removeprefix(prefix), errors="replace")
        ours = prefix + escape(value) == name if column == "run" else _WHOLE_NUMBER.fullmatch(value)
        if ours:
            yield value, f"{parent}/{name}"


@lru_cache(maxsize=256)
def check_run(run: str) -> None:
    """Refuse a name that no run can have.

    Raises:
        UsageError: it is empty, too long or not valid Unicode.
    """
    if not run:
        raise UsageError("a run needs a name; the name of its folder will do")
    if any("\ud800" <= character <= "\udfff" for character in run):
        raise UsageError(f"run name {run!r} is not valid Unicode; rename its folder")
    length = len(escape(run).encode())
    if length > _LONGEST_RUN:
        fault = f"run name {run[:40]}… takes {length} bytes in the name of a file, over {_LONGEST_RUN}"
        raise UsageError(f"{fault}; shorten its folder's name")


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))
