"""Pairs that a user names: by ranges, by time stamps, by stages and dimension, and the gate on them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from traceviz_dag.analyze.across_invariants import periods_violations
from traceviz_dag.analyze.pipelines.named_pairs import RANGES, named_range_periods, named_table_periods, stamped_periods
from traceviz_dag.analyze.pipelines.period_summary import judge_pairs
from traceviz_dag.analyze.pipelines.periods import period_rows, refused, scored_rows
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.pairs_file import NamedPair, StageSelector, read_pairs_file, read_stamps
from traceviz_dag.tables import PERIODS

EPOCH_NS = 1_700_000_000_000_000_001


def ranges(*rows: tuple[int, str, int, int]) -> pa.Table:
    columns = zip(*((rank, name, EPOCH_NS + start, EPOCH_NS + end) for rank, name, start, end in rows), strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, RANGES, strict=True)], schema=RANGES
    )


def pair(first: StageSelector, second: StageSelector, warmup: int = 0, **more) -> NamedPair:
    return NamedPair("mine", stage0=first, stage1=second, warmup=warmup, **more)


def measures(table: pa.Table) -> list[tuple]:
    assert table.schema == PERIODS.schema and periods_violations(table).num_rows == 0
    return [
        (row["unit"], row["period_ns"], row["stage0_ns"], row["stage1_ns"], row["overlap_score"])
        for row in table.to_pylist()
    ]


def test_ranges_of_two_ranks_belong_together_by_their_number_whatever_their_clocks():
    rows = [(0, f"encode {k}", 30 * k, 30 * k + 30) for k in range(4)]
    rows += [(1, f"decode {k}", 999_000 + 30 * k, 999_000 + 30 * k + 20) for k in range(4)]
    found = named_range_periods(pair(StageSelector("encode*", 0), StageSelector("decode*", 1)), ranges(*rows))
    assert measures(found) == [(unit, 30, 30, 20, 1.0) for unit in range(3)]
    assert {(row["rank"], row["rank1"], row["kind"]) for row in found.to_pylist()} == {(0, 1, "named")}


def test_a_range_on_the_same_rank_belongs_to_the_unit_in_which_it_starts():
    rows = [(0, "step", 0, 10), (0, "send", 10, 14), (0, "step", 20, 30), (0, "send", 32, 35), (0, "send", 36, 37)]
    rows += [(0, "step", 40, 50), (0, "send", 52, 60)]
    found = named_range_periods(pair(StageSelector("step"), StageSelector("send")), ranges(*rows))
    assert measures(found) == [(0, 20, 10, 4, -1.5), (1, 20, 10, 4, -1.5)]


def test_warm_up_units_are_left_out_and_too_few_units_are_refused():
    rows = [(0, "a", 10 * k, 10 * k + 5) for k in range(4)] + [(0, "b", 10 * k + 5, 10 * k + 9) for k in range(4)]
    selectors = (StageSelector("a"), StageSelector("b"))
    assert [row[0] for row in measures(named_range_periods(pair(*selectors, warmup=1), ranges(*rows)))] == [1, 2]
    (row,) = named_range_periods(pair(*selectors, warmup=2), ranges(*rows)).to_pylist()
    assert (row["refusal"], row["overlap_score"]) == ("1 steady unit, 2 are needed after 2 of warm-up", None)


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        (StageSelector("x*"), "no range is called 'x*'"),
        (StageSelector("a", 7), "no range is called 'a' on rank 7"),
        (StageSelector("both"), "ranges called 'both' are on several ranks: name one"),
    ],
)
def test_ranges_that_cannot_be_known_are_refused_with_the_reason(selector, reason):
    rows = ranges((0, "a", 0, 5), (0, "both", 0, 1), (1, "both", 0, 1))
    (row,) = named_range_periods(pair(StageSelector("a"), selector), rows).to_pylist()
    assert row["refusal"] == reason


STAMPS = """\
{"rank": 0, "unit": 7, "tA0": 0.5, "tA1": 20.5, "tSend": 21}
{"rank": 0, "unit": 8, "tA0": 30.5, "tA1": 50.5, "tSend": 51}
{"rank": 0, "unit": 9, "tA0": 60.5, "tA1": 80.5}

{"rank": 1, "unit": 7, "tB0": 1700000000000000.123, "tB1": 1700000000000025.125}
{"rank": 1, "unit": 8, "tB0": 1700000000000030, "tB1": 1700000000000055}
"""

PAIRS = """\
[[pair]]
name = "A and B"
timestamps = "stamps.jsonl"
time_unit = "us"
stage0 = {stamp = "A"}
stage1 = {stamp = "B"}
warmup = 0

[[pair]]
name = "first stages"
stages = [0, 1]
threshold = 0.5
percentile = 10

[[pair]]
name = "gradients"
dimension = "dp"

