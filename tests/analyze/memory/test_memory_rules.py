"""What the rules of GPU memory say of simulated stages: the truth, each number from the row of its query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.analyze.memory.plain_snapshots import read_here, requested_over_time
from traceviz_dag.analyze.findings.findings import Iteration, Judged, findings_table
from traceviz_dag.analyze.findings.rule import evidence_sql
from traceviz_dag.analyze.findings.rules.registry import rule_named
from traceviz_dag.analyze.memory.examination import examined
from traceviz_dag.analyze.memory.tables import memory_tables
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.simulate.memory.allocator import Allocator
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, one_forward_one_backward
from traceviz_dag.tables import TOPOLOGY, TRACES, Table

MIB = 1 << 20
RULES = ("memory_leak", "memory_fragmentation", "memory_imbalance", "memory_headroom")
PLACE: dict[str, Any] = {"run": "it's a run", "iteration": 7}
LARGE = {"hidden": 4096, "sequence": 4096}


def _row(table: Table, **values: object) -> Any:
    return table.from_columns({column.name: [values.get(column.name)] for column in table.columns})


def _lake(folder: Path, ranks: dict[int, Allocator | None], gpu_bytes: int | None = None) -> Lake:
    """A lake with the snapshots of some ranks, each a stage of its own."""
    lake = open_lake(folder)
    for rank, allocator in ranks.items():
        traces = _row(TRACES, status="read", device_memory_bytes=gpu_bytes)
        topology = {"rank": [rank], "stage": [rank], "stages": [len(ranks)]}
        columns = {column.name: topology.get(column.name, [None]) for column in TOPOLOGY.columns}
        lake.write("traces", traces, **PLACE, rank=rank)
        if rank == 0:
            columns = {name: value * len(ranks) for name, value in columns.items()}
            columns |= {"rank": list(ranks), "stage": list(ranks)}
            lake.write("topology", TOPOLOGY.from_columns(columns), **PLACE)
        if allocator is not None:
            content = read_here(allocator.snapshot())
            for name, table in memory_tables(content, examined(content)).items():
                lake.write(name, table, **PLACE, rank=rank)
    return lake


def _asked(lake: Lake, name: str) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a rule, or why it cannot judge; each statement's numbers are held against its row."""
    rule = rule_named(name)
    unable = lake.query_iteration(rule.unable_sql or "", **PLACE).to_pylist()
    rows = lake.query_iteration(rule.sql, **PLACE).to_pylist()
    reason = unable[0]["reason"] if unable else None
    judged = Judged(rule, [] if unable else rows, reason)
    found = findings_table(Iteration(**PLACE, what_if=[], step_ns=1, steps=1, capture_mode="none"), [judged])
    for told, row in zip(found.to_pylist(), judged.rows, strict=reason is None):
        (same,) = lake.query_iteration(evidence_sql(rule, **PLACE, row=row), **PLACE).to_pylist()
        assert same == row
        assert told["gain_ns"] is None and told["severity"] == "note"
        detail, _, why = told["detail"].partition("; no gain is predicted: ")
        what = f"{told['statement']}; {detail}".replace(" %", "%")
        assert why == told["refusal"] == "what memory is used for is no part of the replay"
        for word in (value for value in row.values() if isinstance(value, str)):
            what = what.replace(word, "")
        numbers = [value for value in row.values() if isinstance(value, int | float)]
        said = {f"{each:,}" for each in numbers} | {text for each in numbers for text in (f"{each:.1%}", f"{each:.0%}")}
        said |= {f"{each / MIB:,.2f}" for each in numbers} | {f"{each:.2f}" for each in numbers}
        assert set(re.findall(r"(?<![\w.])\d(?:[\d,]*\d)?(?:\.\d+)?%?", what)) <= said, what
    return rows, reason


def _stage(place: int, steps: int = 5, **settings: Any) -> tuple[Stage, Allocator]:
    allocator = Allocator()
    stage = Stage(StageSettings(**settings), allocator)
    for number in range(steps):
        stage.step(number, one_forward_one_backward(place, 4, 8))
    return stage, allocator


