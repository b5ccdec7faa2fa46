"""A slice of the fuzzing in ``benchmarks/fuzz.py``: no input raises anything but one clear line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from benchmarks import fuzz

SEED = 7
INPUTS = {
    **{"topology_text": 280, "topology_json": 290, "pairs": 210, "stamps": 220, "rules": 150, "settings": 150},
    **{"capture": 140, "kineto": 180, "nsys": 35, "folder": 25},
    **{"synchronizations": 50, "records": 60, "nsys_folder": 10, "memory": 200},
}
FAST = {"kineto": 35, "memory": 35, "nsys": 8, "nsys_folder": 3, "records": 15, "folder": 6}
"""Of the dear kinds, how many of the inputs are for the fast set of tests."""


def test_the_slice_is_of_two_thousand_inputs_and_of_every_kind():
    assert sum(INPUTS.values()) == 2000
    assert set(INPUTS) == set(fuzz.KINDS)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        *((kind, range(FAST.get(kind, count))) for kind, count in INPUTS.items()),
        *(pytest.param(kind, range(first, INPUTS[kind]), marks=pytest.mark.long) for kind, first in FAST.items()),
    ],
)
def test_no_mutated_input_raises_or_shows_what_it_must_not(kind: str, numbers: range, tmp_path: Path):
    before = signal.signal(signal.SIGPROF, fuzz._too_slow)
    failures, ended = {}, set()
    try:
        for number in numbers:
            folder = tmp_path / str(number)
            folder.mkdir()
            outcome, place = fuzz.outcome_of(kind, number, SEED, folder)
            ended.add(outcome)
            if outcome in fuzz.FAILURES:
                failures[number] = f"{outcome}: {place}"
    finally:
        signal.signal(signal.SIGPROF, before)
    assert not failures
    # Mutants of which none is read, or none is refused, would show nothing.
    assert ended >= ({"refused"} if kind != "folder" else {"partial"})
    assert ended & {"whole", "partial"}
