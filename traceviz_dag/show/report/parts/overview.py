"""The first screen: what was measured, what the step was spent on, the first findings, and how steps went before."""

from __future__ import annotations

from markupsafe import Markup

from traceviz_dag.analyze.findings.losses import label, leading
from traceviz_dag.analyze.findings.verdict import in_sentences
from traceviz_dag.analyze.utilization import used_of_peak
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.lake.summaries import BY_RANK_SQL
from traceviz_dag.printable import printable
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import ranks_named
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars, trend
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.exposed import Splits, exposed_splits
from traceviz_dag.show.report.parts.findings import finding_card
from traceviz_dag.show.report.parts.part import Page, Part, paragraph, section
from traceviz_dag.vocabulary import Severity

FIRST = 3
"""Findings on the first screen."""

RECORDED_SQL = """
WITH modes AS (
    SELECT count(*) AS files, count(*) FILTER (has_stacks) AS with_stacks, count(*) FILTER (has_shapes) AS with_shapes,
        count(*) FILTER (has_groups) AS with_groups, count(*) FILTER (has_host_rows) AS with_host_rows,
        list(DISTINCT device_name ORDER BY device_name) FILTER (device_name IS NOT NULL) AS devices,
        list(DISTINCT backend ORDER BY backend) FILTER (backend IS NOT NULL) AS backends
    FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
)
SELECT ranks, expected_ranks, failed_ranks, partial_ranks, missing_ranks, modes.*
FROM runs, modes WHERE run = $run AND iteration = $iteration
"""

CLASSIFIED_SQL = """
SELECT sum(kernel_ns)::BIGINT AS kernel_ns, sum(kernel_ns)::BIGINT - sum(classified_ns)::BIGINT AS without_category_ns
FROM traces WHERE run = $run AND iteration = $iteration
"""

STEP_SQL = f"""
{BY_RANK_SQL}
SELECT count(*) AS ranks, bool_and(has_steps) AS has_steps, max(longest_ns) AS longest_ns,
    round(avg(window_ns))::BIGINT AS window_ns,
    round(avg(compute_ns - hidden_ns))::BIGINT AS computation_alone_ns, round(avg(hidden_ns))::BIGINT AS hidden_ns,
    round(avg(exposed_ns))::BIGINT AS exposed_ns,
    round(avg(busy_ns - compute_ns - exposed_ns))::BIGINT AS memory_alone_ns, round(avg(idle_ns))::BIGINT AS idle_ns
FROM by_rank
"""

MFU_SQL = """
SELECT mfu, peak_format, peak_flops_per_s, model_flops_per_gpu, step_ns FROM iterations
WHERE run = $run AND iteration = $iteration AND mfu IS NOT NULL
"""

TREND_SQL = "SELECT iteration, step_ns, exposed_ns, ranks, partial FROM iterations WHERE run = $run ORDER BY iteration"

STEP_PARTS = {
    "computation_alone_ns": ("computation alone", palette.COMPUTATION_ONLY),
    "hidden_ns": ("computation that hides communication", palette.HIDDEN),
    "exposed_ns": ("exposed communication", palette.EXPOSED),
    "memory_alone_ns": ("memory operations alone", palette.MEMORY_ONLY),
    "idle_ns": ("idle", palette.IDLE),
}


def overview(page: Page) -> Markup:
    """The part."""
    return Markup("").join([_verdict(page), _measured(page), _step(page), _findings(page), _trend(page)])


def _verdict(page: Page) -> Markup:
    """What limits the step, what the next fixes save, and how sure that is: as ``traceviz analyze`` prints it."""
    if page.verdict is None:
        return Markup("")
    limit, then, sure = in_sentences(page.verdict)
    return paragraph(Markup("<strong>{}</strong> ").format(printable(limit)), f"{then} ", sure)


def _measured(page: Page) -> Markup:
    asked = page.book.ask("What was measured", RECORDED_SQL)
    if not asked.rows:
        return paragraph("Nothing is known of how this run was captured.", quiet=True)
    row = asked.rows[0]
    expected = f" of {row['expected_ranks']}" if row["expected_ranks"] else ""
    one = row["ranks"] == 1 and not row["expected_ranks"]
    facts = [asked.fact(f"{row['ranks']}{expected} rank{'' if one else 's'}")]
    facts += [asked.fact(", ".join(row[name])) for name in ("devices", "backends") if row[name]]
    mode = [
        word if row[name] == row["files"] else f"{word} ({row[name]} of {row['files']} ranks)"
        for name, word in _MODES.items()
        if row[name]
    ]
    facts.append(asked.fact(f"recorded with {', '.join(mode)}" if mode else "kernels alone"))
    words = Markup(" · ").join(facts)
    lost = [
        f"{ranks_named(row[name])} {word}"
        for name, word in (
            ("failed_ranks", "could not be read"),
            ("partial_ranks", "read in part"),
            ("missing_ranks", "without a trace"),
        )
        if row[name]
    ]
    # The page's head has the mark already where the files are known that it was made from.
    told_above = page.mark.startswith("PARTIAL")
    mark = "" if told_above or not lost else Markup('<p class="attention">{}</p>').format(f"PARTIAL: {', '.join(lost)}")
    return Markup('<p class="measured">{}</p>{}{}').format(words, mark, _unsaid(page))


_MODES = {
    "with_stacks": "call stacks",
    "with_shapes": "shapes",
    "with_groups": "process groups",
    "with_host_rows": "the host's operations",
}