def test_a_leak_is_named_with_its_rank_and_what_it_grows_by(tmp_path):
    _, leaking = _stage(0, leak_bytes=MIB)
    _, sound = _stage(1)
    lake = _lake(tmp_path / "one", {0: leaking, 1: sound, 2: None})
    (row,), _ = _asked(lake, "memory_leak")
    assert (row["rank"], row["value"], row["bytes"], row["ends"]) == (0, 8 * MIB, 40 * MIB, 5)
    assert "user/metrics.py:42" in row["operation"] and (row["known"], row["of_ranks"]) == (2, 3)
    _, faster = _stage(1, leak_bytes=2 * MIB)
    (row,), _ = _asked(_lake(tmp_path / "both", {0: leaking, 1: faster}), "memory_leak")
    assert (row["rank"], row["ranks"], row["worst"], row["value"]) == (None, 2, 1, 16 * MIB)
    _, short = _stage(0, steps=3, leak_bytes=MIB)
    assert _asked(_lake(tmp_path / "short", {0: short}), "memory_leak") == (
        [],
        "no snapshot of GPU memory knows the ends of four training steps",
    )


def test_the_stage_that_needs_most_is_reported_with_what_makes_the_difference(tmp_path):
    stages = [_stage(place, 1, batch=4, **LARGE) for place in (0, 1, 3)]
    lake = _lake(tmp_path / "home", dict(enumerate(one for _, one in stages)))
    (row,), _ = _asked(lake, "memory_imbalance")
    peaks = [stage.truth.peak_bytes for stage, _ in stages]
    activations = [stage.truth.peak["activation"] for stage, _ in stages]
    assert (row["stage"], row["peak_bytes"], row["mean_bytes"]) == (0, peaks[0], round(sum(peaks) / 3))
    assert row["operation"] == "activation" and row["known"] == row["of_stages"] == 3
    assert row["part_bytes"] == pytest.approx(activations[0] - sum(activations) / 3, abs=1)
    alone = _lake(tmp_path / "alone", {0: stages[0][1], 1: None, 2: None})
    assert _asked(alone, "memory_imbalance")[1] == "snapshots of fewer than two of the 3 stages have events"


def test_memory_that_no_rank_reserves_is_headroom_by_the_fullest_rank(tmp_path):
    (_, full), (_, other) = _stage(0, 1, **LARGE), _stage(3, 1, **LARGE)
    (row,), _ = _asked(_lake(tmp_path / "a", {0: other, 1: full, 2: None}, 80 << 30), "memory_headroom")
    grown = [event["size"] for event in full.snapshot()["device_traces"][0] if event["action"] == "segment_alloc"]
    assert (row["fullest"], row["reserved_bytes"], row["ranks"], row["of_ranks"]) == (1, sum(grown), 2, 3)
    assert row["value"] == pytest.approx(1 - sum(grown) / (80 << 30))
    assert _asked(_lake(tmp_path / "b", {0: full}, int(1.1 * sum(grown))), "memory_headroom") == ([], None)
    assert "how much memory the GPUs" in (_asked(_lake(tmp_path / "c", {0: full}), "memory_headroom")[1] or "")


def test_memory_in_pieces_at_the_peak_is_fragmentation(tmp_path):
    allocator = Allocator()
    small = [allocator.allocate(96 * MIB, [{"name": "f", "filename": "m.py", "line": 1}]) for _ in range(12)]
    for address in small[::2]:
        allocator.free(address, ())
    allocator.allocate(700 * MIB, ())
    lake = _lake(tmp_path / "a", {0: allocator, 1: _stage(0)[1]})
    (row,), _ = _asked(lake, "memory_fragmentation")
    peak = max(requested_over_time(allocator.snapshot()))
    assert (row["rank"], row["reserved_bytes"], row["lost_bytes"]) == (0, 1852 * MIB, 1852 * MIB - peak)
    assert peak == (6 * 96 + 700) * MIB and (row["known"], row["of_ranks"]) == (2, 2)


@pytest.mark.parametrize("name", RULES)
def test_without_snapshots_with_events_no_rule_of_memory_judges(name, tmp_path):
    allocator = Allocator()
    allocator.recording = False
    allocator.allocate(5 * MIB, ())
    for place, ranks in enumerate(({0: None}, {0: allocator})):
        reason = _asked(_lake(tmp_path / str(place), dict(ranks), 80 << 30), name)[1]
        assert reason is not None and "snapshot of GPU memory with events" in reason
