"""A job as its home holds it: its runs and iterations, tables and SQL; how one is analysed or opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceviz_dag.api.again import sql_again
from traceviz_dag.api.answers import Answer, html_table
from traceviz_dag.api.arguments import checked
from traceviz_dag.api.held import Held
from traceviz_dag.errors import BadInputError, IncompleteError, UsageError
from traceviz_dag.lake.bounds import Bounds
from traceviz_dag.lake.catalogue import LAKE_FOLDER
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partitions import ANALYSE_AGAIN
from traceviz_dag.lake.recorded import recorded_iterations
from traceviz_dag.printable import is_object_url, printable
from traceviz_dag.system.objects import local_home
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import scratch_folder
from traceviz_dag.vocabulary import DEFAULT_HOME

if TYPE_CHECKING:
    import duckdb

    from traceviz_dag.api.iteration import Iteration
    from traceviz_dag.lake.inputs import IterationInputs
    from traceviz_dag.pipeline.analysis import IterationResult

HOME_VARIABLE = "TRACEVIZ_HOME"
"""Names the home where a call names none, as for the commands."""

PathLike = str | os.PathLike[str]
"""What names a file or folder."""


class Job:
    """Analysed iterations of one home; ``analyze`` and ``open`` give it.

    Attributes:
        home: the folder that holds the tables. failures: one line for each file that the call could not place or read,
            and for each step of its analysis that failed; none where it opened a home: ``conditions`` of its iterations
            name what was not read.
    """

    home: Path
    failures: tuple[str, ...]

    def __init__(
        self,
        home: Path,
        keys: Sequence[tuple[str, int]] | None = None,
        failures: Sequence[str] = (),
        opened: ExitStack | None = None,
        traces: Path | None = None,
        changed: Mapping[tuple[str, int], Sequence[str]] | None = None,
    ) -> None:
        self.home = home
        self.failures = tuple(failures)
        self._held = Held(open_lake(home, refresh=False), traces, opened or ExitStack(), changed or {})
        self._keys = None if keys is None else frozenset(keys)
        if not self.iterations:
            self._refuse_gone(None, None)
            raise BadInputError(home, "holds no analysed iteration", "analyse a trace into it first")

    def close(self) -> None:
        """Remove what ``open`` analysed into a folder of its own; of a home, nothing is removed."""
        self._held.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def iterations(self) -> tuple[Iteration, ...]:
        """Every iteration, by run and number."""
        from traceviz_dag.api.iteration import Iteration

        places = sorted({(part.run, part.iteration) for part in self._held.lake.partitions("kernels")})
        return tuple(
            Iteration(self._held, run, number)
            for run, number in places
            if self._keys is None or (run, number) in self._keys
        )

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs, by name."""
        return tuple(dict.fromkeys(each.run for each in self.iterations))

    @checked
    def iteration(self, number: int | None = None, run: str | None = None) -> Iteration:
        """One iteration; by default the last of the only run.

        Raises:
            UsageError: no such iteration, or several runs and none is named. IncompleteError: somebody deleted its
                tables, or, where no number is given, those of a newer one.
        """
        if run is None and len(self.runs) > 1:
            raise UsageError(f"there are {len(self.runs)} runs; name one: {', '.join(self.runs[:5])}")
        found = [each for each in self.iterations if run in (None, each.run) and number in (None, each.number)]
        if number is None or not found:
            self._refuse_gone(found[-1].run if found else run, number)
        if not found:
            there = ", ".join(f"{each.run} {each.number}" for each in self.iterations[:5])
            raise UsageError(f"no such run or iteration; there are {there}")
        return found[-1]

    def _refuse_gone(self, run: str | None, number: int | None) -> None:
        """Refuse iterations whose kernels somebody deleted, if they are newer than all of their run that are left."""
        newest = {each.run: each.number for each in self.iterations}
        for place in reversed(recorded_iterations(self._held.lake.tables_folder)):
            is_ours = run in (None, place[0]) and (self._keys is None or place in self._keys)
            is_asked = place[1] == number or (number is None and place[1] > newest.get(place[0], -1))
            if is_ours and is_asked and self._held.lake.gone_parts("kernels", *place):
                fault = f"table kernels of {place[0]} {place[1]}: somebody deleted the files"
                raise IncompleteError(f"{fault}; {ANALYSE_AGAIN}")

    @checked
    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        *,
        run: str | None = None,
        iteration: int | None = None,
        rank: int | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """The rows of a table as a DuckDB relation, with ``df()``, ``arrow()`` and ``pl()``; by default all of it.

        Raises:
            UsageError: no such table or column. BadInputError: a file is damaged or gone.
        """
        from traceviz_dag.api.relations import relation

        return relation(self._held.lake.table(name, run, iteration, rank).arrow(columns))

    @checked
    def sql(
        self,
        query: str,
        parameters: Mapping[str, object] | None = None,
        *,
        seconds: float | None = None,
        rows: int | None = None,
        offset: int = 0,
    ) -> duckdb.DuckDBPyRelation:
        """The rows of one statement that reads, as ``traceviz sql`` runs it.

        Args:
            parameters: values of ``$name``. seconds: how long it may take; None does not stop it. rows, offset: how
                many rows are wanted, from which on; None: all.

        Raises:
            UsageError: one line on what is wrong with the query, or that it took too long.
        """
        from traceviz_dag.api.relations import relation

        return relation(self._held.lake.query(query, parameters, Bounds(seconds, rows, offset, in_home=False)))

    @checked
    def command(self, query: str) -> str:
        """The command line of a query."""
        return sql_again(query, self.home, self._held.traces)

    def __repr__(self) -> str:
        return f"Job({str(self.home)!r}, {len(self.iterations)} iterations of {printable(', '.join(self.runs))})"

    def _repr_html_(self) -> str:
        return html_table(
            [{"run": each.run, "iteration": each.number, "ranks": len(each.ranks)} for each in self.iterations]
        )


