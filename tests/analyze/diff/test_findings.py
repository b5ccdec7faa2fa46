"""Findings that came, went and stayed."""

from __future__ import annotations

from traceviz_dag.analyze.diff.findings import findings_changed, gain_changed
from traceviz_dag.tables.findings import CULPRIT_COLUMNS


def row(rule: str, gain: int | None = 5, severity: str = "finding") -> dict:
    culprit = dict.fromkeys(CULPRIT_COLUMNS)
    return {"rule": rule, "severity": severity, **culprit, "gain_ns": gain, "statement": f"{rule} {gain}"}


def test_findings_of_most_iterations_of_a_side_come_go_and_stay():
    a = [[row("stays", 5), row("goes")], [row("stays", 6), row("goes")], [row("stays", 7), row("flickers")]]
    b = [[row("stays", 8), row("comes"), row("goes", severity="note")]]
    found = {each["rule"]: each for each in findings_changed(a, b)}
    assert {rule: each["change"] for rule, each in found.items()} == {
        "comes": "came",
        "goes": "went",
        "stays": "stayed",
    }
    assert (found["stays"]["a_gain_ns"], found["stays"]["b_gain_ns"], found["stays"]["statement"]) == (7, 8, "stays 8")
    assert (found["comes"]["a_gain_ns"], found["goes"]["b_gain_ns"]) == (None, None)
    assert [each["change"] for each in findings_changed(a, b)] == ["came", "went", "stayed"]


def test_a_tenth_more_is_as_before():
    assert gain_changed(110, 100) == gain_changed(None, 100) == "as before"
    assert (gain_changed(120, 100), gain_changed(80, 100)) == ("gains more", "gains less")
