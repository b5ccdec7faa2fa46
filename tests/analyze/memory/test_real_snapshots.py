"""Two published snapshots of transformer training and inference, to the byte."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.analyze.memory.plain_snapshots import loaded, requested_over_time
from traceviz_dag.analyze.memory.examination import Examined, examined
from traceviz_dag.analyze.memory.layout import fragmentation_at
from traceviz_dag.read.memory.reader import read_snapshot

NAMES = ("transformer_128_training", "transformer_512_inference")


@pytest.fixture(scope="module")
def real(shared_data) -> dict[str, Examined]:
    return {name: examined(read_snapshot(shared_data / "memory" / f"{name}.pickle"))[0] for name in NAMES}


@pytest.mark.parametrize(
    ("name", "events", "live", "reserved", "peak", "start", "inactive", "largest"),
    [
        (NAMES[0], 19136, (6808535044, 6816891392), 7235174400, 7013335044, 5095321600, 418283008, 41943040),
        (NAMES[1], 4998, (1701482496, 1703448576), 1981808640, 1949343744, 1701482496, 278360064, 67108864),
    ],
)
def test_the_known_values(real, name, events, live, reserved, peak, start, inactive, largest):
    one = real[name]
    end = one.at_end
    assert len(one.replay.action) == events
    assert (end.requested_bytes, end.requested_bytes + end.rounding_bytes) == live
    assert (end.reserved_bytes, one.replay.peak_requested, int(one.replay.requested[0])) == (reserved, peak, start)
    assert (end.inactive_bytes, end.largest_free_block_bytes) == (inactive, largest)
    assert one.replay.contradictions == {} and not one.snapshot.unknown and not one.snapshot.unusable
    assert one.snapshot.ring == (None, None)


@pytest.mark.parametrize("name", NAMES)
def test_every_state_is_that_of_a_slow_replay(name, real, shared_data):
    slow = requested_over_time(loaded(shared_data / "memory" / f"{name}.pickle"))
    assert real[name].replay.requested.tolist() == slow


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_replayed_to_the_end_is_the_one_in_the_file(name, real):
    one = real[name]
    assert fragmentation_at(one.replay, len(one.replay.action) - 1) == one.at_end
    assert one.at_peak.uncovered_bytes == 0


def test_parameters_gradients_and_optimizer_state_of_training_are_named(real):
    one = real[NAMES[0]]
    names = 1_692_733_440  # Of 219 parameters, as their gradients and both moments are.
    found: Counter[tuple[str, str]] = Counter()
    for part in one.parts(len(one.replay.action) - 1):
        found[part.category, part.evidence] += part.requested_bytes
    assert found["parameter", "size_match"] == found["gradient", "life"] == names
    assert found["optimizer_state", "life"] == 2 * names
    at_peak = {(part.category, part.evidence): part for part in one.parts(one.replay.peak_event)}
    assert at_peak["optimizer_state", "free_frames"].requested_bytes == 2 * names
    assert at_peak["parameter", "size_match"].blocks == 219
    assert 0.24 < one.share_of("size_match", one.replay.peak_event) < 0.25
    assert at_peak["unknown", "none"].requested_bytes < 18 << 20
    assert sum(part.requested_bytes for part in at_peak.values()) == one.replay.peak_requested


def test_inference_has_no_gradients_and_its_early_blocks_stay_unknown(real):
    one = real[NAMES[1]]
    parts = {part.category: part.requested_bytes for part in one.parts(one.replay.peak_event)}
    assert parts == {"unknown": 1_701_482_496, "temporary": 247_861_248}
    assert len(one.steps) == 0


@pytest.mark.parametrize("name", NAMES)
def test_no_stack_shows_a_home_folder_or_an_environment(name, real):
    texts = " ".join(frame.file for frame in real[name].snapshot.stacks.frames)
    assert "/home/" not in texts and "site-packages" not in texts
