"""Events of a snapshot, of which there may be millions, come out in their places, with their own stacks."""

from __future__ import annotations

from tests.analyze.memory.plain_snapshots import read_here
from traceviz_dag.read.memory.snapshot import ACTIONS, Action


def test_each_of_many_events_keeps_its_stack_and_place_and_what_is_unusable_is_counted():
    frames = [{"name": f"f{number}", "filename": "a.py", "line": number} for number in range(9)]
    # Four stacks that differ in one place each, the last twice in a row, and values that are none.
    stacks = [[*frames[:place], frames[8], *frames[place:7]] for place in (0, 2, 5, 7)]
    given = [*stacks, stacks[3], None, "none", "none"] * 1_000
    events = [
        {"action": ACTIONS[number % 8], "addr": number, "size": 512, "stream": 0, "time_us": number, "frames": one}
        for number, one in enumerate(list(one) if isinstance(one, list) else one for one in given)
    ]
    events[7_000] |= {"action": "oom", "device_free": 3}
    events[4_000]["size"] = "much"
    events[6_000]["stream"] = -1
    snapshot = read_here({"segments": [], "device_traces": [[], events]})
    del events[4_000], given[4_000]
    assert snapshot.events["address"].tolist() == [event["addr"] for event in events]
    assert snapshot.ooms == {6_999: 3} and snapshot.events["action"][6_999] == Action.OOM
    names = [[frame.name for frame in snapshot.stacks.of(number)] for number in snapshot.events["stack"].tolist()]
    assert names == [[frame["name"] for frame in one] if isinstance(one, list) else [] for one in given]
    assert len(snapshot.stacks) == len(stacks) and snapshot.traces == 1
    assert snapshot.unusable == {"device_traces": 1}
    assert snapshot.unusable_values == {"frames in device_traces": 2_000, "stream in device_traces": 1}
