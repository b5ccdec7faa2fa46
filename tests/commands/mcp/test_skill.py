"""The skill is printed, and copied with its references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import traceviz_dag as tv
from tests.commands.jobs import home_of
from tests.damage import call
from tests.test_docs import REPOSITORY, test_every_command_of_a_page_exists_with_its_options
from traceviz_dag.analyze.causes.gains import TOGETHER
from traceviz_dag.analyze.findings.rules.registry import RULE_NAMES
from traceviz_dag.commands.mcp.tools import Tools
from traceviz_dag.lake.catalogue import queryable
from traceviz_dag.system.shipped import shipped
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import Category, Severity

SKILL = REPOSITORY / "skills" / "traceviz"


def test_it_is_copied_whole_and_again(tmp_path):
    for _ in range(2):
        assert call("skill", "--install", tmp_path / "skills").code == 0
    copied = {path.relative_to(tmp_path / "skills/traceviz"): path.read_bytes() for path in _files(tmp_path / "skills")}
    assert copied.pop(Path(".installed.json"))
    assert copied == {path.relative_to(SKILL): path.read_bytes() for path in _files(SKILL)}
    assert call("skill").out.strip() == (SKILL / "SKILL.md").read_text().strip()


@pytest.mark.parametrize("name", ["mine.txt", "SKILL.md"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, name):
    (tmp_path / "traceviz").mkdir()
    (tmp_path / "traceviz" / name).write_text("mine")
    answer = call("skill", "--install", tmp_path)
    assert answer.code == 2
    assert "is not as traceviz installed it; choose another folder" in answer.err
    assert (tmp_path / "traceviz" / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["SKILL.md", "own.md", "references/own.md"])
def test_a_copy_that_was_changed_is_left_alone(tmp_path, name):
    assert call("skill", "--install", tmp_path).code == 0
    (tmp_path / "traceviz" / name).write_text("mine")
    assert call("skill", "--install", tmp_path).code == 2
    assert (tmp_path / "traceviz" / name).read_text() == "mine"


def test_a_folder_without_a_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("skill", "--install", "")
    assert (answer.code, "name a folder" in answer.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_it_is_short_and_its_references_are_there():
    lines = [line for path in _files(SKILL) for line in path.read_text().splitlines()]
    assert len(lines) < 500
    text = (SKILL / "SKILL.md").read_text()
    assert re.match(r"---\nname: traceviz\ndescription: .{40,}\n---\n", text)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (SKILL / target).is_file(), target
    assert shipped("skills/traceviz") == SKILL


@pytest.mark.parametrize("page", sorted(SKILL.rglob("*.md")), ids=lambda page: page.name)
def test_its_commands_tables_and_columns_exist(page):
    test_every_command_of_a_page_exists_with_its_options(page)
    text = page.read_text()
    assert "`traceviz " in text or page.name == "commands.md"
    columns = {column.name for table in all_tables().values() for column in table.columns}
    for row in re.findall(r"^\| (`[a-z_`, ]+`) \| (.*) \|$", text.partition("## Tables")[2], re.MULTILINE):
        assert set(re.findall(r"`(\w+)`", row[0])) <= set(all_tables())
        assert set(re.findall(r"`(\w+)`", row[1])) <= columns
    job = tv.open(home_of("slow_rank"))
    for query in re.findall(r'traceviz sql "(SELECT (?!…)[^"]+)"', text):
        job.sql(" ".join(query.split()))


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def printed() -> dict[str, object]:
    """Command of the table of keys → what it prints as JSON."""
    home = home_of("two_iterations")
    asked = {name: [name] for name in ("findings", "waits", "overlap", "critical-path", "what-if", "pipelines")}
    asked["diff A B"] = ["diff", "two_iterations@10", "two_iterations@11"]
    return {name: call(*words, "--json", "--home", home).json for name, words in asked.items()}


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(each)


def test_each_command_has_the_keys_that_it_names(printed):
    text = (SKILL / "references/commands.md").read_text()
    table, _, _ = text.partition("## Tables")
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| (.*) \|$", table, re.MULTILINE)
    assert {name for name, _ in rows} == {*printed, "sql"}
    for name, keys in rows:
        named = re.findall(r"`(\w+)", keys)
        assert set(named) <= set(_keys(printed.get(name))), name
    of_all, _, but = " ".join(table.split()).partition("; but ")
    every = re.findall(r"`(\w+)`", of_all.partition("All have ")[2])
    assert len(every) == 9
    tops = {name: set(value if isinstance(value, dict) else value[0]) for name, value in printed.items()}
    assert all(set(every) <= top for name, top in tops.items() if f"`{name.split()[0]}`" not in but)
    assert tops["overlap"] & set(every) == {*every[:3], "chosen"}
    assert all(set(every) <= set(printed["diff A B"][side]) for side in "ab")


@pytest.mark.parametrize("page", sorted(SKILL.rglob("*.md")), ids=lambda page: page.name)
def test_every_word_in_code_is_one_of_the_program(page, printed):
    columns = {column.name for table in all_tables().values() for column in table.columns}
    words = {*_keys(list(printed.values())), *columns, *queryable(), *RULE_NAMES, *Severity, *Category}
    words |= {tool.__name__ for tool in Tools(None).all} | {TOGETHER, "null", "_ns"}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)(?:: (?:true|false|null))?`", page.read_text())
    assert named
    assert {part for name in named for part in name.split(".")} <= words