def _unsaid(page: Page) -> Markup:
    """What cannot be said of this iteration, in a line that leads to the whole."""
    lines: list[Markup | str] = []
    silent = [row["rule"].replace("_", " ") for row in page.findings if row["severity"] == Severity.NOT_LOOKED_AT]
    if silent:
        lines.append(f"Not judged: {', '.join(silent)}")
    asked = page.book.ask("Kernel time without a category", CLASSIFIED_SQL)
    row = asked.rows[0] if asked.rows else {}
    if row.get("without_category_ns"):
        part = asked.fact(share(row["without_category_ns"], row["kernel_ns"]))
        lines.insert(0, Markup("{} of the kernel time has no category").format(part))
    if not lines:
        return Markup("")
    whole = Markup('<a href="#part=coverage" class="chip" data-goto="coverage">what is unknown</a>')
    return paragraph(Markup(". ").join(lines), ". ", whole, quiet=True)


def _step(page: Page) -> Markup:
    asked = page.book.ask("What the step was spent on, mean of the ranks", STEP_SQL)
    row = asked.rows[0] if asked.rows else {}
    if not row.get("ranks"):
        return section("The step", paragraph("No rank was read whole, so that nothing is measured over the ranks."))
    what = "step" if row["has_steps"] else "first to last kernel"
    longest = asked.fact(duration(row["longest_ns"]))
    splits = exposed_splits(page)
    pieces: list[Piece] = []
    for column, (name, colour) in STEP_PARTS.items():
        pieces += splits.pieces(row[column]) if column == "exposed_ns" else [Piece(name, row[column], colour)]
    shares = Markup(" · ").join(
        Markup("{} {}").format(name, asked.fact(share(row[column], row["window_ns"])))
        for column, (name, _) in STEP_PARTS.items()
        if row[column]
    )
    ranks = f"{row['ranks']} rank{'' if row['ranks'] == 1 else 's'}"
    bar = stacked_bars(f"What the {what} was spent on", [Bar(f"mean of {ranks}", pieces)])
    whole_ns = page.verdict.to_last_kernel_ns if page.verdict else None
    of_hosts = f" on the hosts, {duration(whole_ns)} to its last kernel" if whole_ns else ""
    return Markup('<section class="step"><h2>{} {}{}</h2>{}{}<p class="shares">{}</p></section>').format(
        "Longest step" if row["has_steps"] else "Longest time from first to last kernel",
        longest,
        of_hosts,
        bar,
        legend({piece.name: piece.colour for piece in pieces if piece.ns}),
        Markup(" · ").join(filter(None, (shares, _waits_and_transfers(splits), _utilization(page)))),
    )


def _waits_and_transfers(splits: Splits) -> Markup:
    if splits.asked is None or not splits.of:
        return Markup("")
    split, fact = splits.of[None], splits.asked.fact
    waits, transfers = (fact(share(ns, split.all_ns)) for ns in (split.wait_ns, split.transfer_ns))
    left = Markup(", of {} neither is known").format(fact(share(split.unknown_ns, split.all_ns)))
    words = Markup("of exposed communication {} waits for other ranks, {} transfers{}")
    return words.format(waits, transfers, left if split.unknown_ns else "")


def _utilization(page: Page) -> Markup:
    """How much of its GPUs' peak the model used in the longest step; nothing where that is not known."""
    asked = page.book.ask("How much of the GPUs' peak the model used", MFU_SQL)
    if not asked.rows:
        return Markup("")
    row = asked.rows[0]
    used = used_of_peak(row["model_flops_per_gpu"], row["step_ns"], row["peak_flops_per_s"])
    mfu = asked.fact(share(round(row["mfu"] * 1e6), 1_000_000))
    return Markup("MFU {} ({}, {} peak)").format(mfu, used, row["peak_format"])


def _findings(page: Page) -> Markup:
    graves = [row for row in page.findings if row["severity"] == Severity.FINDING]
    notes = sum(row["severity"] == Severity.NOTE for row in page.findings)
    if not page.findings:
        known = page.book.source.holds("findings")
        words = "No finding." if known else "This iteration was not looked through for findings."
        return section("Findings", paragraph(words))
    first = leading(page.findings)
    if not first:
        left = f"; {notes} note{' is' if notes == 1 else 's are'} in the tab Findings" if notes else ", and no note"
        return section("Findings", paragraph(f"No finding{left}."))
    cards = Markup("").join(finding_card(page, row, number, label(row)) for number, row in enumerate(first[:FIRST], 1))
    left = f"; {len(first) - FIRST} more in the tab Findings" if len(first) > FIRST else ""
    counted = f"{len(graves)} finding{'' if len(graves) == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"
    count = f"{counted}, the largest losses among them{left}"
    return section(
        "What is wrong, and what fixing it would save",
        Markup('<div class="cards">{}</div>').format(cards),
        paragraph(f"{count}. Savings are what the replay of the step predicts; they do not add up.", quiet=True),
    )


def _trend(page: Page) -> Markup:
    asked: Asked = page.book.ask_run("Steps of this run", TREND_SQL)
    points = [(row["iteration"], float(row["step_ns"])) for row in asked.rows if row["step_ns"] is not None]
    chosen = page.book.source.iteration
    if len(points) < 2 or chosen not in dict(points):
        return Markup("")
    name = printable(page.book.source.run)
    return section(
        "Longest step by iteration",
        trend(f"Longest step of {name} by iteration", points, chosen),
        paragraph(asked.fact(f"{len(points)} iterations"), quiet=True),
    )


PART = Part("overview", "Overview", (), overview)
