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


def test_the_slice_is_of_two_thousand_inputs_and_of_every_kind():
    assert sum(INPUTS.values()) == 2000
    assert set(INPUTS) == set(fuzz.KINDS)


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", INPUTS)
def test_no_mutated_input_raises_or_shows_what_it_must_not(kind: str, fast: bool, tmp_path: Path):
    """Two inputs of five are for the fast set of tests, the others for the long one."""
    before = signal.signal(signal.SIGPROF, fuzz._too_slow)
    failures, ended = {}, set()
    try:
        for number in (number for number in range(INPUTS[kind]) if (number % 5 < 2) is fast):
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
