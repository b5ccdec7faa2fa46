"""Tabs of the report against independent sums: parts add up, cells are all waits, and what lacks is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from markupsafe import escape
from typer.testing import CliRunner

from tests.asked import asked
from tests.commands.jobs import home_of
from tests.sets import fast
from tests.show.report.pages import text_of
from traceviz_dag.analyze.findings.losses import leading
from traceviz_dag.analyze.findings.rules.registry import rule_named
from traceviz_dag.analyze.findings.verdict import lead_of
from traceviz_dag.analyze.step_parts import step_parts
from traceviz_dag.commands.main import app
from traceviz_dag.errors import IncompleteError, UsageError
from traceviz_dag.lake import packing
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.report import StoredReportSource, write_report
from traceviz_dag.show.figures import wait_rows
from traceviz_dag.show.report.evidence import Book
from traceviz_dag.show.report.parts import against, memory, waits
from traceviz_dag.show.report.parts.part import MOST_SHOWN, Page
from traceviz_dag.show.report.places import places_of
from traceviz_dag.show.report.report import report_page
from traceviz_dag.show.report.timeline import Timeline, read_timeline
from traceviz_dag.tables import TABLES
from traceviz_dag.tables.findings import FINDINGS


def source_of(lake: Lake, iteration: int | None = None) -> StoredReportSource:
    parts = [part for part in lake.partitions("topology") if iteration in (None, part.iteration)]
    return StoredReportSource(lake, parts[-1].run, parts[-1].iteration)


def page_of(source: StoredReportSource, other: StoredReportSource | None = None) -> Page:
    return Page(Book(source), Timeline(), "", [], lead_of([]), other)


def pairs_of(page: str) -> dict[str, Any]:
    (document,) = re.findall(r'<template id="pairs-rows">(.*?)</template>', page, re.DOTALL)
    return json.loads(document)


@pytest.mark.parametrize("most", [wait_rows.MOST_ROWS, 2])
def test_the_cells_of_the_map_are_all_waits_also_where_ranks_share_rows(most: int, monkeypatch) -> None:
    monkeypatch.setattr(wait_rows, "MOST_ROWS", most)
    lake = open_lake(home_of("slow_rank"))
    source = source_of(lake)
    page = str(waits.waits(page_of(source)))
    pairs = pairs_of(page)
    ((total, rows),) = (
        row.values() for row in lake.query("SELECT sum(wait_ns)::BIGINT, count(*) FROM blame").to_pylist()
    )
    assert sum(wait[4] for wait in pairs["waits"]) == total
    assert len({tuple(wait[:2]) for wait in pairs["waits"]}) == page.count('class="cell"')
    assert len(pairs["waits"]) == rows if most > 2 else len(pairs["rows"]) < len(source_ranks(lake))
    # What the page hands out for a cell gives the rows of this cell.
    row, column = pairs["waits"][0][:2]
    sql = (
        pairs["sql"]
        .replace("{row}", str(pairs["row_keys"][row]))
        .replace("{column}", str(pairs["column_keys"][column]))
    )
    of_cell = [wait[4] for wait in pairs["waits"] if wait[:2] == [row, column]]
    assert sorted(lake.query(sql)["wait_ns"].to_pylist()) == sorted(of_cell)


def source_ranks(lake: Lake) -> list[int]:
    return lake.query("SELECT DISTINCT rank FROM blame")["rank"].to_pylist()


UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def length_in(words: str) -> float:
    """What ``2.1 ms``, ``2.1 ms, 1.8 ms to 2.4 ms`` (with an error bar) and ``−1 ns to 3 µs`` (a range) are long."""
    values = [float(value.replace("−", "-")) * UNITS[unit] for value, unit in re.findall(r"(\S+) ([nµm]?s)\b", words)]
    return values[1] - values[0] if len(values) == 2 else abs(values[0])


def test_boxes_are_as_long_as_they_say_and_those_of_the_path_in_the_order_of_the_legend() -> None:
    charts = r'<svg class="chart"[^>]*aria-label="([^"]*)"[^>]*>(.*?)</svg></div>(?:<p class="legend">(.*?)</p>)?'
    checked = set()
    for title, drawn, legend in re.findall(charts, text_of("slow_rank"), re.DOTALL):
        boxes = re.findall(r'<title>([^<]*): ([^<]*)</title><rect x="[^"]*" y="([^"]*)" width="([^"]*)"', drawn)
        if title.startswith(("Who waited", "Share of")):  # equal cells, and shares
            continue
        widths, lengths = [float(width) for *_, width in boxes], [length_in(words) for _, words, _, _ in boxes]
        assert max(widths) > 100, title
        # Short ones are drawn wide enough to be seen, and words are rounded.
        assert widths == pytest.approx([each * max(widths) / max(lengths) for each in lengths], rel=0.02, abs=3), title
        checked.add(title.split(" ")[0])
        if title.startswith("The critical path by"):
            # Kinds that share a colour share a square.
            order = [name for names in re.findall(r"</svg> ([^<]*)</span>", legend) for name in names.split(", ")]
            placed = [(float(top), order.index(name)) for name, _, top, _ in boxes]
            assert placed == sorted(placed) and len(placed) > len(order)
    assert {"What", "From", "The", "Offset", "Residuals", "Kernel"} <= checked


@pytest.mark.parametrize("job", ["two_iterations", "without_micro_batches"])
def test_a_step_taken_apart_by_sql_is_that_of_the_nights(job: str) -> None:
    lake = open_lake(home_of(job))
    source = source_of(lake)
    (step,) = lake.table("iterations", source.run, source.iteration).arrow().to_pylist()
    for rank in step["covered_ranks"]:
        found = source.ask(against.STEP_PARTS_SQL.format(rank=rank)).to_pylist()
        windows = lake.table("overlap", source.run, source.iteration, rank).arrow().to_pylist()
        windows = [row for row in windows if row["dimension"] == "all"]
        windows = [row for row in windows if row["window_name"] == "step"] or windows
        longest = max(windows, key=lambda row: row["window_end_ns"] - row["window_start_ns"])
        kernels = lake.table("kernels", source.run, source.iteration, rank).arrow()
        kernels = kernels.filter(pc.equal(kernels["device"].cast(pa.string()), longest["device"]))
        wanted = step_parts(kernels, longest["window_start_ns"], longest["window_end_ns"])
        own = {row["part"]: row["ns"] for row in found if row["part"] != "other_ranks"}
        assert {part: ns for part, ns in own.items() if ns} == {part: ns for part, ns in wanted.items() if ns}
        assert sum(row["ns"] for row in found) == step["step_ns"]


def test_differences_of_two_iterations_add_up_to_that_of_their_steps() -> None:
    lake = open_lake(home_of("two_iterations"))
    here, there = source_of(lake), source_of(lake, lake.partitions("topology")[0].iteration)
    assert here.iteration != there.iteration
    steps = dict(lake.query("SELECT iteration, step_ns FROM iterations").to_pandas().itertuples(index=False))
    page = str(against.against(page_of(here, there)))
    change = int(steps[here.iteration] - steps[there.iteration])
    assert f"({change:+,} ns)" in page
    assert f"Iteration {here.iteration} against iteration {there.iteration}" in page


def test_a_comparison_that_does_not_hold_says_why() -> None:
    here, there = (source_of(open_lake(home_of(job))) for job in ("healthy", "without_stacks"))
    page = str(against.against(page_of(here, there)))
    assert "Captured in different modes (call stacks" in page
    page = str(against.against(page_of(here, source_of(open_lake(home_of("one_rank"))))))
    assert "ranks were read: longest and mean are not of the same ranks" in page
    page = str(against.against(page_of(here, source_of(open_lake(home_of("slow_link"))))))
    assert "Other parallel sizes (tp 1 and 2" in page


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("elsewhere", "the home holds no run elsewhere"),
        ("two_iterations:x", "x is no number of an iteration"),
        (":11", "it would be compared with itself"),
        (":99", "has no iteration 99"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(wanted: str, told: str) -> None:
    home = str(home_of("two_iterations"))
    result = CliRunner().invoke(app, ["report", "--home", home, "--iteration", "11", "--against", wanted])
    assert isinstance(result.exception, UsageError)
    assert told in str(result.exception)


@pytest.mark.long
def test_a_comparison_with_a_partial_iteration_ends_with_2(tmp_path) -> None:
    home = tmp_path / "home"
    shutil.copytree(home_of("two_iterations"), home)
    shutil.rmtree(next((home / "lake" / "traces").glob("run=*/iteration=10/rank=1")))
    arguments = ["report", "--home", str(home), "--iteration", "11", "--against", ":10", "-o", str(tmp_path / "x.html")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, IncompleteError)
    page = (tmp_path / "x.html").read_text()
    assert "PARTIAL: rank 1 unusable" in page
    assert 'id="part-against"' in page


def test_tabs_without_tables_say_so_and_memory_has_none(tmp_path) -> None:
    home = tmp_path / "home"
    shutil.copytree(home_of("slow_rank"), home)
    kept = {"traces", "kernels", "overlap", "topology", "runs", "iterations", "process_groups"}
    lake = open_lake(home)
    lake.delete(*(name for name in TABLES if name not in kept), run="slow_rank")
    page = report_page(source_of(lake))
    for name in ("waits", "pipelines", "path", "clocks", "kernels", "coverage"):
        assert f'id="part-{name}"' in page
    assert "Nothing to show: table rank_clocks holds no rows" in page
    assert "the critical path (table path_segments" in page
    assert 'id="part-memory"' not in page
    assert 'id="part-against"' not in page
    assert memory.memory(page_of(source_of(lake))) is None


def test_hostile_texts_of_every_query_stay_text() -> None:
    hostile = "</template></script><b>x</b>\x1b[31m" + "A" * 10_000
    told = {
        "name",
        "file",
        "fault",
        "statement",
        "refusal",
        "without",
        "modes",
        "device_name",
        "backend",
        "pair",
        "doing",
    }
    told |= {
        "dimension",
        "collective",
        "group_description",
        "dimension_candidates",
        "schedule",
        "format",
        "late_category",
    }

    class Hostile(StoredReportSource):
        def ask(self, sql: str) -> pa.Table:
            rows = super().ask(sql)
            for place, name in enumerate(rows.column_names):
                if name in told and rows.num_rows:
                    rows = rows.set_column(place, name, pa.array([hostile] * rows.num_rows))
            return rows

    source = source_of(open_lake(home_of("slow_rank")))
    page = report_page(
        Hostile(source.lake, source.run, source.iteration), against=Hostile(source.lake, source.run, source.iteration)
    )
    assert "<b>x</b>" not in page
    assert "\x1b" not in page
    assert page.count("<template") == page.count("</template>")
    assert page.count("</script>") == 2
    assert not re.search(r"<[^>]* style=", page)


@pytest.mark.long
def test_the_same_tables_give_the_same_page(tmp_path) -> None:
    lake = open_lake(home_of("slow_rank"))
    source = source_of(lake)
    again = write_report(lake, source.run, source.iteration, tmp_path / "page.html")
    assert again.read_text() == text_of("slow_rank")


@pytest.mark.long
def test_a_packed_home_gives_the_same_page(tmp_path) -> None:
    lake = open_lake(Path(shutil.copytree(home_of("slow_rank"), tmp_path / "home")))
    source = source_of(lake)
    plain = write_report(lake, source.run, source.iteration, tmp_path / "plain.html")
    assert "kernels" in packing.pack(lake.tables_folder, source.run, source.iteration, least=2)
    assert write_report(lake, source.run, source.iteration, tmp_path / "packed.html").read_text() == plain.read_text()


def test_the_first_screen_says_what_some_ranks_lack_and_what_is_not_reported() -> None:
    lake = open_lake(home_of("blind_rank"))
    page = text_of("blind_rank")
    first = page[page.index('id="part-overview"') : page.index('id="part-timeline"')]
    assert "call stacks (3 of 4 ranks)" in first
    assert "the host&#39;s operations (3 of 4 ranks)" in first
    silent = lake.query("SELECT rule FROM findings WHERE severity = 'not_looked_at' ORDER BY finding")["rule"]
    assert f"Not judged: {', '.join(rule.replace('_', ' ') for rule in silent.to_pylist())}" in first


@pytest.mark.long
def test_findings_that_were_looked_for_in_vain_are_none_and_not_unknown(tmp_path) -> None:
    home = tmp_path / "home"
    shutil.copytree(home_of("one_rank"), home)
    lake = open_lake(home)
    (part,) = lake.partitions("findings")
    lake.write("findings", FINDINGS.schema.empty_table(), run=part.run, iteration=part.iteration)
    page = write_report(lake, part.run, part.iteration, tmp_path / "page.html").read_text()
    assert "No finding." in page
    assert "looked through" not in page
    lake.delete("findings", run=part.run)
    page = write_report(lake, part.run, part.iteration, tmp_path / "page.html").read_text()
    assert page.count("looked through") == 2


def test_the_page_shows_the_remedy_of_each_finding_as_the_command_does() -> None:
    lake = open_lake(home_of("slow_rank"))
    page = text_of("slow_rank")
    found = [row for row in lake.query("FROM findings").to_pylist() if row["severity"] == "finding"]
    assert "exposed_communication" in {row["rule"] for row in found}
    for row in found:
        assert str(escape(rule_named(row["rule"]).what_to_do(row))) in page, row


def test_of_many_findings_the_worst_are_shown_and_asked_for_and_the_others_counted(tmp_path) -> None:
    lake = open_lake(Path(shutil.copytree(home_of("slow_rank"), tmp_path / "home")))
    (part,) = lake.partitions("findings")
    rows = lake.query("FROM findings ORDER BY finding").to_pylist()
    fault = next(row for row in leading(rows) if row["severity"] == "finding" and row["evidence_sql"])
    faults = [{**fault, "finding": number, "gain_ns": 10**9 - number} for number in range(100)]
    others = [{**row, "finding": 100 + row["finding"]} for row in rows if row["severity"] != "finding"]
    many = pa.Table.from_pylist([*faults, *others], FINDINGS.schema)
    lake.write("findings", many, run=part.run, iteration=part.iteration)
    asked_for: list[str] = []

    class Counted(StoredReportSource):
        def ask(self, sql: str) -> pa.Table:
            asked_for.append(sql)
            return super().ask(sql)

    page = report_page(Counted(lake, part.run, part.iteration))
    tab = page[page.index('id="part-findings"') : page.index('id="part-overlap"')]
    assert f"The first {MOST_SHOWN} of {len(leading([*faults, *others]))} findings and losses." in tab
    assert [f"<b>{number}. " in tab for number in (1, MOST_SHOWN)] == [True, True]
    assert tab.count("card finding") == MOST_SHOWN
    assert asked_for.count(fault["evidence_sql"]) < MOST_SHOWN + 10


@pytest.mark.long
@pytest.mark.parametrize("job", fast(["slow_rank", "dp_only", "without_clocks"], "slow_rank"))
def test_findings_are_marked_where_they_are(job: str) -> None:
    lake = open_lake(home_of(job))
    (part,) = lake.partitions("findings")
    source = StoredReportSource(lake, part.run, part.iteration)
    ranks = read_timeline(source).document["ranks"]
    first = {row["rank"]: int(row["first_ns"]) for row in ranks}
    findings = lake.query("FROM findings ORDER BY finding").to_pylist()
    marked, wanted = set(), []
    for finding in findings:
        places = [
            (rank, first[rank] + start, length) for rank, start, length in places_of(source, finding, findings, ranks)
        ]
        marked |= {finding["rule"]} if places else set()
        assert finding["rank"] is None or {rank for rank, _, _ in places} <= {finding["rank"]}
        for rank, start, length in places:
            at = f"rank = {rank} AND start_ns = {start} AND duration_ns = {length}"
            of_dimension = f"kind = 'communication' AND dimension = '{finding['dimension']}'"
            last = f"""kernel_id IN (
                SELECT own.kernel_id FROM collectives AS own JOIN collectives AS waiting USING (communication)
                WHERE own.rank = {rank} AND waiting.rank <> {rank}
                    AND {rank} IN (waiting.last_rank_aligned, waiting.last_rank_by_duration))"""
            table, known = {
                "exposed_communication": ("kernels", of_dimension),
                "slow_rank": ("kernels", last),
                "tail": ("periods", "true"),
                "hot_kernel": ("kernels", "kind = 'computation'"),
                "tensor_cores": ("kernels", "kind = 'computation'"),
                "copies": ("kernels", "kind = 'memory'"),
            }.get(finding["rule"], ("gpu_gaps", "starved_ns + unexplained_ns > 0"))
            length_of = "period_ns" if table == "periods" else "duration_ns"
            sql = f"SELECT 1 FROM {table} WHERE {at.replace('duration_ns', length_of)} AND {known}"
            wanted.append((finding, at, sql))
    for (finding, at, _), rows in zip(wanted, asked(lake, (sql for *_, sql in wanted)), strict=True):
        assert rows.num_rows, (finding, at)
    assert "exposed_communication" in marked
