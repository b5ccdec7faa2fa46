"""Time stamps moved in the text are exactly those that decimal arithmetic gives."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.read.perfetto.rebase import UnfitTimesError, base_for, rebase

EPOCH_US = 1_770_682_389_013_347
_TIMES = st.tuples(st.integers(-3_000_000_000, 10**12), st.sampled_from(["", ".0", ".357", ".12345", ".999"]))
_KEYS = st.sampled_from(['"ts":', '"ts": ', '"ts"  :\n ', '"ts":\t'])


def times_of(text: bytes) -> list[Decimal]:
    """Every event's time, by decimal arithmetic."""
    return [event["ts"] for event in json.loads(text, parse_float=Decimal, parse_int=Decimal)["traceEvents"]]


@given(st.lists(st.tuples(_TIMES, _KEYS), min_size=1, max_size=30), st.booleans())
@settings(max_examples=100, deadline=None)
def test_each_time_loses_exactly_the_base_and_the_rest_of_the_text_stays(
    drawn: list[tuple[tuple[int, str], str]], last_in_object: bool
) -> None:
    events = []
    for number, ((offset, fraction), key) in enumerate(drawn):
        time = f"{key}{EPOCH_US + (offset if number else 0)}{fraction}"
        name = f'"name": "a \\"ts\\": 1{number}", "ts2": 5, "dur": 1770682389013347.5'
        events.append("{" + (f"{name}, {time}" if last_in_object else f"{time}, {name}") + "}")
    text = bytearray(('{"traceEvents": [' + ", ".join(events) + "]}").encode())
    before, size = times_of(bytes(text)), len(text)
    base = base_for(text)
    assert 0 < base <= EPOCH_US - 3_000_000_000
    assert rebase(text, base) == len(drawn)
    assert len(text) == size
    assert times_of(bytes(text)) == [time - base for time in before]
    others = [{**event, "ts": 0} for event in json.loads(text)["traceEvents"]]
    assert all(event["dur"] == 1770682389013347.5 and event["ts2"] == 5 for event in others)
    assert [event["name"] for event in others] == [f'a "ts": 1{number}' for number in range(len(drawn))]


def test_short_times_need_no_base() -> None:
    assert base_for(b'{"traceEvents": [{"ph": "X", "ts": 1456789013347.357, "dur": 1}]}') == 0
    assert base_for(b"{}") == 0


def test_metadata_may_lie_before_the_base_and_events_may_not() -> None:
    metadata = bytearray(b'[{"name": "process_name", "ph": "M", "ts": 0, "args": {"name": "python"}}]')
    assert rebase(metadata, 10**15) == 0
    assert b'"ts": 0,' in metadata
    with pytest.raises(UnfitTimesError, match="17 us"):
        rebase(bytearray(b'[{"ph": "X", "ts": 17.5, "dur": 1}]'), 10**15)
