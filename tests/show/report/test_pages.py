"""Pages of jobs of every kind: each number is that of its own query, and what cannot be said is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from tests.asked import asked
from tests.commands.jobs import JOBS, home_of
from tests.sets import fast
from tests.show.report.pages import pages_of
from traceviz_dag.analyze.wording import duration, percent, share
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.report import StoredReportSource
from traceviz_dag.show.report.report import report_page


@dataclass
class Page(HTMLParser):
    """Facts of a page: (name of their evidence, text); evidence by name; and its visible words."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    inline_styles: int = 0

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._fact = self._template = ""
        self._in_query = self._quiet = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.inline_styles += "style" in known
        self._quiet = tag in ("script", "style")
        if tag == "a" and known.get("class") == "fact":
            self._fact = str(known["data-evidence"])
            self.facts.append((self._fact, ""))
        if tag == "template":
            self._template = str(known["id"])
        if tag == "pre" and self._template:
            self._in_query = True
            self.queries[self._template] = ""

    def handle_endtag(self, tag: str) -> None:
        self._fact = "" if tag == "a" else self._fact
        self._template = "" if tag == "template" else self._template
        self._in_query = self._in_query and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._fact:
            self.facts[-1] = (self._fact, self.facts[-1][1] + data)
        if self._in_query:
            self.queries[self._template] += data
        if not self._quiet:
            self.words.append(data)


def parsed(page: Path) -> Page:
    found = Page()
    found.feed(page.read_text())
    return found


def numbers_of(rows: list[dict]) -> set[str]:
    """Every way in which a page may write the numbers of some rows."""
    said = {str(len(rows))}
    for row in rows:
        said |= {duration(value) for value in row.values() if isinstance(value, int)}
        integers = [abs(value) for value in row.values() if isinstance(value, int)]
        said |= {duration(value) for value in integers} | {f"{value:,}" for value in integers} | set(map(str, integers))
        of_others = [(part, whole) for part in integers for whole in integers if 0 < whole >= part]
        said |= {share(part, whole) for part, whole in of_others} | {percent(part / whole) for part, whole in of_others}
        for value in (abs(value) for value in row.values() if isinstance(value, float)):
            said |= {
                f"{value:.3g}",
                f"{value:.2f}",
                f"{value:.3f}",
                percent(value),
                share(round(value * 1e6), 1_000_000),
            }
    return said


NUMBER = re.compile(r"-?[\d.,]*\d(?: (?:s|ms|µs|ns|%)(?!\w))?")


LIKE_OTHERS = (
    *("bad_split", "alone_in_stage", "two_steps", "clock_ahead", "without_topology", "without_stacks"),
    *("two_iterations", "split_pipelines", "bursts", "missing_stage", "without_clocks"),
    *("healthy", "slow_link", "scattered", "dp_only", "uneven_experts"),
)
"""Their pages take no way of their own through the report's code, or a few lines of it."""


@pytest.mark.parametrize("job", fast(JOBS, *(job for job in JOBS if job not in LIKE_OTHERS)))
def test_every_number_is_that_of_its_query(job: str) -> None:
    lake = open_lake(home_of(job))
    for page in map(parsed, pages_of(job)):
        assert page.facts
        assert page.inline_styles == 0
        used = list(dict.fromkeys(name for name, _ in page.facts))
        answers = asked(lake, (page.queries[evidence] for evidence in used))
        for evidence, rows in zip(used, (answer.to_pylist() for answer in answers), strict=True):
            numbers, known = numbers_of(rows), " ".join(str(value) for row in rows for value in row.values())
            for text in (text for name, text in page.facts if name == evidence):
                missing = [number for number in NUMBER.findall(text) if number not in numbers]
                assert not [number for number in missing if number not in known], (text, page.queries[evidence])


@pytest.mark.parametrize("job", ["missing_stage", "one_rank"])
def test_what_is_partial_says_so_on_the_first_screen(job: str) -> None:
    (page,) = pages_of(job)
    assert any(word.startswith("PARTIAL: ") for word in parsed(page).words)


def test_a_page_of_hostile_names_holds_none_of_their_markup() -> None:
    lake = open_lake(home_of("healthy"))
    (part,) = lake.partitions("topology")
    source = StoredReportSource(lake, part.run, part.iteration)
    hostile = "</script><b>x</b>\x1b[31m" + "A" * 10_000

    class Hostile(StoredReportSource):
        def table(self, name, columns, rank=None):
            found = super().table(name, columns, rank)
            for column in ("name", "module", "statement"):
                if column in columns and found.num_rows:
                    place = found.column_names.index(column)
                    found = found.set_column(place, column, pa.array([hostile] * found.num_rows))
            return found

    text = report_page(Hostile(source.lake, source.run, source.iteration))
    assert "<b>x</b>" not in text
    assert "\x1b" not in text
    assert text.count("</script>") == 2
    assert len(text) < 3_000_000