[[pair]]
name = "ranges"
stage0 = {range = "step*", rank = 3}
stage1 = {range = "send"}
"""


@pytest.fixture
def pairs_file(tmp_path):
    (tmp_path / "stamps.jsonl").write_text(STAMPS)
    (tmp_path / "pairs.toml").write_text(PAIRS)
    return tmp_path / "pairs.toml"


def test_time_stamps_of_a_user_give_the_same_periods_to_the_nanosecond(pairs_file):
    named = read_pairs_file(pairs_file)[0]
    first, second = (list(read_stamps(named.timestamps, letter, named.time_unit_ns)) for letter in "AB")
    assert second[0].start_ns == 1_700_000_000_000_000_123
    table = stamped_periods(named, first, second)
    assert [row[:4] for row in measures(table)] == [(7, 30_000, 20_000, 25_002), (8, 30_000, 20_000, 25_000)]


def test_a_pairs_file_is_read_as_it_is_documented(pairs_file):
    first, stages, gradients, by_range = read_pairs_file(pairs_file)
    assert (first.timestamps, first.time_unit_ns) == (pairs_file.parent / "stamps.jsonl", 1000)
    assert (stages.stages, stages.threshold, stages.percentile) == ((0, 1), 0.5, 10.0)
    assert (gradients.dimension, gradients.threshold, gradients.warmup) == ("dp", 0.30, 1)
    assert by_range.stage0 == StageSelector("step*", 3) and by_range.stage1 == StageSelector("send", None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no pairs"),
        ("[[pair]]\nstages = [0, 1]", "a pair has no name"),
        ('[[pair]]\nname = "x"', "it is not one pair"),
        ('[[pair]]\nname = "x"\nstages = [0, 2]', "no neighbours"),
        ('[[pair]]\nname = "x"\ndimension = "qp"', "no dimension 'qp'"),
        ('[[pair]]\nname = "x"\nstages = [0, 1]\nlimit = 3', "unknown key 'limit'"),
        ('[[pair]]\nname = "x"\nstages = [0, 1]\nthreshold = "much"', "threshold = 'much'"),
        ('[[pair]]\nname = "x"\nstage0 = {range = "a"}', "it is not one pair"),
        ('[[pair]]\nname = "x"\nstage0 = {stamp = "a"}\nstage1 = {range = "b"}', "a stage is"),
        ('[[pair]]\nname = "x"\nstages = [0, 1]\n[[pair]]\nname = "x"\nstages = [1, 2]', "two pairs are called 'x'"),
        ("[[pair]", "is no TOML file"),
    ],
)
def test_a_pairs_file_that_says_something_else_is_refused_in_one_line(tmp_path, text, fault):
    path = tmp_path / "pairs.toml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=fault) as error:
        read_pairs_file(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("line", ["[1]", '{"rank": 0, "unit": 1, "tA0": "x", "tA1": 3}', "{", '{"tA0": 1, "tA1": 3}'])
def test_a_line_that_is_no_stamp_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "stamps.jsonl"
    path.write_text(f'{{"rank": 0, "unit": 0, "tA0": 1, "tA1": 2}}\n{line}\n')
    with pytest.raises(BadInputError, match="line 2"):
        list(read_stamps(path, "A", 1))


def table_of_scores(*scores: float) -> pa.Table:
    period = np.full(len(scores), 200)
    stage = np.array([round(100 + 100 * score) for score in scores])
    constant = {"pair": "stages 0 and 1", "kind": "stages", "stage": 0, "rank": 0}
    return period_rows([(constant, len(scores), scored_rows(period, stage, np.full(len(scores), 100)))])


def test_the_gate_holds_the_chosen_percentile_of_named_pairs_against_their_threshold():
    periods = table_of_scores(0.0, 0.4, 0.4, 0.4)
    named = NamedPair("first", stages=(0, 1), threshold=0.30)
    strict = NamedPair("strict", stages=(0, 1), threshold=0.15, percentile=10)
    rows = pa.concat_tables([named_table_periods(each, periods) for each in (named, strict)])
    verdicts = {verdict.pair: verdict for verdict in judge_pairs((named, strict), rows)}
    assert verdicts["first"].passed and verdicts["first"].units == 4
    assert verdicts["strict"].passed is False, "the tail fails where the median passes"


def test_the_gate_does_not_judge_what_it_has_no_measures_of():
    named = NamedPair("first", stages=(0, 1))
    (verdict,) = judge_pairs((named,), named_table_periods(named, PERIODS.schema.empty_table()))
    assert (verdict.passed, verdict.refusal) == (None, "the iteration has no pair of stages 0 and 1")
    few = period_rows(
        [refused({"pair": "stages 0 and 1", "kind": "stages", "stage": 0}, "1 steady unit, 2 are needed")]
    )
    (verdict,) = judge_pairs((named,), named_table_periods(named, few))
    assert (verdict.passed, verdict.refusal) == (None, "1 steady unit, 2 are needed")
