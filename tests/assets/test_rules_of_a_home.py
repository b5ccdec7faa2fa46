"""Rules belong to the home: command, step and sensor use the same, and a file of them is what its rules mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.resources import TracevizHome
from tests.damage import call
from tests.small_run import write_run
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.home_settings import FILE_NAME, home_rules, load_settings, set_home_rules
from traceviz_dag.pipeline.staleness import pending_stage

RULES = '[[kernel]]\nname = "own_gemm"\npatterns = ["nvjet*"]\nkind = "computation"\nphase = "other"\n'


def test_what_the_command_sets_holds_for_every_later_run_and_a_comment_recomputes_nothing(tmp_path, monkeypatch):
    run, home, rules = write_run(tmp_path / "job", world=2), tmp_path / "home", tmp_path / "rules.toml"
    home.mkdir()
    (home / FILE_NAME).write_text("# mine\nautomation_seconds = 20  # seldom\n[nightly]\nhistory = 5\n")
    rules.write_text(RULES)
    (first,) = call("analyze", run, "--home", home, "--rules", rules, "--json").json
    assert (first["ranks_computed"], first["aggregated"]) == (2, True)
    (inputs,) = all_registered(home)
    used = TracevizHome(home=str(home)).load_rules()
    assert pending_stage(open_lake(home), inputs, used.digest) is None, "step and sensor use the same"
    settings = load_settings(home)
    assert (settings.rules, settings.automation_seconds, settings.nightly.history) == (str(rules), 20, 5)
    assert "# mine\n" in (home / FILE_NAME).read_text()

    rules.write_text(f"# why: it runs elsewhere\n{RULES.replace(' = ', '=')}\n")
    (same,) = call("analyze", run, "--home", home, "--json").json
    assert (same["ranks_computed"], same["ranks_skipped"], same["aggregated"]) == (0, 2, True)

    monkeypatch.setenv("TRACEVIZ_RULES", str(rules))
    told = call("analyze", run, "--home", home)
    assert told.code == 2 and "--rules" in told.err and len(told.err.splitlines()) == 1
    with pytest.raises(UsageError, match="--rules"):
        TracevizHome(home=str(home)).load_rules()
    monkeypatch.delenv("TRACEVIZ_RULES")

    (back,) = call("analyze", run, "--home", home, "--rules", "-", "--json").json
    assert (back["ranks_computed"], back["aggregated"]) == (2, True) and load_settings(home).rules == ""


@pytest.mark.long
def test_rules_that_classify_nothing_otherwise_make_no_aggregate_anew(tmp_path):
    run, home, rules = write_run(tmp_path / "job", world=2), tmp_path / "home", tmp_path / "rules.toml"
    call("analyze", run, "--home", home)

    def written() -> dict[str, int]:
        paths = (home / "lake").rglob("part.parquet")
        return {str(path): path.stat().st_mtime_ns for path in paths if "rank=" not in str(path)}

    before = written()
    rules.write_text(RULES.replace("nvjet", "nothing_is_called_so"))
    (told,) = call("analyze", run, "--home", home, "--rules", rules, "--json").json
    assert (told["ranks_computed"], told["aggregated"]) == (2, True) and written() == before
    rules.write_text(RULES.replace("computation", "memory"))
    (told,) = call("analyze", run, "--home", home, "--json").json
    assert told["ranks_computed"] == 2 and written() != before


def test_another_rule_for_findings_makes_them_anew_and_reads_no_rank(tmp_path, monkeypatch):
    run, home = write_run(tmp_path / "job", world=2), tmp_path / "home"
    call("analyze", run, "--home", home)
    [found] = (home / "lake/findings").rglob("part.parquet")
    before = found.stat().st_mtime_ns
    call("analyze", run, "--home", home)
    assert found.stat().st_mtime_ns == before
    monkeypatch.setattr("traceviz_dag.pipeline.staleness.code_of_rules", lambda: "another")
    (again,) = call("analyze", run, "--home", home, "--json").json
    assert (again["ranks_computed"], found.stat().st_mtime_ns > before) == (0, True)


def test_rules_are_compared_by_what_they_say(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    before = load_rules(file).digest
    file.write_text(f"# a comment\n\n{RULES}")
    assert load_rules(file).digest == before
    file.write_text(RULES.replace("nvjet*", "nvjet_*"))
    assert load_rules(file).digest not in (before, load_rules().digest)
    file.write_text("")
    assert load_rules(file).digest == load_rules().digest


def test_settings_that_cannot_be_changed_in_a_line_stay_as_they_are(tmp_path):
    text = 'rules = """\n/mine"""\n'
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(BadInputError, match="write the line there yourself"):
        set_home_rules(tmp_path, Path("/others.toml"))
    assert (tmp_path / FILE_NAME).read_text() == text
    (tmp_path / FILE_NAME).write_text('rules = "mine.toml"\n')
    with pytest.raises(BadInputError, match="absolute"):
        home_rules(tmp_path)
