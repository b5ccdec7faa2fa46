"""One iteration of a job, and the questions that it answers; each is what the command of its name prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.wording import capitalised, counted, duration, numbered, share
from traceviz_dag.api.again import again, sql_again
from traceviz_dag.api.answers import Answer, Figure, Finding, Gain, Source
from traceviz_dag.api.arguments import checked
from traceviz_dag.api.held import Held
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.bounds import Bounds
from traceviz_dag.lake.catalogue import quoted_text
from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables import UTILIZATION
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Severity

if TYPE_CHECKING:
    import duckdb

    from traceviz_dag.api.evidence import Part
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

MOST_PLACES = 20
"""Places in time of a finding, the weightiest."""

_RECORDED = {"stacks": "call stacks", "shapes": "shapes", "groups": "process groups", "host": "host rows"}
_CAPTURE_SQL = """
SELECT {flags},
    1 - sum(classified_ns) / sum(kernel_ns) AS unclassified_share, sum(rows_dropped)::BIGINT AS rows_dropped
FROM (
    SELECT *, coalesce(has_shapes, rank IN (
        SELECT rank FROM kernels WHERE run = $run AND iteration = $iteration AND input_sizes IS NOT NULL
    )) AS shapes
    FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
)
""".format(
    flags=", ".join(
        f"CASE WHEN bool_and({of}) THEN true WHEN NOT bool_or({of}) THEN false END AS {name}"
        for name, of in (
            ("stacks", "has_stacks"),
            ("shapes", "shapes"),
            ("groups", "has_groups"),
            ("host", "has_host_rows"),
        )
    )
)
"""What all ranks recorded, or none did; NULL: some, or nothing shows it."""

STEP = "training step"
_OWN = "window asked for"
_WINDOWS = {"step": STEP, "kernels": "first kernel to last kernel"}


@dataclass(frozen=True, repr=False)
class Iteration:
    """One iteration; a job gives it.

    Attributes:
        run: its run. number: its own.
    """

    _held: Held
    run: str
    number: int

    def __repr__(self) -> str:
        return f"Iteration({self.run!r}, {self.number})"

    @property
    def _lake(self) -> Lake:
        return self._held.lake

    @property
    def _stored(self) -> StoredIteration:
        # What was read before the job was closed does not answer, either.
        _ = self._held.lake
        return self._read

    @cached_property
    def _read(self) -> StoredIteration:
        from traceviz_dag.pipeline.stored_iteration import StoredIteration

        return StoredIteration(self._lake, self.run, self.number)

    @property
    def home(self) -> Path:
        """The folder that holds it."""
        return self._held.home

    @property
    def traces(self) -> Path | None:
        """What ``open`` analysed into a folder of its own; None of a home."""
        return self._held.traces

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that were read and are counted."""
        return self._stored.ranks

    @property
    def partial(self) -> bool | None:
        """Whether something was not read; None where nothing states how much there is."""
        return self._stored.completeness.partial

    @property
    def step_ns(self) -> int | None:
        """How long its training steps take; None where it is not known."""
        return self._stored.step_ns

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Sentences on what was not read, on files that changed or are gone since the last analysis, and on clocks."""
        from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement

        completeness = self._stored.completeness
        chosen = [f"the capture chose {completeness.chosen}"] if completeness.chosen else []
        clocks = clock_statement(clock_facts(self._stored.table("rank_clocks")))
        changed = self._held.changed.get((self.run, self.number), ())
        return (*completeness.lines, *changed, *chosen, clocks)

    @checked
    def table(
        self, name: str, columns: Sequence[str] | None = None, *, rank: int | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The rows of a table of this iteration, as ``Job.table`` gives them."""
        from traceviz_dag.api.relations import relation

        return relation(self._lake.table(name, self.run, self.number, rank).arrow(columns))

    def findings(self) -> Answer:
        """What is wrong, who is at fault, what fixing it would save; rows are of :class:`Finding`, numbered first."""
        from traceviz_dag.pipeline.answers.findings import findings_answer, findings_rows
        from traceviz_dag.pipeline.answers.iterations import untold_waits
        from traceviz_dag.pipeline.certainty import stored_lost_kernels, stored_unknown_waits

        found = findings_answer(self._stored)
        place = (self._lake, self.run, self.number)
        unknown = stored_unknown_waits(*place) or stored_lost_kernels(*place, self._stored.files)
        told = untold_waits(self.run, self.number, None if unknown is None else asdict(unknown))
        return self._answer(
            "findings",
            [self._stored.lead.limit],
            [_finding(row) for row in findings_rows(found)],
            {**found, **told},
            ("finding",),
            f"SELECT * FROM findings WHERE {self._chosen} ORDER BY finding",
        )

    @checked
    def explain(self, finding: int) -> Answer:
        """One finding, by its number in the table, with the rows behind it and its places in time.

        Its rows are what its ``evidence_sql`` gives; ``values`` has ``finding`` and ``places``: rank, start_ns (on the
        rank's clock) and duration_ns, the weightiest first.

        Raises:
            UsageError: there is no such finding.
        """
        from traceviz_dag.analyze.findings.rule import places_sql
        from traceviz_dag.analyze.findings.rules.registry import rule_if_known

        every = self._stored.findings()
        row = next((row for row in every if row["finding"] == finding), None)
        if row is None:
            raise UsageError(f"there is no finding {finding}; there are 0 to {len(every) - 1}")
        rule, ask = rule_if_known(row["rule"]), self._query
        sql = None if rule is None else places_sql(rule, row, every, MOST_PLACES)
        statements = [row[name] for name in ("statement", "detail", "remedy") if row[name] is not None]
        return self._answer(
            "findings",
            [capitalised(statements[0]), *statements[1:]],
            ask(row["evidence_sql"]) if row["evidence_sql"] else [],
            {"finding": asdict(_finding(row)), "places": ask(sql) if sql else []},
            (),
            row["evidence_sql"],
            options=["--sql"],
            reasons=statements[:1] if row["severity"] == Severity.NOT_LOOKED_AT else [],
        )

    @checked
    def waits(self, part: str = "ranks") -> Answer:
        """Who waited for whom; ``values`` has every part.

        Args:
            part: the rows: ``ranks`` who were late, ``costs`` by first cause, ``matrix`` who waited for whom,
                ``communication`` by dimension, ``links``, ``experts``, ``slow_ranks``, ``stages`` or ``nodes``.

        Raises:
            UsageError: no such part.
        """
        from traceviz_dag.api.evidence import WAITS, by_node
        from traceviz_dag.pipeline.answers.iterations import cut_statements
        from traceviz_dag.pipeline.answers.waits import waits_answer, waits_statements

        behind = _chosen_part(WAITS, part)
        found = waits_answer(self._stored)
        lines = waits_statements(found, next(iter(self._stored.lead.ranks), None))
        cut = len(cut_statements(found["cut_steps"]))
        if part == "nodes":
            behind = by_node(self._stored.nodes())
        # Of ranks that a capture chose the command's answer is whole; yet who was late, it may not show.
        judged = any(row["communications"] for row in found["ranks"])
        unseen = f"{found['uncertain']} of {found['communication_kernels']} communication kernels have no certain wait"
        return self._answer(
            "waits",
            [*lines[cut:], *lines[:cut]],
            found[part],
            found,
            behind.ids,
            self._asked(behind.sql),
            reasons=[f"{unseen}, and none among peers of one stage is"]
            if found["certain"] and found["uncertain"] and not judged
            else [],
        )

    @checked
    def overlap(
        self,
        dimension: str | None = None,
        *,
        rank: int | None = None,
        window: str = "step",
        start_ns: int | None = None,
        end_ns: int | None = None,
        part: str = "ranks",
    ) -> Answer:
        """How much communication is hidden; ``values`` has the means by dimension.

        Args:
            dimension: such as ``tp``; None: each, and ``all`` together. window: step or kernels. start_ns, end_ns: a
                window of your own on the clock of each rank. part: the rows: ``ranks``, of each rank, window and
                dimension, or ``means`` over them, of each dimension.

        Raises:
            UsageError: no such dimension, rank, window or part.
        """
        from traceviz_dag.api.evidence import OUTSIDE_SQL, WINDOW_SQL, overlap_parts
        from traceviz_dag.pipeline.answers.overlap import (
            OVERLAP_SQL,
            Chosen,
            dimension_means,
            of_dimension,
            overlap_of,
            overlap_statement,
        )

        own = start_ns is not None or end_ns is not None
        if window not in _WINDOWS:
            raise UsageError(f"no window {window!r}; there are {', '.join(_WINDOWS)}")
        found, _ = overlap_of(self._lake.home, window, start_ns, end_ns, rank, Chosen(self.run, self.number))
        rows = of_dimension(found, dimension)
        windows, means = dimension_means(rows)
        chosen = {"rank": rank, "window": window, "start_ns": start_ns, "end_ns": end_ns}
        sql = self._asked(WINDOW_SQL if own else OVERLAP_SQL, **chosen)
        if dimension is not None:
            sql = f"SELECT * FROM (\n{sql}\n) WHERE dimension = {quoted_text(dimension.lower())}"
        behind = _chosen_part(overlap_parts(sql), part)
        outside = [row["rank"] for row in self._query(self._asked(OUTSIDE_SQL, **chosen))] if own else []
        unseen = f"the window is outside of all kernels of {numbered('rank', outside)}"
        asked = {"--dimension": dimension, "--rank": rank, "--start-ns": start_ns, "--end-ns": end_ns}
        return self._answer(
            "overlap",
            [overlap_statement(windows, means)],
            means if part == "means" else rows,
            {"windows": windows, "means": means},
            behind.ids,
            behind.sql,
            options=_options({**asked, **({} if own or window == "step" else {"--window": window})}),
            window=_OWN if own else _WINDOWS[window],
            reasons=[unseen] if outside else [],
        )

    @checked
    def critical_path(self, by: str = "cause") -> Answer:
        """What the step time consists of; ``values`` has the path by each of these.

        Args:
            by: the rows: by ``cause``, ``rank``, ``stage``, ``category``, ``module`` or ``dimension``, ``hosts`` where
                it runs on these, or its ``critical_imbalance``.

        Raises:
            UsageError: there is none of that name.
        """
        from traceviz_dag.api.evidence import PATH
        from traceviz_dag.pipeline.answers.critical_path import path_answer, path_statement

        behind = _chosen_part(PATH, by)
        found = path_answer(self._stored)
        statement = "no critical path is known" if found["step_ns"] is None else capitalised(path_statement(found))
        return self._answer("critical-path", [statement], found[by], found, behind.ids, self._asked(behind.sql))

    @checked
    def what_if(
        self,
        *,
        fix_rank: int | Sequence[int] = (),
        fix_link: int | Sequence[int] = (),
        fix_ranks: str | Sequence[str] = (),
        fix_links: str | Sequence[str] = (),
        fix_group: int | Sequence[int] = (),
        fix_node: int | Sequence[int] = (),
        hide: str | Sequence[str] = (),
        faster: Mapping[str, float] | None = None,
        even_layers: bool = False,
        equal_stages: bool = False,
        equal_ranks: bool = False,
        no_jitter: bool = False,
        no_pauses: bool = False,
        no_hidden_waits: bool = False,
        host_free: bool = False,
        balanced_experts: bool = False,
        no_congestion: bool = False,
        microbatches: int | None = None,
        schedule: str | None = None,
        chunks: int | None = None,
        layers: str | None = None,
        no_recompute: str | None = None,
    ) -> Answer:
        """What fixing something would save; rows are of :class:`Gain`. Without an edit, the usual ones, ranked.

        The edits are the options of ``traceviz what-if``; several are predicted one by one and together.

        Raises:
            UsageError: no such rank, dimension or schedule; ``layers`` or ``no_recompute`` name no numbers.
        """
        from traceviz_dag.analyze.causes.gains import named_edit, over_steps, refused_sentence
        from traceviz_dag.api.evidence import REPLAYED, REPLAYED_SQL
        from traceviz_dag.pipeline.answers.wanted import wanted_edits
        from traceviz_dag.pipeline.answers.what_if import what_if_answer
        from traceviz_dag.tables.questions import GAIN_IDS, GAINS_SQL

        asked: dict[str, Any] = {
            "fix_rank": _several(fix_rank),
            "fix_link": _several(fix_link),
            "fix_ranks": _texts("fix_ranks", fix_ranks, _SET),
            "fix_links": _texts("fix_links", fix_links, _SET),
            "fix_group": _several(fix_group),
            "fix_node": _several(fix_node),
            "hide": _texts("hide", hide, "dimensions, such as 'tp'"),
            "faster": [f"{name}={factor}" for name, factor in (faster or {}).items()],
            **{"even_layers": even_layers, "equal_stages": equal_stages, "equal_ranks": equal_ranks},
            **{"no_jitter": no_jitter, "no_pauses": no_pauses, "no_hidden_waits": no_hidden_waits},
            **{"host_free": host_free, "balanced_experts": balanced_experts, "no_congestion": no_congestion},
            **{"microbatches": microbatches, "schedule": schedule, "chunks": chunks},
            **{"layers": layers, "no_recompute": no_recompute},
        }
        wanted = wanted_edits(**asked)
        found = what_if_answer(self._stored, wanted)
        gains = [_gain(row) for row in self._stored.lead.fixes_first(found["rows"])]
        refused = refused_sentence(found["refused"])
        # Asked for, each edit is an answer; else the first is, unless the table has none of what comes before it.
        edits = self._stored.lead.edits
        hidden = [
            row for row in found["refused"] if (row["edit"], row["rank"], row["ranks"], row["dimension"]) in edits
        ]
        unsure = [each for each in (gains if wanted else gains[:1]) if each.gain_low_ns <= 0]
        reasons = [
            *(f"{named_edit(row)}: {row['refusal']}" for row in (found["refused"] if wanted else hidden)),
            *(
                f"{named_edit(asdict(each))}: may save nothing, the error bar begins at {duration(each.gain_low_ns)}"
                for each in unsure
            ),
        ]
        kept = [row for row in self._stored.table("what_if").to_pylist() if row["edit"] and not row["refusal"]]
        in_table = {_gain(row) for row in over_steps(kept)}.issuperset(gains)
        answer = self._answer(
            "what-if",
            [
                *([each.statement for each in gains] or ["Nothing can be predicted"]),
                *([capitalised(refused)] if refused else []),
            ],
            gains,
            found,
            GAIN_IDS,
            self._asked(GAINS_SQL if in_table else REPLAYED_SQL),
            options=_options({f"--{name.replace('_', '-')}": value for name, value in asked.items()}),
            reasons=reasons,
        )
        return answer if in_table else replace(answer, conditions=(*answer.conditions, REPLAYED))

    @checked
    def measure(
        self,
        name: str,
        *,
        dimension: str = ALL_DIMENSIONS,
        rank: int | None = None,
        window: str = "step",
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Answer:
        """One measure: of each rank and window, such as ``exposed_ns``; or of the whole iteration, such as ``mfu``.

        Args:
            name: a column of table overlap, iterations or utilization; see :func:`measures`. The others: as in
                :meth:`overlap`.

        Raises:
            UsageError: no such measure, or it is of the whole iteration and a rank, window or dimension is given.
        """
        from traceviz_dag.api.measures import REFUSALS, measures

        known = measures()
        if name not in known:
            raise UsageError(f"no measure {name!r}; there are {', '.join(known)}")
        table, description = known[name]
        if table == "overlap":
            found = self.overlap(dimension, rank=rank, window=window, start_ns=start_ns, end_ns=end_ns)
            keys = (*found.row_ids, "window_start_ns", "window_end_ns", "partial", name)
            rows = [{key: row[key] for key in keys if key in row} for row in found.rows]
            sql, line, of, ids = found.evidence_sql, found.command, found.sources[0].window, found.row_ids
            doubts = [found.reason] if found.reason else []
        else:
            asked: dict[str, object] = {"rank": rank, "start_ns": start_ns, "end_ns": end_ns}
            asked |= {"dimension": None if dimension == ALL_DIMENSIONS else dimension}
            asked |= {"window": None if window == "step" else window}
            unfit = [argument for argument, value in asked.items() if value is not None]
            if unfit:
                raise UsageError(f"{name} is of the whole iteration; leave out {', '.join(unfit)}")
            ids = ("run", "iteration")
            columns = ", ".join([*ids, name, *([REFUSALS[name]] if name in REFUSALS else [])])
            part = " AND part = 'job'" if table == UTILIZATION.name else ""
            sql = f"SELECT {columns} FROM {table} WHERE {self._chosen}{part}"
            rows, line, of, doubts = self._query(sql), sql_again(sql, self.home, self.traces), STEP, []
        values = [row[name] for row in rows]
        whys = [row[REFUSALS[name]] for row in rows if name in REFUSALS and row.get(REFUSALS[name])]
        doubts += [] if any(value is not None for value in values) else [*whys, f"{name} is not known"]
        answer = self._answer("overlap", [f"{name}: {description}"], rows, {}, ids, sql, window=of, reasons=doubts)
        return replace(answer, command=line)

    def doctor(self) -> Answer:
        """What of it was read and recorded, and what cannot be judged; rows are rules of findings with the reason."""
        sql = f"SELECT rule, statement AS reason FROM findings WHERE {self._chosen} AND severity = 'not_looked_at'"
        facts = self._query(_CAPTURE_SQL)[0]
        recorded = {True: "all ranks", False: "no rank", None: "not known of all ranks"}
        lines = [f"{of}: {recorded[facts[name]]}" for name, of in _RECORDED.items()]
        read = f"{counted(len(self.ranks), 'rank is', 'ranks are')} counted"
        answer = self._answer("findings", [f"{read}; {'; '.join(lines)}"], self._query(sql), facts, ("rule",), sql)
        findings = self.findings()
        return replace(answer, certain=findings.certain, reason=findings.reason)

    @checked
    def figure(self, kind: str, number: int | None = None) -> Figure:
        """A figure, such as ``wait_map`` or ``pipeline_group``; ``traceviz figures --help`` lists the kinds.

        Args:
            number: which rank, pipeline or replica, of kinds of which there are several; by default the first drawn.

        Raises:
            UsageError: no such kind or number, or the tables show nothing of it.
        """
        from traceviz_dag.pipeline.figures import draw, figure_tasks
        from traceviz_dag.pipeline.lake_source import LakeSource
        from traceviz_dag.show.registry import figure_kinds

        kinds = figure_kinds()
        if kind not in kinds:
            raise UsageError(f"no figure {kind!r}; there are {', '.join(kinds)}")
        source = LakeSource(self._lake, self.run, self.number)
        tasks = [one for one in figure_tasks(source, [kinds[kind]], every=True) if number in (None, one.number)]
        drawn = draw(source, tasks[0]) if tasks else None
        if drawn is None:
            which = "" if number is None else f" {number}"
            raise UsageError(f"there is no figure {kind}{which} of {self.run} {self.number}")
        return Figure(kind, str(drawn.get_label()), drawn)

    @property
    def _chosen(self) -> str:
        """The condition on rows of this iteration."""
        return f"run = {quoted_text(self.run)} AND iteration = {self.number}"

    def _asked(self, sql: str, **values: object) -> str:
        """A query of this iteration, to be asked alone."""
        from traceviz_dag.api.evidence import with_literals

        return with_literals(sql, {"run": self.run, "iteration": self.number, **values})

    def _query(self, sql: str) -> list[dict[str, Any]]:
        return self._lake.query(self._asked(sql), bounds=Bounds(in_home=False)).to_pylist()

    def _answer(
        self,
        question: str,
        statements: Sequence[str],
        rows: Sequence[Any],
        values: Mapping[str, Any],
        row_ids: tuple[str, ...],
        evidence_sql: str | None,
        *,
        options: Sequence[str] = (),
        window: str = STEP,
        reasons: Sequence[str] = (),
    ) -> Answer:
        reason = next(iter(reasons), None) or values.get("reason")
        return Answer(
            statement=statements[0],
            statements=tuple(statements),
            rows=tuple(rows),
            values=values,
            row_ids=row_ids,
            evidence_sql=evidence_sql,
            command=self.command(question, *options),
            partial=self.partial,
            conditions=self.conditions,
            certain=bool(values.get("certain", True)) and not reasons,
            reason=reason,
            sources=(self.source(window),),
        )

    @checked
    def command(self, *words: str) -> str:
        """The command line of a question about it, such as ``pipelines``, with its options."""
        return again(words, self.home, self.traces, self.run, self.number)

    @checked
    def source(self, window: str = STEP) -> Source:
        """What answers about it are made of."""
        from hashlib import sha256

        rows = self._lake.table("traces", self.run, self.number).arrow(["rank", "digest"]).to_pylist()
        digests = sorted((row["rank"], row["digest"]) for row in rows if row["rank"] in self.ranks)
        digest = sha256(repr(digests).encode()).hexdigest()[:16]
        return Source(self.run, self.number, self.ranks, digest, window)


def _finding(row: Mapping[str, Any]) -> Finding:
    from traceviz_dag.analyze.findings.rule import culprit

    names = [name for name in Finding.__slots__ if name not in ("class_", "culprit")]
    named = row["culprit"] if "culprit" in row else culprit(row)
    return Finding(class_=row["class"], culprit=named, **{name: row[name] for name in names})


def _gain(row: Mapping[str, Any]) -> Gain:
    from traceviz_dag.analyze.causes.gains import named_edit

    gain, step, low, high = (row[name] for name in ("gain_ns", "step_ns", "gain_low_ns", "gain_high_ns"))
    if gain < 0:
        does, change, of, least, most = "add", -gain, "to", -high, -low
    else:
        does, change, of, least, most = "save", gain, "of", low, high
    statement = (
        f"{capitalised(named_edit(row))}: would {does} {duration(change)} {of} the {duration(step)} step "
        f"({share(change, step)}), {duration(least)} to {duration(most)} (replay)"
    )
    return Gain(statement=statement, **{name: row[name] for name in Gain.__slots__ if name != "statement"})


def _chosen_part(parts: Mapping[str, Part], name: str) -> Part:
    if name not in parts:
        raise UsageError(f"no part {name!r}; there are {', '.join(parts)}")
    return parts[name]


def _several(given: Any) -> list[Any]:
    """What is given once or several times; numbers of other libraries as Python's.

    Raises:
        UsageError: a truth value, or nothing of the kind.
    """
    if isinstance(given, str):
        return [given]
    try:
        return _each([given] if getattr(given, "shape", None) == () or isinstance(given, int) else list(given))
    except TypeError as error:
        raise UsageError(f"{given!r} names no rank, ranks or dimension") from error


_SET = "a text for ranks that are fixed together, such as '0-3,6'"


def _texts(name: str, given: Any, what: str) -> list[str]:
    """Texts that an argument takes, once or several times.

    Raises:
        UsageError: a number; of ranks, a list of them might mean one set, or several.
    """
    texts = _several(given)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{name} takes {what}, not {given!r}")
    return texts


def _each(given: list[Any]) -> list[Any]:
    if any(isinstance(one, bool) for one in given):
        raise TypeError
    return [one if isinstance(one, str) else index(one) for one in given]


def _options(values: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line; without those that are not given."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(name)
        elif isinstance(value, list):
            words += [word for one in value for word in (name, str(one))]
        elif value is not None and value is not False:
            words += [name, str(value)]
    return words
