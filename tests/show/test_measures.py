"""What a column is called and how it is written is declared once, and said alike wherever it is shown."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of
from tests.show.report.pages import text_of
from traceviz_dag.analyze import measures
from traceviz_dag.analyze.measures import known_unit, measure
from traceviz_dag.analyze.wording import changed, duration, percent, seconds, share, signed_percent
from traceviz_dag.api.answers import html_table
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.show.page.gain_rows import signed_share
from traceviz_dag.show.report.parts.part import percent as of_report
from traceviz_dag.tables import all_tables

_NUMERIC = (pa.types.is_integer, pa.types.is_floating)


def test_every_number_of_every_table_has_a_unit() -> None:
    numbers = [
        column.name
        for table in all_tables().values()
        for column in table.columns
        if any(is_one(column.type) for is_one in _NUMERIC)
    ]
    assert len(numbers) > 200
    assert [name for name in numbers if known_unit(name) is None] == []


def test_what_rounds_to_nothing_has_no_sign() -> None:
    units = {measure(name).unit for names in measures._OF_NAMES.values() for name in names.split()}
    told = [unit.cell(-1e-7) for unit in units | {measures.SHARE, measures.MS} if unit.number and unit.word != "MiB"]
    told += [words(-1e-7) for words in (signed_percent, percent, duration, seconds, share, of_report)]
    told += [signed_percent(1e-7), changed(-500), signed_share(-1, 10**9), seconds(-1)]
    assert [text for text in told if isinstance(text, str) and re.search("[-+−]", text)] == []
    assert [signed_percent(0.0123), signed_percent(-0.5), signed_share(-1, 2)] == ["+1.2 %", "-50.0 %", "−50 %"]


def test_nothing_is_declared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [name for names in measures._OF_NAMES.values() for name in names.split()]
    assert sorted(set(named)) == sorted(named)
    declared = dict(measures._HEADERS)
    monkeypatch.setattr(measures, "_HEADERS", {})
    assert [name for name, header in declared.items() if header == measure.__wrapped__(name).header] == []


@pytest.mark.parametrize(
    ("name", "header", "cell", "said"),
    [
        ("exposed_wait_ns", "exposed wait", "1,234.568", "1.23 s"),
        ("hidden_share", "hidden share", "12.3%", "12.3 %"),
        ("compute_ns", "computation", "1,234.568", "1.23 s"),
        ("kernels", "kernels", "1,234,567,890", "1,234,567,890"),
        ("rank", "rank", 1_234_567_890, "1234567890"),
        ("reserved_bytes", "reserved", "1,177.38", "1.15 GiB"),
        ("change_ns", "change", "+1,234.568", "+1.23 s"),
    ],
)
def test_units_follow_from_names(name: str, header: str, cell: object, said: str) -> None:
    value = 0.1234 if name.endswith("share") else 1_234_567_890
    unit = measure(name).unit
    assert (measure(name).header, unit.cell(value), unit.said(value)) == (header, cell, said)


def test_terminal_report_and_notebook_say_a_column_alike() -> None:
    home = home_of("slow_rank")
    lake = open_lake(home)
    (part,) = lake.partitions("topology")
    columns = ("span_ns", "bubble_ns", "bubble_share", "ideal_share", "microbatches")
    rows = lake.table("pipelines", part.run, part.iteration).arrow().select([*columns]).to_pylist()
    printed = CliRunner().invoke(app, ["pipelines", "--home", str(home)], env={"COLUMNS": "300"}).stdout
    title, header = re.search(r"\n(Bubble and idle.*)\n\s*\n(.*)\n", printed).groups()  # type: ignore[union-attr]
    notebook = html_table(rows)
    assert title.endswith(", ms") and len(rows) > 1
    report = text_of("slow_rank")
    for name in columns:
        found = measure(name)
        assert found.header in re.split(r"\s{2,}", header.strip())
        assert f"<th>{found.header}{' ms' * (found.unit.word == 'ms')}</th>" in notebook
        assert name == "microbatches" or f'<th scope="col">{found.header}</th>' in report
        for row in rows:
            cell = str(found.unit.cell(row[name]))
            assert re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", printed), (name, cell)
            assert f"<td>{cell}</td>" in notebook
            said = found.unit.said(row[name]).replace("-", "−")
            assert name == "microbatches" or f">{said}</a></td>" in report, (name, said)


def test_periods_have_the_headers_and_digits_of_their_measures_in_the_report() -> None:
    lake, report = open_lake(home_of("slow_rank")), text_of("slow_rank")
    rows = [row for row in lake.query("SELECT * FROM period_percentiles").to_pylist() if row["refusal"] is None]
    assert rows
    for name in ("period_p50_ns", "score_p10"):
        found = measure(name)
        assert f'<th scope="col">{found.header}</th>' in report
        for row in rows:
            assert f">{found.unit.said(row[name]).replace('-', '−')}</a></td>" in report
