"""What is wrong with a step, and what fixing it would save."""

from __future__ import annotations

from traceviz_dag.tables.schema import BIGINT, BY_ITERATION, DOUBLE, INTEGER, TEXT, Column, Table

CULPRIT_COLUMNS = ("rank", "group_ranks", "stage", "dimension", "module", "operation")
"""Columns that name who or what is at fault; those that do not apply are NULL."""

FINDINGS = Table(
    "findings",
    "One finding: what is wrong, who is at fault, what fixing it would save, and the query that yields its rows.",
    BY_ITERATION,
    (
        Column(
            "finding",
            BIGINT,
            "Its place, from 0: how environments differ; then findings before notes, faults first, by gain.",
        ),
        Column("rule", TEXT, "Name of the rule that found it."),
        Column("class", TEXT, "fault (something deviates from peers or good practice) or opportunity (nothing does)."),
        Column(
            "severity",
            TEXT,
            "finding: its gain is at least 1 % of the step, its error bar above 0; note: less, or not predicted; "
            "not_looked_at: the rule cannot judge this iteration, or a part of it, and the statement says why.",
        ),
        Column("rank", BIGINT, "The rank at fault; NULL where it is no rank's."),
        Column("group_ranks", TEXT, "The ranks at fault together, such as 0-3, 6; NULL where it is no more than one."),
        Column("stage", INTEGER, "The pipeline stage at fault, or that of the rank; NULL where neither."),
        Column("dimension", TEXT, "The parallel dimension; NULL where it is none's."),
        Column("module", TEXT, "The module; NULL where it is none's."),
        Column("operation", TEXT, "The operation or Python function on the host, or the kernel; NULL where none."),
        Column("measure", TEXT, "What value is: a name of the rule's."),
        Column("value", DOUBLE, "How strong it is, by that measure."),
        Column("steps", BIGINT, "Training steps of the iteration that it speaks of."),
        Column("step_ns", BIGINT, "Those steps together, ns; NULL where not known."),
        Column(
            "measured_ns",
            BIGINT,
            "Windows of those steps on the host, of the rank where they are longest, ns: the time measured, of which "
            "shares are; NULL without a ProfilerStep.",
        ),
        Column("edit", TEXT, "Edit of table what_if that predicts the gain; NULL where none does."),
        Column("gain_ns", BIGINT, "What that edit saves, ns; NULL where nothing predicts it. Gains do not add up."),
        Column("gain_low_ns", BIGINT, "Lower end of the error bar, ns."),
        Column("gain_high_ns", BIGINT, "Upper end of the error bar, ns."),
        Column(
            "gain_after_ns",
            BIGINT,
            "Of a finding, what that edit saves once those before it are fixed, ns: these add up, each edit once.",
        ),
        Column(
            "at_most_ns",
            BIGINT,
            "Upper bound on what fixing it, with others that its edit fixes, saves, ns; NULL where nothing bounds it.",
        ),
        Column("confidence", TEXT, "measured, or inferred where rows behind it are inferred."),
        Column("capture_mode", TEXT, "What was recorded beside the kernels, which slows a step."),
        Column("refusal", TEXT, "Why no gain is predicted; NULL where one is."),
        Column("statement", TEXT, "It in one sentence, with what fixing it would save."),
        Column("detail", TEXT, "What the statement rests on, and the error bar; NULL where not judged."),
        Column("remedy", TEXT, "What to do about it; NULL where not judged."),
        Column("evidence_sql", TEXT, "The query whose one row has every number of it but the gain's."),
    ),
    how="In the order of `finding`. `statement` is the sentence, `evidence_sql` the query with its numbers, "
    "`gain_ns` what fixing it would save. A `note` is small or without a predicted gain; `not_looked_at` "
    "says why a rule is silent.",
    commands=("findings",),
)
