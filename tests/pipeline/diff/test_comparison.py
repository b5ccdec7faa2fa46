"""Two sides compared: exact sums, the injected change first, no change in the same run; real traces counted anew."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.commands.jobs import analysed_at, traces_of
from tests.in_process import ranks_in_this_process
from tests.pipeline.diff.jobs import changed, traces
from tests.sets import fast
from traceviz_dag.analyze.diff.replayed import AMOUNT
from traceviz_dag.analyze.diff.words import state_of
from traceviz_dag.errors import UsageError
from traceviz_dag.pipeline.diff.comparison import Comparison, compare
from traceviz_dag.pipeline.diff.sides import side_at


def check_sums(found: Comparison) -> None:
    """Every table adds up to its change, to the nanosecond."""
    assert found.step is not None
    for rows in (found.parts, found.path):
        assert [sum(row.a_ns for row in rows), sum(row.b_ns for row in rows)] == [found.step.a_ns, found.step.b_ns]
        assert all(row.count_ns + row.per_call_ns == row.change_ns for row in rows)
    assert (
        sum(row.change_ns for row in found.path) == sum(row.change_ns for row in found.replay) == found.step.change_ns
    )
    assert len({sum(row.change_ns for row in rows) for rows in found.tables.values()}) == 1


def largest(found: Comparison):
    return max(found.replay, key=lambda row: abs(row.change_ns)).work


def test_a_slow_gpu_is_the_computation_of_its_stage_in_both_tables():
    found = compare(changed("plain"), changed("slow_gpu"))
    check_sums(found)
    assert (largest(found).what.endswith("_computation"), largest(found).stage) == (True, 1)
    assert (found.path[0].key[0], found.path[0].key[2]) == (1, largest(found).what)
    assert found.path[0].count_ns == 0 < found.path[0].per_call_ns
    assert sum(row.change_ns for row in found.replay if row.work.stage == 1) > 0.9 * found.step.change_ns
    assert found.findings is not None and any(row["change"] == "came" for row in found.findings)


@pytest.mark.long
def test_a_slow_link_is_the_transfers_of_its_dimension():
    found = compare(changed("plain"), changed("slow_link"))
    check_sums(found)
    # Between two stages it carries messages and the gradients of the embeddings, which are longer.
    assert (largest(found).what, largest(found).is_transfer) == ("embedding", True)
    assert (found.path[0].key[3], found.path[0].key[6], found.path[0].count_ns) == ("embedding", "transfer", 0)
    assert sum(row.change_ns for row in found.replay if row.work.is_transfer) > 0.99 * found.step.change_ns


@pytest.mark.long
def test_more_layers_are_more_calls_and_not_slower_code():
    found = compare(changed("plain"), changed("more_layers"))
    check_sums(found)
    assert largest(found).what == AMOUNT
    assert abs(found.path[0].per_call_ns) < 0.05 * found.path[0].count_ns
    assert {one.fact: one.refused for one in found.differences}["layers"] is False
    doubled = [row for row in found.tables["operations"] if row.b_calls == 2 * row.a_calls]
    assert sum(row.count_ns for row in doubled) > 0.9 * sum(abs(row.change_ns) for row in doubled)


@pytest.mark.parametrize("name", fast(["plain", "three_steps"], "plain"))
def test_a_run_against_itself_has_no_change_anywhere(name):
    found = compare(changed(name), changed(name))
    check_sums(found)
    rows = [*found.parts, *found.path, *(row for each in found.tables.values() for row in each)]
    assert {row.change_ns for row in (*rows, *found.replay)} == {0}
    assert {row.count_ns for row in rows} == {0} and found.matched == 1
    assert not found.differences and {row["change"] for row in found.findings or []} <= {"stayed"}


def test_sides_of_unequal_numbers_of_steps_add_up_too():
    found = compare(changed("plain"), changed("three_steps"))
    check_sums(found)
    assert found.steps == (1, 3) and all(row.bar is None for row in (*found.path, *found.replay))
    found = compare(changed("three_steps")[:2], changed("three_steps"))
    check_sums(found)
    assert found.step is not None and found.step.bar is not None


def test_recorded_stacks_on_one_side_alone_are_refused_and_compared_anyway_on_demand():
    sides = analysed_at(traces_of("healthy")), analysed_at(traces_of("without_stacks"))
    found = compare(*sides)
    assert found.refused and found.step is None and not found.path
    assert [one.fact for one in found.differences if one.refused] == ["has_stacks"]
    found = compare(*sides, anyway=True)
    assert not found.refused
    check_sums(found)


def test_a_side_is_a_run_an_iteration_a_home_traces_or_a_file(tmp_path, monkeypatch):
    home, folder = changed("three_steps")[0].lake.home, traces("plain")
    monkeypatch.chdir(tmp_path)
    given = {"three_steps": 3, "three_steps@11": 1, str(home): 3, f"{home}/three_steps@12": 1, f"{home}@10": 1}
    for text, count in given.items():
        with side_at(text, home).opened() as found:
            assert (len(found), {each.run for each in found}) == (count, {"three_steps"}), text
    file = next(folder.rglob("rank_0000*.json"))
    with ranks_in_this_process():
        for text in (str(folder), f"{folder}@10", str(file)):
            with side_at(text, tmp_path / "none").opened() as found:
                assert [each.iteration for each in found] == [10]
    for text, why in {
        "other": "no such run",
        "three_steps@99": "no such iteration; there are 10, 11, 12",
        "no/where": "there is no such file or folder",
    }.items():
        with pytest.raises(UsageError, match=why), side_at(text, home).opened():
            pass
    with pytest.raises(UsageError, match="is no home"):
        side_at("run", tmp_path / "none")


def test_a_trace_without_a_gpu_has_tables_of_its_kernels_and_says_why_it_has_no_path(shared_data):
    folder = shared_data / "megatron_cpu" / "pp2"
    if not folder.is_dir():
        folder = next(each for each in sorted((shared_data / "megatron_cpu").iterdir()) if each.is_dir())
    side = analysed_at(folder)[:1]
    found = compare(side, side)
    assert found.no_path is not None and found.step is None and found.tables["operations"]


@pytest.fixture(scope="module")
def hta(shared_data: Path, tmp_path_factory) -> Comparison:
    """Control and test of HolisticTraceAnalysis: six steps each, of another GPU and world size."""
    sides = [analysed_at(shared_data / f"kineto/hta_diff/{name}.json.gz") for name in ("control", "test")]
    refused = compare(*sides)
    assert {one.fact for one in refused.differences if one.refused} == {"world_size", "ranks", "device_name", "shapes"}
    return compare(*sides, anyway=True)


def counted(path: Path) -> dict[str, Counter[str]]:
    """Kernels and memory operations that a trace's steps launched, by name and by operation, from its raw events.

    An operation is the innermost CPU operator around the launch, else the name; of two in the same microseconds that
    with the higher id, which began later. What sends and receives is the collective that the annotation ``nccl:…``
    around it names: the kernel's name does not show it.
    """
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    launches = {one["args"]["correlation"]: one for one in events if one.get("cat") == "cuda_runtime"}
    steps = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith("ProfilerStep#")]
    operators, annotations = (spans_of(events, category) for category in ("cpu_op", "user_annotation"))
    names, operations = Counter[str](), Counter[str]()
    for one in events:
        launch = launches.get(one.get("args", {}).get("correlation"))
        if one.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or launch is None:
            continue
        if not any(begin <= launch["ts"] < end for begin, end in steps):
            continue
        names[one["name"]] += 1
        named = around(annotations[launch["tid"]], launch["ts"], "nccl:") if "SendRecv" in one["name"] else None
        operations[named or around(operators[launch["tid"]], launch["ts"]) or one["name"]] += 1
    return {"kernels": names, "operations": operations}


Span = tuple[int, int, int, int, str]
"""Start, minus duration, id, end and name."""


def spans_of(events: list[dict], category: str) -> defaultdict[int, list[Span]]:
    """The events of a category by thread, outer ones before inner ones."""
    spans = defaultdict(list)
    for one in events:
        if one.get("cat") == category:
            number = one.get("args", {}).get("External id", 0)
            spans[one["tid"]].append((one["ts"], -one["dur"], number, one["ts"] + one["dur"], one["name"]))
    for each in spans.values():
        each.sort()
    return spans


def around(spans: list[Span], at: int, prefix: str = "") -> str | None:
    """The name of the innermost span around an instant, without its prefix."""
    before = spans[: bisect_right(spans, (at, 1, 0, 0, ""))]
    named = (name for *_, until, name in reversed(before) if until >= at and name.startswith(prefix))
    return next((name.removeprefix(prefix) for name in named), None)


@pytest.mark.long
@pytest.mark.parametrize("table", ["kernels", "operations"])
def test_what_came_went_and_changed_its_count_in_a_real_pair_equals_a_count_of_the_raw_events(hta, shared_data, table):
    check_sums(hta)
    a, b = (counted(shared_data / f"kineto/hta_diff/{name}.json.gz")[table] for name in ("control", "test"))
    rows = hta.tables[table]
    found = [Counter[str](), Counter[str]()]
    for row in rows:
        found[0][row.key[1]] += row.a_calls
        found[1][row.key[1]] += row.b_calls
    assert (+found[0], +found[1]) == (a, b)
    came = {row.key[1] for row in rows if state_of(row) == "only B"}
    went = {row.key[1] for row in rows if state_of(row) == "only A"}
    assert (came, went) == (set(b) - set(a), set(a) - set(b))
    assert came and went and any(a[name] != b[name] for name in set(a) & set(b))
