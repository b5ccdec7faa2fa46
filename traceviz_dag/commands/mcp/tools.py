"""The tools: each asks the Python API one question, and tells the answer; none writes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from traceviz_dag.api.answers import Answer
from traceviz_dag.api.iteration import Iteration
from traceviz_dag.api.job import Job, diff
from traceviz_dag.commands.mcp.told import marked, runnable, sources_told, told, unmarked, with_rows
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.report import report_path
from traceviz_dag.show.web.addresses import timeline_path, usual_address
from traceviz_dag.spans import spanned

QUERY_SECONDS = 20.0
"""How long a query may take."""

MOST_LISTED = 50
"""Iterations that one answer lists: of each, a few files are read."""

MOST_ROWS = 500
"""Rows of a query that are looked at for one answer."""

Run = Annotated[str | None, Field(description="Run; needed where there are several (list_runs).")]
Number = Annotated[int | None, Field(description="Iteration; by default the last of the run.")]
Cursor = Annotated[int, Field(ge=0, description="Row to go on from: next_cursor of the answer before.")]
Rank = Annotated[int | None, Field(description="Only this rank.")]
Dimension = Annotated[str | None, Field(description="Parallel dimension, such as tp, pp, dp; all = together.")]
Ranks = Annotated[list[int], Field(description="Ranks.")]

_FINDING = (
    *("finding", "severity", "class_", "rule", "culprit", "statement"),
    *("gain_ns", "gain_low_ns", "gain_high_ns", "refusal", "confidence"),
)
_GAIN = ("edit", "rank", "ranks", "dimension", "factor", "gain_ns", "gain_low_ns", "gain_high_ns", "predicted_step_ns")
_LATE = ("rank", "communications", "last", "delay_ns", "own_ns", "own_share", "late_category", "blamed")
_OfWaits = Literal["ranks", "links", "experts", "costs", "matrix", "communication", "slow_ranks", "stages", "nodes"]
_OfPath = Literal["cause", "rank", "stage", "category", "module", "dimension", "hosts", "critical_imbalance"]
_General = Literal[
    "even_layers",
    "equal_stages",
    "equal_ranks",
    "no_jitter",
    "no_pauses",
    "no_hidden_waits",
    "host_free",
    "balanced_experts",
    "no_congestion",
]
_OVERLAP = (
    *("rank", "device", "step", "dimension", "window_start_ns", "window_end_ns"),
    *("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "idle_ns", "hidden_share", "hidden_over_min"),
)
_MEAN = ("dimension", "communication_ns", "hidden_ns", "exposed_ns", "hidden_share")
_PART = ("stage", "category", "cause", "a_ns", "b_ns", "change_ns", "low_ns", "high_ns", "is_change")


class Tools:
    """The tools over one job.

    Args:
        job: gives the job, as it is now.
    """

    def __init__(self, job: Callable[[], Job]) -> None:
        self._job = job

    @property
    def all(self) -> list[Callable[..., str]]:
        """Each tool; its docstring is what programs read."""
        return [
            *(self.list_runs, self.doctor, self.findings, self.explain, self.measure, self.overlap, self.waits),
            *(self.critical_path, self.sql, self.what_if, self.diff, self.timeline_link),
        ]

    def list_runs(self, cursor: Cursor = 0) -> str:
        """List the runs and iterations that are held, with their ranks, step time and whether anything is missing."""
        job = self._job()
        rows = [
            {
                **{"run": each.run, "iteration": each.number, "ranks": spanned(each.ranks)},
                **{"step_ns": each.step_ns, "partial": each.partial, "digest": each.source().digest},
            }
            for each in job.iterations[cursor : cursor + MOST_LISTED]
        ]
        head = {"failures": [marked(line) for line in job.failures[:8]], "row_ids": "run, iteration"}
        names = ("run", "iteration", "ranks", "step_ns", "partial", "digest")
        return with_rows(head, rows, names, cursor, more_follow=len(job.iterations) > cursor + MOST_LISTED)

    def doctor(self, run: Run = None, iteration: Number = None) -> str:
        """Say what of an iteration was read and recorded, and which questions its traces cannot answer, and why."""
        answer = self._iteration(run, iteration).doctor()
        return told(answer, ("rule", "reason"), recorded=marked(answer.values))

    def findings(self, run: Run = None, iteration: Number = None, cursor: Cursor = 0) -> str:
        """Say what limits the step: problems ranked by predicted savings, with culprit. Start here.

        Gains are predictions of a replay, each alone: they do not add up. A row without gain_ns has the reason in
        refusal. Notes and rules that cannot judge come last. explain gives detail, remedy and evidence of one.
        """
        answer = self._iteration(run, iteration).findings()
        return told(answer, _FINDING, cursor)

    def explain(
        self,
        finding: Annotated[int, Field(description="Its number, as findings gives it.")],
        run: Run = None,
        iteration: Number = None,
    ) -> str:
        """Explain one finding: its sentence, detail, remedy, the numbers behind it, and where it shows in time."""
        answer = self._iteration(run, iteration).explain(finding)
        own = {name: value for name, value in answer.values["finding"].items() if name not in _SENTENCES}
        places = answer.values["places"][:8]
        return told(answer, _columns(answer), finding=marked(own), places=marked(places))

    def measure(
        self,
        measure: Annotated[str, Field(description="Such as exposed_ns, hidden_share, idle_ns, step_ns or mfu.")],
        dimension: Annotated[str, Field(description="Parallel dimension; all = together.")] = "all",
        rank: Rank = None,
        window: Annotated[Literal["step", "kernels"], Field(description="What is measured.")] = "step",
        start_ns: Annotated[int | None, Field(description="Start of your own window, on each rank's clock.")] = None,
        end_ns: Annotated[int | None, Field(description="End of your own window.")] = None,
        run: Run = None,
        iteration: Number = None,
        cursor: Cursor = 0,
    ) -> str:
        """Give one measure over a window, rank and dimension; the statement defines it. Times are unions, no sums."""
        step = self._iteration(run, iteration)
        name = unmarked(measure)
        answer = step.measure(
            name, dimension=unmarked(dimension), rank=rank, window=window, start_ns=start_ns, end_ns=end_ns
        )
        return told(answer, _columns(answer), cursor)

    def overlap(
        self,
        dimension: Dimension = None,
        rank: Rank = None,
        part: Annotated[
            Literal["means", "ranks"], Field(description="means: by dimension, over ranks; ranks: each.")
        ] = "means",
        run: Run = None,
        iteration: Number = None,
        cursor: Cursor = 0,
    ) -> str:
        """Say how much communication is hidden behind computation. Exposed time is no saving: ask what_if for that."""
        answer = self._iteration(run, iteration).overlap(dimension and unmarked(dimension), rank=rank, part=part)
        return told(answer, _MEAN if part == "means" else _OVERLAP, cursor, windows=answer.values["windows"])

    def waits(
        self,
        part: Annotated[
            _OfWaits,
            Field(description="ranks: who was late; costs: first causes; matrix: who waited for whom."),
        ] = "ranks",
        run: Run = None,
        iteration: Number = None,
        cursor: Cursor = 0,
    ) -> str:
        """Say who waited for whom, and what made the late rank late. certain is false where nothing shows it.

        A delay or cost is no saving: what_if with fix_rank predicts that.
        """
        answer = self._iteration(run, iteration).waits(part)
        return told(answer, _LATE if part == "ranks" else _columns(answer), cursor)

    def critical_path(
        self,
        by: Annotated[_OfPath, Field(description="What the path is split by.")] = "cause",
        run: Run = None,
        iteration: Number = None,
        cursor: Cursor = 0,
    ) -> str:
        """Say what the step time consists of, over all ranks; parts add up to the step. It names no culprit."""
        answer = self._iteration(run, iteration).critical_path(by)
        return told(answer, _columns(answer), cursor)

    def sql(
        self,
        query: Annotated[str, Field(description="One statement that reads, in DuckDB's SQL.")],
        cursor: Cursor = 0,
    ) -> str:
        """Query the tables with SQL, read-only; order the rows, so that a cursor goes on where it stopped.

        The resources traceviz://tables and traceviz://tables/NAME say what there is. Every table has run and
        iteration, most have rank.
        """
        text = unmarked(query)
        job = self._job()
        found = job.sql(text, seconds=QUERY_SECONDS, rows=MOST_ROWS + 1, offset=cursor).to_arrow_table()
        names = found.column_names
        rows = found.slice(0, MOST_ROWS).to_pylist()
        head = {
            "limits": f"{QUERY_SECONDS:g} s; {MOST_ROWS} rows at once",
            "again": runnable(job.command(text)),
            "sources": sources_told([each.source("as the query says") for each in job.iterations[-4:]]),
            "row_ids": "number from the cursor on",
        }
        return with_rows(head, rows, names, cursor, more_follow=found.num_rows > MOST_ROWS)

    def what_if(
        self,
        fix_rank: Annotated[list[int], Field(description="Give these ranks their peers' kernel times.")] = [],  # noqa: B006
        fix_link: Annotated[list[int], Field(description="Give transfers of these ranks the usual time.")] = [],  # noqa: B006
        fix_ranks: Annotated[str | None, Field(description="Fix the GPUs of these ranks together: 0-3,6.")] = None,
        hide: Annotated[list[str], Field(description="Let transfers of these dimensions take no time.")] = [],  # noqa: B006
        faster: Annotated[dict[str, float], Field(description="Dimension: how many times faster.")] = {},  # noqa: B006
        general: Annotated[
            list[_General],
            Field(description="Edits of the whole job."),
        ] = [],  # noqa: B006
        microbatches: Annotated[int | None, Field(description="Run so many micro-batches per step.")] = None,
        schedule: Annotated[
            str | None, Field(description="1f1b, interleaved, interleaved-overlapped, zero-bubble or combined-1f1b.")
        ] = None,
        run: Run = None,
        iteration: Number = None,
        cursor: Cursor = 0,
    ) -> str:
        """Predict what fixing something would save, by a replay of the step; without an edit, the usual ones, ranked.

        Gains are ceilings with error bars, and do not add up: name several edits to have them predicted together.
        """
        edits: dict[str, bool] = dict.fromkeys(general, True)
        answer = self._iteration(run, iteration).what_if(
            **edits,  # type: ignore[arg-type] # mypy takes them for any argument
            fix_rank=fix_rank,
            fix_link=fix_link,
            fix_ranks=unmarked(fix_ranks) if fix_ranks else (),
            hide=[unmarked(each) for each in hide],
            faster={unmarked(name): factor for name, factor in faster.items()},
            microbatches=microbatches,
            schedule=None if schedule is None else unmarked(schedule),
        )
        refused = [
            {name: value for name, value in row.items() if value is not None} for row in answer.values["refused"]
        ]
        return told(answer, _GAIN, cursor, refused=marked(refused))

    def diff(
        self,
        a: Annotated[str, Field(description="RUN@ITERATION that is compared with.")],
        b: Annotated[str, Field(description="RUN@ITERATION that is compared.")],
        anyway: Annotated[bool, Field(description="Although they differ in more than their times.")] = False,
        cursor: Cursor = 0,
    ) -> str:
        """Say what changed from iteration a to b; rows are by critical path and add up to the change of the step."""
        job = self._job()
        answer = diff(_named(job, a), _named(job, b), anyway=anyway)
        return told(answer, _PART, cursor)

    def timeline_link(
        self,
        finding: Annotated[int | None, Field(description="Mark this finding.")] = None,
        rank: Rank = None,
        run: Run = None,
        iteration: Number = None,
    ) -> str:
        """Give addresses for people: the report's timeline with a finding or rank, and the live one."""
        step = self._iteration(run, iteration)
        if rank is not None and rank not in step.ranks:
            raise UsageError(f"no kernels of rank {rank} there; there are {spanned(step.ranks)}")
        if finding is not None:
            step.explain(finding)
        parts = {"part": "timeline", "rank": rank, "finding": finding}
        shown = "&".join(f"{name}={value}" for name, value in parts.items() if value is not None)
        report = report_path(step.home, step.run, step.number)
        head = {
            "sources": sources_told([step.source()]),
            "report": marked(f"{report.as_uri()}#{shown}") if report.exists() else None,
            "report_by": None if report.exists() else runnable(step.command("report")),
            "live": marked(usual_address(timeline_path(step.run, step.number))),
            "live_by": runnable(step.command("timeline", "--web")),
        }
        return with_rows(head, [], ())

    def _iteration(self, run: str | None, number: int | None) -> Iteration:
        job = self._job()
        return job.iteration(number, None if run is None else _run(job, run))


def _columns(answer: Answer) -> tuple[str, ...]:
    return tuple(answer.rows[0]) if answer.rows else answer.row_ids


_SENTENCES = ("statement", "detail", "remedy", "evidence_sql")


def _run(job: Job, text: str) -> str:
    """The run that a text names, as it is or as it was told."""
    name = unmarked(text)
    alike = [run for run in job.runs if unmarked(marked(run)) == name]
    return alike[0] if name not in job.runs and len(alike) == 1 else name


def _named(job: Job, text: str) -> Iteration:
    """The iteration that RUN@ITERATION names; a run alone names its last, a number alone one of the only run."""
    whole = unmarked(text)
    run, _, number = whole.rpartition("@")
    if not (number.isdecimal() and len(number) < _MOST_DIGITS):
        run, number = whole, ""
    return job.iteration(int(number) if number else None, _run(job, run) if run else None)


_MOST_DIGITS = 19
"""Of the number of an iteration, which has 64 bits."""