@checked
def open(path: PathLike | None = None) -> Job:
    """A job as a home holds it; of traces, analysed into a folder that is gone once the job is closed.

    Args:
        path: a home, or a run, iteration or trace; by default the home that ``TRACEVIZ_HOME`` names.

    Raises:
        BadInputError: it holds neither. IncompleteError: nothing of the traces could be analysed.
    """
    if path is not None and not os.fspath(path):
        raise UsageError("name a home, or a run, iteration or trace; . is the current folder")
    stored = path is not None and is_object_url(os.fspath(path))
    folder = Path(path) if path is not None and stored else home_of(path)
    if (not stored and (folder / LAKE_FOLDER).is_dir()) or path is None:
        return Job(folder)
    opened = ExitStack()
    try:
        return open_traces(folder, opened)
    except BaseException:
        opened.close()
        raise


def open_traces(path: Path, opened: ExitStack) -> Job:
    """A job of traces, analysed into a folder that is gone once the stack is closed."""
    return _analysed([path], opened.enter_context(scratch_folder()), opened)


@checked
def analyze(
    *paths: PathLike,
    home: PathLike | None = None,
    rank: int | None = None,
    workers: int = 0,
    rules: PathLike | None = None,
    allow_partial: bool = False,
    force: bool = False,
) -> Job:
    """Analyse traces into a home, as ``traceviz analyze`` does; what is there and unchanged is skipped.

    Args:
        paths: run folders, iteration folders or trace files. home: by default ``TRACEVIZ_HOME``, else
            ``traceviz_home``. rank: of a single file that does not name its own. workers: 0: as many as cores and
            memory allow. rules: TOML file of rules that are tried before the built-in ones. allow_partial: count ranks
            read in part. force: compute again what is unchanged.

    Returns:
        The job, with the iterations of these paths. ``failures`` says what could not be analysed.

    Raises:
        BadInputError: the paths hold no traces. IncompleteError: nothing of them could be analysed.
    """
    if not paths:
        raise UsageError("name what to analyse: a run folder, an iteration folder or a trace file")
    options = {"workers": workers, "allow_partial": allow_partial, "with_partial": allow_partial, "force": force}
    chosen = None if rules is None else real_path(Path(rules))
    return _analysed([Path(path) for path in paths], home_of(home), None, rank, rules=chosen, **options)


def home_of(path: PathLike | None) -> Path:
    """The folder that is named, else the home that the environment names."""
    return local_home(Path(os.environ.get(HOME_VARIABLE, DEFAULT_HOME) if path is None else path))


def _analysed(
    paths: Sequence[Path], home: Path, opened: ExitStack | None = None, rank: int | None = None, **options: Any
) -> Job:
    from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
    from traceviz_dag.pipeline.discovery import inputs_below
    from traceviz_dag.read.object_views import local_paths

    inputs = inputs_below(local_paths(paths, home), rank=rank, home=home, with_known=True)
    results = analyse(AnalysisSettings(home, **options), inputs)
    failures = _failures(inputs, results)
    lake = Lake(home)
    keys = [(each.run, each.iteration) for each in results if lake.partitions("kernels", each.run, each.iteration)]
    if not keys:
        raise IncompleteError(failures[0] if failures else f"nothing of {paths[0]} could be analysed")
    changed = {(each.run, each.iteration): each.changed_lines for each in results}
    return Job(home, keys, failures, opened, None if opened is None else paths[0], changed)


def _failures(inputs: Sequence[IterationInputs], results: Sequence[IterationResult]) -> list[str]:
    unplaced = [line for each in inputs for line in each.problems]
    faults = [f"{each.key}: rank {rank}: {fault}" for each in results for rank, fault in sorted(each.faults.items())]
    return list(dict.fromkeys([*unplaced, *(line for each in results for line in each.failures), *faults]))


@checked
def diff(
    a: PathLike | Iteration,
    b: PathLike | Iteration,
    *,
    home: PathLike | None = None,
    anyway: bool = False,
    least: float = 1.0,
) -> Answer:
    """What changed from A to B, as ``traceviz diff`` has it; its rows are by critical path and add up.

    Args:
        a, b: iterations, or what the command takes: traces, a home, ``HOME/RUN`` or a run of ``home``, each with
            ``@ITERATION``. anyway: although they differ in more than their times. least: percent of A's step from
            which a change counts.
    """
    from traceviz_dag.api.comparison import compared
    from traceviz_dag.api.iteration import Iteration

    held = [each.home for each in (b, a) if isinstance(each, Iteration) and each.traces is None]
    folder = held[0] if home is None and held else home_of(home)
    return compared(a, b, folder, anyway=anyway, least=least)
