"""What a home holds that people look at: iterations with their measures, figures, reports and Perfetto traces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from traceviz_dag.analyze.findings.losses import leading
from traceviz_dag.analyze.findings.verdict import LEAD_COLUMNS, lead_of
from traceviz_dag.analyze.wording import capitalised, numbered
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import Partition, checked_partition, escape, unescape
from traceviz_dag.lake.recorded import gone_parts
from traceviz_dag.printable import without_surrogates
from traceviz_dag.show.registry import OWN_KINDS, FigureKind, Scope
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables import ITERATIONS, all_tables
from traceviz_dag.vocabulary import (
    FIGURE_FORMATS,
    FIGURES_FOLDER,
    PERFETTO_FOLDER,
    PREVIEWS_FOLDER,
    REPORTS_FOLDER,
    TimeAlignment,
)

REPORT_ENDING = ".html"
TRACE_ENDINGS = (".pftrace", ".pftrace.gz")
MOST_FINDINGS = 3
"""Findings of an iteration that its page names; ``traceviz findings`` has them all."""

_TABLES = ("topology", "iterations")
"""Where one of these was written, the lake knows the iteration."""

_RANK_FOLDER = "rank_"


@dataclass(frozen=True, slots=True)
class Measures:
    """An iteration's row of the table ``iterations``, as far as it is shown; ``fault`` says why it cannot be read.

    Attributes:
        stale: whether they are kept although the iteration's ranks are others now.
        exposed_ns: exposed communication, mean over the ranks.
    """

    ranks: int | None = None
    partial: bool | None = None
    stale: bool = False
    step_ns: int | None = None
    exposed_ns: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class HeldFigure:
    """A figure that was drawn.

    Attributes:
        title: what it shows.
        files: format → path below the folder of figures, in the order of ``FIGURE_FORMATS``.
        preview: path of its small picture there; None where there is none.
        changed_ns: when its newest file was written, ns since the epoch.
    """

    title: str
    files: dict[str, str]
    preview: str | None
    changed_ns: int


def held_iterations(home: Path) -> list[Partition]:
    """Every iteration of which the home has tables, figures, a report or a Perfetto trace, by run and number."""
    found = {Partition(each.run, each.iteration) for table in _TABLES for each in Lake(home).partitions(table)}
    for folder in (FIGURES_FOLDER, PERFETTO_FOLDER, REPORTS_FOLDER):
        found |= {each for run in _folders(home / folder) for each in _named_in(home / folder / run, run)}
    return sorted(found, key=lambda each: each.sort_key)


def runs_by_age(home: Path) -> dict[str, list[Partition]]:
    """Run → its iterations, the highest number first; the run of which something changed last comes first."""
    by_run = {run: list(group)[::-1] for run, group in groupby(held_iterations(home), key=lambda each: each.run)}
    changed = {run: _changed_ns(home, iterations[0]) for run, iterations in by_run.items()}
    return dict(sorted(by_run.items(), key=lambda item: -changed[item[0]]))


def measures_of(home: Path, iteration: Partition) -> Measures:
    """What the table ``iterations`` says; no measures where it has no row."""
    lake, columns = Lake(home), ("ranks", "partial", "step_ns", "exposed_ns")
    try:
        if not lake.partitions("iterations", iteration.run, iteration.iteration):
            return Measures()
        rows = lake.table("iterations", iteration.run, iteration.iteration).arrow(columns).to_pylist()
        stale = lake.has_stale_measures(iteration.run, iteration.iteration)
    except BadInputError as error:
        return Measures(fault=str(error))
    return Measures(**rows[0], stale=stale) if rows else Measures()


def limit_of(home: Path, iteration: Partition) -> str:
    """What limits the step, as its findings have it; empty where there are none, or they cannot be read."""
    try:
        return lead_of(_findings(home, iteration)).limit
    except BadInputError:
        return ""


def statements_of(home: Path, iteration: Partition) -> list[str]:
    """The first findings and losses of an iteration, each a sentence; none where there is no table ``findings`` of it.

    Raises:
        BadInputError: the table cannot be read.
    """
    return [row["statement"] for row in leading(_findings(home, iteration))[:MOST_FINDINGS]]


def _findings(home: Path, iteration: Partition) -> list[dict[str, Any]]:
    """The rows of table ``findings``, as far as what leads them needs; none where it was not written."""
    lake = Lake(home)
    if not lake.partitions("findings", iteration.run, iteration.iteration):
        return []
    return lake.table("findings", iteration.run, iteration.iteration).arrow(LEAD_COLUMNS).to_pylist()


def deleted_tables(home: Path, iteration: Partition) -> list[str]:
    """Tables of an iteration of which somebody deleted a file, each with its ranks: ``kernels of rank 3``."""
    found = []
    for table in all_tables().values():
        gone = gone_parts(Lake(home).tables_folder, table, iteration.run, iteration.iteration)
        ranks = [part.rank for part in gone if part.rank is not None]
        found += [f"{table.name} of {numbered('rank', ranks)}" if ranks else table.name] if gone else []
    return found


def has_kernels(home: Path, iteration: Partition) -> bool:
    """Whether a timeline of it can be drawn: the lake has kernels of one of its ranks."""
    return bool(Lake(home).partitions("kernels", iteration.run, iteration.iteration))


def figures_of(home: Path, iteration: Partition) -> list[HeldFigure]:
    """The figures of an iteration: those of all ranks, pipelines and replicas, then those of single ranks."""
    folder = Path(escape(iteration.run)) / str(iteration.iteration)
    root = home / FIGURES_FOLDER
    ranks = sorted(name for name in _folders(root / folder) if name.startswith(_RANK_FOLDER))
    found = []
    for place in (folder, *(folder / rank for rank in ranks)):
        found += sorted(_figures_in(root, place), key=lambda item: _place_in_order(item[0]))
    return [figure for _, figure in found]


def report_of(home: Path, iteration: Partition) -> str | None:
    """Path of an iteration's report below the folder of reports; None where there is none."""
    name = f"{escape(iteration.run)}/{iteration.iteration}{REPORT_ENDING}"
    return name if held_file(home, REPORTS_FOLDER, name, (REPORT_ENDING,)) else None


