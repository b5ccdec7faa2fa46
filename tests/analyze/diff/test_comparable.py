"""What speaks against comparing two sides is named, and refuses or flags; what one side does not state says nothing."""

from __future__ import annotations

import pytest

from traceviz_dag.analyze.diff.comparable import FLAGGED, REFUSED, Inputs, differences, refusals, unstated

NONE = Inputs({}, {}, {})


@pytest.mark.parametrize("fact", [*REFUSED, *FLAGGED, "setting num_layers"])
def test_each_fact_refuses_or_flags_where_both_state_it_otherwise(fact):
    a, b = {fact: frozenset({"tp 1"})}, {fact: frozenset({"tp 2"})}
    (found,) = differences(a, b, (NONE, NONE))
    assert (found.fact, found.refused, found.a, found.b) == (fact, fact in REFUSED, "tp 1", "tp 2")
    assert "tp 1 in A, tp 2 in B" in found.sentence
    assert differences(a, a, (NONE, NONE)) == differences(a, {}, (NONE, NONE)) == []
    assert bool(unstated(a, {})) == (fact in (*REFUSED, *FLAGGED))


def test_parallel_sizes_that_one_side_does_not_state_are_not_compared_and_those_that_differ_are_named():
    a, b = ({"layout": frozenset(sizes)} for sizes in (("tp 1", "pp 4", "ep 1"), ("tp 1", "pp 4")))
    assert differences(a, b, (NONE, NONE)) == differences(b, a, (NONE, NONE)) == []
    (found,) = differences(a, {"layout": frozenset({"tp 2", "pp 4"})}, (NONE, NONE))
    assert (found.a, found.b, found.refused) == ("tp 1", "tp 2", True)


def test_what_refuses_comes_first():
    a = {"nccl_version": frozenset({"2"}), "device_name": frozenset({"x"})}
    b = {"nccl_version": frozenset({"3"}), "device_name": frozenset({"y"})}
    found = differences(a, b, (NONE, NONE))
    assert [one.fact for one in found] == ["device_name", "nccl_version"]
    assert [one.fact for one in refusals(found)] == ["device_name"]


def test_other_shapes_of_most_of_the_common_work_refuse_and_of_some_are_flagged():
    a = Inputs({}, {("mm", "8"): 90, ("mm", "9"): 10, ("old", "1"): 500}, {})
    few = Inputs({}, {("mm", "8"): 90, ("mm", "7"): 10, ("new", "1"): 500}, {})
    most = Inputs({}, {("mm", "7"): 100}, {})
    ((some,), (other,)) = differences({}, {}, (a, few)), differences({}, {}, (a, most))
    assert (some.fact, some.refused, other.fact, other.refused) == ("shapes", False, "shapes", True)
    assert "90 % of the time" in some.sentence and "0 % of the time" in other.sentence
    assert differences({}, {}, (a, a)) == []


def test_messages_of_other_types_refuse():
    a, b = (
        Inputs({}, {}, {"allreduce": frozenset({each}), "other": frozenset({each[:1]})}) for each in ("Float", "FBit")
    )
    (found,) = differences({}, {}, (a, b))
    assert (found.fact, found.refused, found.a, found.b) == ("types", True, "Float", "FBit")


def test_other_operations_refuse_from_half_of_the_time_and_are_flagged_from_a_tenth():
    a = Inputs({"mm": 80, "old": 20}, {}, {})
    for own, refused in ((500, True), (100, False)):
        (found,) = differences({}, {}, (a, Inputs({"mm": 80, "new": own}, {}, {})))
        assert (found.fact, found.refused, found.a) == ("operations", refused, "1 operation of its own")
    assert differences({}, {}, (a, Inputs({"mm": 800, "new": 1}, {}, {}))) == []
