"""What ``iterations`` prints of judged nights, and ``baseline`` of baselines, is what the tables say."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.commands.sentences.of_nights import NightsHome, nights_reader
from tests.damage import call
from tests.pipeline.nights.made import FAST, LONG, home_of_other_ranks, judge, series_home
from tests.sets import fast
from traceviz_dag.lake.lake import open_lake

HOMES = {
    "series": lambda: series_home(*FAST),
    "long": lambda: series_home(*LONG),
    "ranks": home_of_other_ranks,
}


STATEMENTS = "SELECT DISTINCT n.statement FROM nights n LEFT JOIN night_changes c USING (run, iteration)"
PRINTED = "WHERE n.accepted IS NOT true OR c.metric IS NOT NULL"
SAID = {
    "series": ("of it as it has few steps", "widen the tolerance", "as since", "median of 3 accepted", "p = 0.005"),
    "long": ("later nights are held against these", "better (limit", "worse: step time, as since"),
    "ranks": ("they share 1 of 4 ranks", "accept it by hand"),
}
"""Home → what its statements say that those of others do not say. Below: in those that are not printed."""
SAID_ELSEWHERE = {
    "series": ("pass (its few", "better", "as long as", "the first of its series"),
    "long": ("better (limit",),
    "ranks": ("covers 1 of them",),
}


@cache
def kept(name: str) -> NightsHome:
    """A home that nobody changes, its tables read once."""
    return NightsHome(HOMES[name]())


@cache
def printed_of(name: str) -> str:
    """What ``iterations`` prints of such a home."""
    return call("iterations", "--home", kept(name).folder).out


def rows(home: Path, sql: str) -> list[tuple]:
    return [tuple(row.values()) for row in open_lake(home).query(sql).to_pylist()]


def check_statements(home: NightsHome) -> list[str]:
    """Hold the statements of ``nights`` that are not printed against the tables, and return the clauses."""
    reading = nights_reader(home)
    for (statement,) in sorted({*rows(home.folder, STATEMENTS)} - {*rows(home.folder, f"{STATEMENTS} {PRINTED}")}):
        reading.sentence(statement)
    return reading.read


@pytest.mark.parametrize("name", fast(HOMES, "ranks"))
def test_what_iterations_prints_of_nights_is_what_the_tables_say(name):
    home = kept(name).folder
    reading = nights_reader(kept(name))
    reading.check(printed_of(name))
    told = [line for line in reading.read if re.search(r": step [\d.]+ .?s", line)]
    due = [statement for (statement,) in rows(home, f"{STATEMENTS} {PRINTED}")]
    assert sorted(told) == sorted(statement.split("; ")[0] for statement in due)
    for words in SAID[name]:
        assert any(words in clause for clause in reading.read), words
    gated = call("iterations", "--gate", "--home", home)
    assert gated.out == printed_of(name) and gated.code == {"series": 1, "long": 1, "ranks": 2}[name]


@pytest.mark.parametrize("name", fast(HOMES, "series", "ranks"))
def test_statements_that_are_not_printed_are_what_the_tables_say(name):
    read = check_statements(kept(name))
    for words in SAID_ELSEWHERE[name]:
        assert any(words in clause for clause in read), words


@pytest.mark.long
@pytest.mark.parametrize("name", ["series", "long"])
def test_a_change_names_the_first_rows_of_the_comparison(name):
    home = kept(name).folder
    for run, compared in rows(home, "SELECT run, compared FROM night_changes ORDER BY ALL"):
        before, after, told = re.fullmatch(r"(\S+) to (\S+), by replay: (.+)", compared[0]).groups()
        assert before.startswith(f"{run}@") and len(compared) == 1
        reading = call("diff", before, after, "--home", home).out
        table = reading[reading.index("By replay, ") :].split("\n\n")[0]
        for what, sign, number, unit in re.findall(r"([^,]+) ([+-])([\d.]+) (\S+?)(?:, |$)", told):
            change = next(line for line in table.splitlines() if what in line).split()[-1]
            ms = float(number) * {"ns": 1e-6, "µs": 1e-3, "ms": 1}[unit] * (1 if sign == "+" else -1)
            assert float(change) == pytest.approx(ms, abs=0.0006), told


FALSE = [
    ("series", r"step 112 µs, \+11.5", "step 112 µs, +11.6"),
    ("series", r"against rise@18", "against rise@17"),
    ("series", r"idle grew most", "optimizer computation grew most"),
    ("series", r"idle shrank most, -8", "idle shrank most, -7"),
    ("series", r"± 5.9 % from 9 nights", "± 5.8 % from 9 nights"),
    ("series", r"from 9 nights", "from 10 nights"),
    ("series", r"630 ns of it", "650 ns of it"),
    ("series", r", as since rise@24", ", as since rise@26"),
    ("series", r", as since \S+ \(\S+\)", ""),
    ("series", r"1970-01-11", "1970-01-12"),
    ("series", r"in 3 nights since", "in 4 nights since"),
    ("series", r"p = 0.005", "p = 0.0075"),
    ("series", r"worse: a confirmed change", "pass (limit 99.9 µs ± 9.9 % from 15 nights)"),
    ("series", r"rise@22 to rise@26", "rise@21 to rise@26"),
    ("series", r"median of 3 accepted", "median of 4 accepted"),
    ("series", r"27.2 µs against 13.6 µs", "27.2 µs against 13.5 µs"),
    ("series", r"worse: exposed communication *\n", "worse: idle\n"),
    ("series", r"(; worse: step time)", r"; whatever\1"),
    ("ranks", r"share 1 of 4 ranks", "share 2 of 4 ranks"),
    ("ranks", r"of stage 1 is", "of stage 0 is"),
    ("ranks", r"against job@12", "against job@11"),
]


@pytest.mark.parametrize(("name", "true", "false"), fast(FALSE, *FALSE[::3]))
def test_no_false_line_about_nights_passes(name, true, false):
    printed = printed_of(name)
    wrong = re.sub(true, false, printed, count=1)
    assert wrong != printed
    if "\n" not in true:
        (wrong,) = set(wrong.splitlines()) - set(printed.splitlines())
    with pytest.raises(AssertionError):
        nights_reader(kept(name)).check(wrong)


def test_what_is_said_of_baselines_is_what_the_home_has(tmp_path):
    shutil.copytree(home_of_other_ranks(), tmp_path / "home")
    home = tmp_path / "home"
    open_lake(home).refresh_catalogue()
    reading = nights_reader(NightsHome(home))
    for words in (
        *(("list",), ("set", "new", "job@11"), ("set", "new", "job"), ("list",), ("accept", "job@13"), ("list",)),
        *(("remove", name) for name in ("all", "new", "release")),
    ):
        answer = call("baseline", *words, "--home", home)
        assert answer.code == 0
        reading.check(answer.out)
    assert reading.read.count("Baselines") == 3
    judge(open_lake(home))
    assert any("accepted by hand" in clause for clause in check_statements(NightsHome(home)))
    assert rows(home, "SELECT worse FROM nights WHERE iteration = 13") == [(["not compared"],)]
    reading = nights_reader(NightsHome(home))
    reading.check(call("iterations", "--home", home).out)
    reading.check(call("baseline", "remove", "job", "--home", home).out)
    judge(open_lake(home))
    nights_reader(NightsHome(home)).check(call("baseline", "list", "--home", home).out)