def traces_of(home: Path, iteration: Partition) -> list[str]:
    """Paths of an iteration's Perfetto traces below their folder."""
    folder = f"{escape(iteration.run)}/{iteration.iteration}"
    names = sorted(entry.name for entry in _entries(home / PERFETTO_FOLDER / folder) if _is_file(entry))
    return [f"{folder}/{name}" for name in names if name.endswith(TRACE_ENDINGS)]


def held_file(home: Path, folder: str, name: str, endings: tuple[str, ...]) -> Path | None:
    """A file below a folder of the home; None where there is none of this name and these endings, or a link leads out.

    Args:
        name: its path there, as somebody asks for it.
    """
    try:
        path = real_path(home / folder / name)
        inside = path.is_relative_to(real_path(home) / folder) and path.name.endswith(endings)
        return path if inside and path.is_file() else None
    except (OSError, ValueError):
        # No name of a file: too long, or with a NUL.
        return None


def _named_in(folder: Path, run: str) -> Iterator[Partition]:
    """The iterations that a run's folder names, as folders or as reports."""
    try:
        name = unescape(run)
        checked_partition(ITERATIONS, name, 0, None)
    except (UnicodeDecodeError, UsageError):
        # Nobody who analyses a run can have written it.
        return
    if escape(name) != run:
        return
    for entry in _entries(folder):
        number = entry.name.removesuffix(REPORT_ENDING)
        if number.isascii() and number.isdigit() and str(int(number)) == number:
            yield Partition(name, int(number))


def _figures_in(root: Path, place: Path) -> Iterator[tuple[str, HeldFigure]]:
    """(name, figure) of the files of one folder."""
    files: dict[str, dict[str, os.DirEntry[str]]] = {}
    for entry in _entries(root / place):
        name, dot, ending = entry.name.rpartition(".")
        if dot and ending in FIGURE_FORMATS and _is_file(entry):
            files.setdefault(name, {})[ending] = entry
    previews = {entry.name for entry in _entries(root / place / PREVIEWS_FOLDER) if _is_file(entry)}
    for name, formats in files.items():
        small = f"{name}.png"
        yield (
            name,
            HeldFigure(
                _title(name, place),
                {each: (place / formats[each].name).as_posix() for each in FIGURE_FORMATS if each in formats},
                (place / PREVIEWS_FOLDER / small).as_posix() if small in previews else None,
                max(_mtime_ns(Path(entry.path)) for entry in formats.values()),
            ),
        )


def _title(name: str, place: Path) -> str:
    """What a figure shows, and of which rank, pipeline or replica, as far as its path shows."""
    kind = _kind_of(name)
    if kind is None:
        return name
    of_what = []
    if place.name.startswith(_RANK_FOLDER):
        of_what.append(f"rank {place.name.removeprefix(_RANK_FOLDER).lstrip('0') or '0'}")
    else:
        for word in filter(None, name.removeprefix(kind.name).split("_")):
            if word.isdecimal():
                of_what.append(f"{kind.scope.value} {word}")
            elif word != TimeAlignment.GLOBAL:
                of_what.append(f"time alignment {word}")
    shows = capitalised(kind.shows)
    return f"{shows} ({', '.join(of_what)})" if of_what else shows


def _kind_of(name: str) -> FigureKind | None:
    """The kind of figure that a file's name begins with, the longest of several."""
    return max(
        (kind for kind in OWN_KINDS if name.startswith(kind.name)), key=lambda kind: len(kind.name), default=None
    )


def _place_in_order(name: str) -> tuple[bool, int, str]:
    """What all ranks together show comes first, then the kinds as they are listed, then figures of others."""
    kind = _kind_of(name)
    if kind is None:
        return True, len(OWN_KINDS), name
    return kind.scope is not Scope.ACROSS_RANKS, OWN_KINDS.index(kind), name


def _changed_ns(home: Path, iteration: Partition) -> int:
    """When something of an iteration was last written, as far as its folders show."""
    place = Path(escape(iteration.run)) / str(iteration.iteration)
    paths = [home / folder / place for folder in (FIGURES_FOLDER, PERFETTO_FOLDER)]
    paths.append(home / REPORTS_FOLDER / place.with_name(f"{place.name}{REPORT_ENDING}"))
    lake = Lake(home)
    paths += [lake.path(table, run=iteration.run, iteration=iteration.iteration) for table in _TABLES]
    return max(map(_mtime_ns, paths))


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _folders(parent: Path) -> Iterable[str]:
    return [entry.name for entry in _entries(parent) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, links included; nothing where it is none or cannot be read.

    Names that no address can have (bytes that are not UTF-8) are left out.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if without_surrogates(entry.name) == entry.name]
    except OSError:
        return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)
