"""Any name of a run survives the way into a path and back, in DuckDB's views as well."""

from __future__ import annotations

import string

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key, parse_rank_key, rank_key, split_name
from traceviz_dag.lake.partitions import Partition, escape, unescape

WEIRD_RUNS = [
    "plain-7.2_b",
    "a/b",
    "a=b",
    "100%",
    "%41",
    "two  spaces ",
    "ünï 日本 🚀",
    ".hidden",
    "..",
    "NULL",
    "null",
    "__HIVE_DEFAULT_PARTITION__",
    "0012",
    "true",
    "2024-01-01",
    "quo'te\"s",
    "star*[q]?{a,b}",
    "new\nline\ttab",
    "back\\slash",
    "a+b&c",
    "a|b,c...d@e",
]
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.text(
    ".%=/|,@[]*NUL_" + string.whitespace, min_size=1, max_size=12
)


@settings(max_examples=100, deadline=None)
@given(names)
def test_escaping_is_reversible_and_leaves_nothing_that_a_path_or_a_key_forbids(name):
    escaped = escape(name)
    assert unescape(escaped) == name
    assert not set(escaped) & set("/|,=@[]*?:\\ '\"") and ".." not in escaped
    assert all(character.isprintable() for character in escaped)


@settings(max_examples=100, deadline=None)
@given(names, st.integers(0, 2**62))
def test_iteration_keys_name_run_and_iteration(name, iteration):
    assert parse_iteration_key(iteration_key(name, iteration)) == (name, iteration)
    for written in (iteration_key(name, iteration), f"{name}@{iteration}"):
        assert split_name(written, {name}) == (name, iteration)
    assert split_name(name, {name}) == split_name(escape(name), {name}) == (name, None)


@given(st.integers(0, 200_000))
def test_rank_keys_sort_as_ranks(rank):
    assert parse_rank_key(rank_key(rank)) == rank
    assert len(rank_key(rank)) >= 4
    if rank < 9_999:
        assert rank_key(rank) < rank_key(rank + 1)


@pytest.mark.parametrize(
    "key", ["", "job", "job@", "@3", "job@03", "job@-1", "a@b@3", f"job@{10**19}", "job@" + "9" * 5000]
)
def test_foreign_iteration_keys_are_refused(key):
    with pytest.raises(UsageError, match="no iteration key"):
        parse_iteration_key(key)


@pytest.mark.parametrize("key", ["", "7", "00007", "-001", "rank0"])
def test_foreign_rank_keys_are_refused(key):
    with pytest.raises(UsageError, match="no rank key"):
        parse_rank_key(key)


def test_dagster_accepts_the_keys_of_weird_runs():
    dagster = pytest.importorskip("dagster")
    iterations = dagster.DynamicPartitionsDefinition(name="iteration")
    ranks = dagster.DynamicPartitionsDefinition(name="rank")
    both = dagster.MultiPartitionsDefinition({"iteration": iterations, "rank": ranks})
    with dagster.DagsterInstance.ephemeral() as instance:
        keys = [iteration_key(run, 12) for run in WEIRD_RUNS]
        instance.add_dynamic_partitions("iteration", keys)
        instance.add_dynamic_partitions("rank", [rank_key(3)])
        found = both.get_partition_keys(dynamic_partitions_store=instance)
        assert {parse_iteration_key(key.keys_by_dimension["iteration"])[0] for key in found} == set(WEIRD_RUNS)


def test_views_and_readers_show_the_true_names(lake: Lake, sample):
    for number, run in enumerate(WEIRD_RUNS):
        lake.write("traces", sample("traces", bytes=number, file=run), run=run, iteration=12, rank=3)
    assert [partition.run for partition in lake.partitions("traces")] == sorted(WEIRD_RUNS)
    rows = lake.query("SELECT run, iteration, rank, file FROM traces")
    assert rows.schema.types == [pa.string(), pa.int64(), pa.int64(), pa.string()]
    assert sorted(rows["run"].to_pylist()) == sorted(WEIRD_RUNS)
    assert rows["run"].equals(rows["file"])
    for number, run in enumerate(WEIRD_RUNS):
        assert lake.table("traces", run=run).arrow(["run", "bytes"]).to_pylist() == [{"run": run, "bytes": number}]
        filtered = lake.query("SELECT bytes FROM traces WHERE run = $run", {"run": run})
        assert filtered["bytes"].to_pylist() == [number]


@pytest.mark.parametrize("folder", ["with space", "g[1]*", "q'uote", "a{b,c}", "50%41"])
def test_a_home_with_any_name_works(tmp_path, sample, folder):
    lake = open_lake(tmp_path / folder)
    lake.write("topology", sample("topology", rank=5), run="a", iteration=1)
    assert lake.query("SELECT run, rank FROM topology").to_pylist() == [{"run": "a", "rank": 5}]


@pytest.mark.parametrize("run", ["", "x" * 252, "🚀" * 30, "bad\udcff"])
def test_names_that_fit_no_path_are_refused(lake: Lake, sample, run):
    with pytest.raises(UsageError):
        lake.write("topology", sample("topology"), run=run, iteration=1)
    assert not lake.home.exists()


def test_partition_values_must_fit_the_table(lake: Lake, sample):
    with pytest.raises(UsageError, match="partitioned by rank"):
        lake.write("topology", sample("topology"), run="a", iteration=1, rank=0)
    with pytest.raises(UsageError, match="name one"):
        lake.write("traces", sample("traces"), run="a", iteration=1)
    with pytest.raises(UsageError, match="negative"):
        lake.exists("traces", run="a", iteration=-1, rank=0)


def test_partitions_come_in_numeric_order_and_by_what_is_asked(lake: Lake, sample):
    for iteration in (10, 9):
        for rank in (10, 2):
            lake.write("traces", sample("traces"), run="a", iteration=iteration, rank=rank)
    foreign = lake.home / "lake" / "traces" / "run=a" / "iteration=09" / "rank=0"
    foreign.mkdir(parents=True)
    assert [(p.iteration, p.rank) for p in lake.partitions("traces")] == [(9, 2), (9, 10), (10, 2), (10, 10)]
    assert lake.partitions("traces", run="a", rank=10) == [Partition("a", 9, 10), Partition("a", 10, 10)]
    assert lake.partitions("traces", run="b") == []
